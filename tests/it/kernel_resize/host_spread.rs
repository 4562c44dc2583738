//! Thousands of nodes that receive the same change at the same moment do not all act at that moment.

use std::time::{Duration, Instant};

use serde_json::json;
use vscaled::pace::{place_in, spread_window};

use super::{LARGER, NAME, NODE, SMALLER, Scene, UID, host_others, workload};

/// A workload with a pod on each of these nodes.
const NODES: u64 = 15_001;

async fn of_many_nodes() -> (Scene, Duration) {
    let mut scene = Scene::new().await;
    let mut deployment = workload("web", None);
    deployment["spec"]["replicas"] = json!(NODES);
    scene.api.put("deployments", deployment);
    scene.start().await;
    let place = place_in(spread_window(NODES), NODE, UID);
    assert!(place > Duration::from_secs(10), "{place:?}");
    (scene, place)
}

#[tokio::test]
async fn a_share_of_many_nodes_counts_other_nodes() {
    let (scene, place) = of_many_nodes().await;
    let told = Instant::now();
    scene.recommend(&SMALLER);
    scene.agent.reaches(NAME, "Working").await;
    let next = scene
        .agent
        .client()
        .await
        .explain(scene.pod.full_name())
        .await
        .unwrap()
        .next;
    assert!(next.contains("that many nodes follow"), "{next}");
    scene.settles(&SMALLER).await;
    assert!(told.elapsed() >= place, "{:?} of {place:?}", told.elapsed());
}

#[tokio::test]
async fn an_operator_does_not_wait_for_it() {
    let (scene, place) = of_many_nodes().await;
    let told = Instant::now();
    scene.recommend(&SMALLER);
    scene.agent.reaches(NAME, "Working").await;
    let change = scene
        .agent
        .resize(host_others::limits(&scene.pod, Some("600m"), Some("256Mi")))
        .await
        .unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert!(told.elapsed() < place, "{:?} of {place:?}", told.elapsed());
    assert!(!scene.holds(&LARGER));
}
