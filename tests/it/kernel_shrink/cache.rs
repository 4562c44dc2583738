//! Page cache prevents no shrink, unless the container needs it.

use super::{ROOMY, Scene};

#[tokio::test]
async fn cache_is_reclaimed_for_a_lower_limit() {
    let mut scene = Scene::started().await;
    let _cached = scene.caches().await;
    let change = scene.resize(64).await;
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert_eq!(scene.limits(), [64, 64]);
    assert!(scene.usage() <= 64 << 20);
    assert_eq!((scene.kills(), scene.is_frozen()), (0, false));
    assert!(change.stages.unwrap().prepare_us > 0);
}

#[tokio::test]
async fn a_needed_cache_gets_its_room_back() {
    let mut scene = Scene::started().await;
    let cached = scene.caches().await;
    assert_eq!(scene.resize(64).await.outcome, "Applied");
    assert_eq!(scene.limits(), [64, 64]);
    cached.read_again();
    let raised = || scene.limits() == [ROOMY, ROOMY];
    scene.agent.wait_for("the limits to go up again", raised).await;
    let pod = scene.agent.reaches("web", "Refused").await;
    assert!(
        pod.detail.contains("are read again because they had to be dropped"),
        "{}",
        pod.detail
    );
    assert_eq!(scene.kills(), 0);
}
