//! Events about the guard's temporary limits and refusals.

use serde_json::{Value, json};

use crate::cluster_api::Scene;
use crate::support::allocator::{Allocation, Allocator, End};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

/// One Event for the temporary limit, one for the refusal, and other Events of the pod.
const AT_MOST: usize = 4;

/// The Events about a pod that the guard caused.
fn by_the_guard(scene: &Scene) -> Vec<Value> {
    let list = scene.cluster.get(objects::EVENTS);
    let events = list["items"].as_array().unwrap().iter();
    let ours = events.filter(|event| {
        event["involvedObject"]["name"] == scene.pod.name
            && event["message"].as_str().is_some_and(|text| text.starts_with("guard:"))
    });
    ours.cloned().collect()
}

fn saying<'e>(events: &'e [Value], reason: &str, words: &str) -> Vec<&'e Value> {
    let about = |event: &&Value| event["reason"] == reason && event["message"].as_str().unwrap().contains(words);
    events.iter().filter(about).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn growths_and_refusals_become_events() {
    let Some(mut scene) = Scene::new("cluster_events::guard::a_growth_and_a_refused_one") else {
        return;
    };
    let mut vpa = objects::vpa("InPlaceOrRecreate");
    vpa["spec"]["resourcePolicy"] =
        json!({"containerPolicies": [{"containerName": "*", "maxAllowed": {"memory": "192Mi"}}]});
    scene.cluster.apply(&vpa);
    scene.recommend(&[("app", Amounts::doubled(100, 64))]);
    for (flag, value) in [
        ("--guard-reserve", "100Mi"),
        ("--guard-pod-budget", "100%"),
        ("--guard-node-budget", "100%"),
    ] {
        scene.agent.set(flag, value);
    }
    scene.agent.start().await;
    // The pod already has the recommended values, so the guard watches it as soon as the agent knows that it runs.
    let lives = async || {
        let pod = scene.agent.pod(scene.pod.name).await?;
        pod.containers[0].id.clone()
    };
    scene.agent.until("the pod to live", lives).await;

    // A leak: the guard raises the limit up to the VPA's maximum, and then the process is killed.
    let allocation = Allocation {
        rate: 40,
        until: 1 << 20,
    };
    let cgroup = &scene.pod.containers["app"].cgroup;
    let end = Allocator::start_careful(scene.node.cgroups(), cgroup, allocation).wait();
    assert!(matches!(end, End::Killed(taken) if taken > 128), "{end:?}");

    let said = async || {
        let events = by_the_guard(&scene);
        let grown = saying(&events, "TemporaryLimit", "grew by").len();
        let refused = saying(&events, "ResizeRefused", "the highest that its VPA allows (192Mi)").len();
        (grown > 0 && refused > 0).then_some(events)
    };
    let events = scene.agent.until("the Events", said).await;
    let grown = saying(&events, "TemporaryLimit", "grew by");
    assert_eq!(grown.len(), 1, "one Event, updated: {grown:#?}");
    let text = grown[0]["message"].as_str().unwrap();
    assert!(text.contains("temporary memory limit 128Mi → "), "{text}");
    assert!(
        text.contains("container app was about to reach its memory limit (it used "),
        "{text}"
    );
    assert_eq!(
        (&grown[0]["type"], &grown[0]["involvedObject"]["uid"]),
        (&json!("Normal"), &json!(scene.pod.uid))
    );
    let refused = saying(&events, "ResizeRefused", "memory limit not raised");
    assert_eq!(refused.len(), 1, "said once: {refused:#?}");
    let text = refused[0]["message"].as_str().unwrap();
    assert!(text.contains("; it used ") && refused[0]["type"] == "Warning", "{text}");
    assert!(events.len() <= AT_MOST, "{events:#?}");
}
