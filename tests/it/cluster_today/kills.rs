//! Containers that the kernel kills become Events and numbers, beside what the kubelet says itself.

use serde_json::json;

use super::{APP, GREEDY, LARGER, Scene, WEB};
use crate::support::cluster::objects;
use crate::support::http;

#[tokio::test]
async fn a_killed_container_is_an_event_with_its_limit_and_a_number() {
    let Some(mut scene) = Scene::new("cluster_today::kills::a_killed_container").await else {
        return;
    };
    scene.agent.set("--http-address", "127.0.0.1:0");
    scene.starts_watching_kills().await;
    let spec = json!({"containers": [
        {"name": "app", "resources": objects::resources(APP), "command": ["/bin/sh", "-c", GREEDY]},
    ]});
    scene.make_pod(WEB, &spec);
    scene.make_vpa("InPlaceOrRecreate");
    scene.runs(WEB).await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(LARGER).await;

    let levels = scene.levels(&resized);
    // The limit that counts is the one after the resize.
    scene.signal(&resized, "app");
    let told = async || scene.events(WEB, "OOMKilled").into_iter().next();
    let event = scene.agent.until("an Event about the kill", told).await;
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("memory limit of 192Mi"), "{message}");
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{app}");
    let address = scene.agent.http_address().await;
    let series = format!(
        "vscaled_oom_kills_total{{namespace=\"{}\",pod=\"{WEB}\",container=\"app\"",
        scene.namespace
    );
    let counted = async || {
        let (_, text) = http::get(address, "/metrics")?;
        text.contains(&series).then_some(())
    };
    scene.agent.until("the kill to be counted", counted).await;

    // The kubelet kills a container as a whole, and starts it with the resized values.
    let again = || {
        let pod = scene.object(WEB);
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1 && status["state"]["running"].is_object()).then_some(pod)
    };
    let after = scene.agent.until("the container to run again", async || again()).await;
    let status = &after["status"]["containerStatuses"][0];
    assert_eq!(status["lastState"]["terminated"]["reason"], "OOMKilled");
    scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    let same = || scene.levels(&after) == levels;
    scene.agent.wait_for("the same values everywhere", same).await;
    assert_eq!(scene.events(WEB, "OOMKilled").len(), 1, "told once");
}
