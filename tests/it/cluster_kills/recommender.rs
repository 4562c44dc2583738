//! Events in the shape that an unmodified VPA recommender reads (`cluster_today::pairing` runs one).

use std::time::Duration;

use serde_json::{Value, json};
use vscaled::model::MemoryLimit;

use super::Scene;
use crate::support::amounts::Amounts;
use crate::support::http;

/// A scene with a VPA that only recommends, so that the agent resizes nothing.
fn with_vpa(test: &str) -> Option<Scene> {
    let mut scene = Scene::new(test)?;
    scene.cluster.make_vpa("Off");
    scene.cluster.recommend(&[("app", Amounts::doubled(100, 64))]);
    scene.cluster.agent.set("--report-vpa-events", "true");
    scene.cluster.agent.set("--http-address", "127.0.0.1:0");
    scene.cluster.agent.set("--log-level", "info,vscaled::report=debug");
    Some(scene)
}

/// The annotations for a container that 128Mi were not enough for.
fn of_app() -> Value {
    json!({"offending_containers": "app", "offending_containers_usage": "134217728", "starved_resource": "memory"})
}

/// The number of reports withheld from the recommender, of any pod: other processes on the machine may be killed too.
fn counted(scene: &Scene) -> Option<u64> {
    let log = scene.cluster.agent.log();
    let (_, rest) = log.split_once(" http=")?;
    let address = rest.split_whitespace().next()?.parse().ok()?;
    let (_, text) = http::get(address, "/metrics")?;
    let series = "vscaled_reports_total{destination=\"vpa-events\",outcome=\"withheld\"} ";
    let value = text.lines().find_map(|line| line.strip_prefix(series))?;
    value.parse().ok()
}

/// The reasons in the agent's log why it withheld kills of the pod from the recommender.
async fn withheld(scene: &Scene) -> Vec<&'static str> {
    let agent = &scene.cluster.agent;
    let reply = agent.client().await.oom_list(scene.cluster.pod.uid.to_owned()).await;
    let kills = reply.unwrap().kills;
    let log = agent.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("no Event for the VPA recommender"));
    let ours = lines.filter(|line| kills.iter().any(|kill| line.contains(&format!("id={} ", kill.id))));
    let why = ours.map(|line| ["WithinWindow", "InStatus"].into_iter().find(|why| line.contains(why)));
    why.map(|why| why.unwrap_or("another reason")).collect()
}

/// Waits until the agent has withheld one kill of the pod.
async fn withholds(scene: &Scene, why: &str) {
    let some = async || Some(withheld(scene).await).filter(|withheld| !withheld.is_empty());
    let agent = &scene.cluster.agent;
    let withheld = agent.until("a kill to be withheld", some).await;
    assert_eq!(withheld, [why]);
    agent
        .wait_for("it to be counted", || counted(scene).is_some_and(|count| count > 0))
        .await;
}

#[tokio::test]
async fn the_recommender_hears_once_in_a_window() {
    let Some(mut scene) = with_vpa("cluster_kills::recommender::the_recommender_is_told") else {
        return;
    };
    scene.start().await;
    let pod = &scene.cluster.pod;
    scene.kill(pod, 2);
    let told = async || scene.events(pod, "Evicted").into_iter().next();
    let event = scene.cluster.agent.until("the recommender to be told", told).await;
    assert_eq!(event["metadata"]["annotations"], of_app());
    assert_eq!(event["involvedObject"]["kind"], "Pod");
    assert!(
        event["message"].as_str().unwrap().contains("nothing was evicted"),
        "{event:#}"
    );
    withholds(&scene, "WithinWindow").await;

    // The window survives a restart of the agent.
    scene.cluster.agent.stop();
    scene.start().await;
    scene.kill(&scene.cluster.pod, 1);
    scene.wait_for_kill_events(&scene.cluster.pod, 3).await;
    let gone = scene.events(&scene.cluster.pod, "Evicted");
    assert_eq!(gone.len(), 1, "{gone:#?}");
}

#[tokio::test]
async fn the_recommender_hears_of_a_lone_containers_kill() {
    let Some(mut scene) = with_vpa("cluster_kills::recommender::the_recommender_is_told_of_a_pod_of_one") else {
        return;
    };
    let cgroups = scene.cluster.node.cgroups();
    let sandbox = cgroups.make(&format!("kubepods/burstable/pod{}/{:064x}", scene.cluster.pod.uid, 77));
    scene.cluster.node.spawn(&sandbox, "exec sleep 1000");
    let limit = MemoryLimit::Bytes(128 << 20);
    scene
        .cluster
        .node
        .cgroups()
        .limit_memory(&scene.cluster.pod.cgroup, limit);
    scene.start().await;
    let pod = &scene.cluster.pod;
    let told = async || {
        // The kernel logs ten kills in five seconds for the whole machine.
        if scene.events(pod, "Evicted").is_empty() {
            scene.kill(pod, 1);
            tokio::time::sleep(Duration::from_secs(12)).await;
        }
        scene.events(pod, "Evicted").into_iter().next()
    };
    let event = scene.cluster.agent.until("the recommender to be told", told).await;
    assert_eq!(event["metadata"]["annotations"], of_app());
    let people = scene.events(pod, "OOMKilled");
    let says = |event: &Value| {
        event["message"]
            .as_str()
            .unwrap()
            .contains("the container reached its memory limit of 128Mi, and the kernel enforced the pod's limit")
    };
    assert!(people.iter().any(says), "{people:#?}");
}

#[tokio::test]
async fn what_a_pods_status_tells_is_not_told_again() {
    let Some(mut scene) = with_vpa("cluster_kills::recommender::what_a_pods_status_tells") else {
        return;
    };
    scene.start().await;
    let pod = &scene.cluster.pod;
    scene.kill(pod, 1);
    // The status that the kubelet writes when the container has ended with the kill.
    let id = format!("containerd://{}", pod.containers["app"].id);
    scene.cluster.cluster.put_status(
        "/api/v1/namespaces/test/pods",
        pod.name,
        &json!({"phase": "Running", "containerStatuses": [{
            "name": "app", "containerID": id, "image": "none", "imageID": "none", "ready": false, "restartCount": 0,
            "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "containerID": id}},
        }]}),
    );
    withholds(&scene, "InStatus").await;
    assert_eq!(scene.events(pod, "Evicted"), [Value::Null; 0]);
    scene.wait_for_kill_events(pod, 1).await;
}
