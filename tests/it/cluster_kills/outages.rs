//! Outages of the API server during which the agent is killed.

use super::Scene;
use crate::cluster_api::LARGER;
use crate::support::amounts::Amounts;

#[tokio::test]
async fn kills_in_an_outage_are_told_after_it() {
    let test = "cluster_kills::outages::what_is_killed_while_the_api_server_is_away";
    let Some(mut scene) = Scene::started(test).await else {
        return;
    };
    scene.kill(&scene.cluster.pod, 3);
    scene.wait_for_kill_events(&scene.cluster.pod, 3).await;
    scene.cluster.cluster.stop();
    scene.kill(&scene.cluster.pod, 30);
    scene
        .cluster
        .agent
        .reports(&["pod-events", "cannot be reached", "reports wait"])
        .await;
    scene.cluster.cluster.launch();
    let events = scene.wait_for_kill_events(&scene.cluster.pod, 33).await;
    assert!(events.len() <= 13, "{events:#?}");
    scene.kill(&scene.cluster.pod, 1);
    scene.wait_for_kill_events(&scene.cluster.pod, 34).await;
    scene.has_no_pending_report().await;
}

#[tokio::test]
async fn an_agent_that_is_killed_in_the_middle_tells_nothing_twice() {
    let test = "cluster_kills::outages::an_agent_that_is_killed_in_the_middle";
    let Some(mut scene) = Scene::started(test).await else {
        return;
    };
    scene.kill(&scene.cluster.pod, 5);
    let some = async || (!scene.events(&scene.cluster.pod, "OOMKilled").is_empty()).then_some(());
    scene.cluster.agent.until("the first Event", some).await;
    scene.cluster.agent.kill();
    // The next agent, which starts during the outage, detects these kills.
    scene.kill(&scene.cluster.pod, 4);
    scene.cluster.cluster.stop();
    scene.cluster.agent.start().await;
    scene.cluster.cluster.launch();
    scene.wait_for_kill_events(&scene.cluster.pod, 9).await;
    scene.kill(&scene.cluster.pod, 1);
    scene.wait_for_kill_events(&scene.cluster.pod, 10).await;
}

#[tokio::test]
async fn a_start_without_answers_names_changed_pods() {
    let test = "cluster_kills::outages::an_agent_that_starts_while_nobody_answers";
    let Some(mut scene) = Scene::started(test).await else {
        return;
    };
    scene.cluster.make_vpa("InPlaceOrRecreate");
    scene.cluster.recommend(&LARGER);
    // Where the kubelet does not enforce cpu limits, the agent does not either.
    let unbounded = LARGER.map(|(name, amounts)| {
        (
            name,
            Amounts {
                cpu_limit: None,
                ..amounts
            },
        )
    });
    scene.cluster.settles(&unbounded).await;
    let (agent, pod) = (&mut scene.cluster.agent, &scene.cluster.pod);
    let saved = || std::fs::read_to_string(agent.state_file()).is_ok_and(|text| text.contains(pod.name));
    agent.wait_for("what stands to be saved", saved).await;
    agent.kill();
    scene.cluster.cluster.stop();
    scene.cluster.agent.start().await;
    scene.kill(&scene.cluster.pod, 1);
    let (agent, pod) = (&scene.cluster.agent, &scene.cluster.pod);
    let told = async || {
        let kills = agent.client().await.oom_list(pod.uid.to_owned()).await.unwrap().kills;
        kills.into_iter().next()
    };
    let kill = agent.until("the kill to be told", told).await;
    let (of, container) = (kill.pod.as_ref().unwrap(), kill.container.as_ref().unwrap());
    assert_eq!(
        (&*of.namespace, &*of.name, &*container.name),
        ("test", pod.name, "app"),
        "{kill:#?}"
    );
}
