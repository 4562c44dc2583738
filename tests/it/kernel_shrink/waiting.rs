//! A slow shrink blocks no other operation.

use super::{ROOMY, Scene, roomy};
use crate::support::churn;

const OTHER: &str = "0a1b2c3d-0000-4000-8000-000000000052";

#[tokio::test]
async fn another_pod_is_resized_meanwhile() {
    let mut scene = Scene::started().await;
    let other = scene.node.run("other", OTHER, &[("app", roomy(ROOMY))]);
    scene.agent.stop();
    scene.agent.set("--workers", "1");
    scene.agent.write("other.yaml", &other.manifest());
    scene.agent.start().await;
    scene.agent.reaches("other", "NotManaged").await;
    // The container used more than its new limit before.
    scene.spawn(&churn::command(90, 90));
    scene
        .agent
        .wait_for("memory to be used", || scene.usage() > 80 << 20)
        .await;
    scene.node.end_last_process();
    scene
        .agent
        .wait_for("memory to be free", || scene.usage() < 20 << 20)
        .await;

    let slow = scene.resize(60);
    let quick = async {
        let mut request = scene.limit(ROOMY + 50);
        request.pod = other.full_name();
        scene.agent.resize(request).await.unwrap()
    };
    tokio::pin!(slow);
    tokio::pin!(quick);
    let (quick, slow) = tokio::select! {
        slow = &mut slow => panic!("nothing was looked at: {slow:#?}"),
        quick = &mut quick => (quick, slow.await),
    };
    assert_eq!(
        (quick.outcome.as_str(), slow.outcome.as_str()),
        ("Applied", "Applied"),
        "{slow:#?}"
    );
    assert!(slow.sequence > quick.sequence);
    assert_eq!(scene.limits(), [60, 60]);
}
