//! Pods from the kubelet's own socket (KEP-4188), where its version has one without a feature gate.

use serde_json::json;

use super::{APP, LARGER, Scene, kubelet_minor, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;
use crate::support::skipped;

/// The first minor version of kubelets with the gate on.
const LEAST: u32 = 37;

#[tokio::test(flavor = "multi_thread")]
async fn pods_come_from_the_kubelet_before_and_after_it_was_killed() {
    const NAME: &str = "cluster_today::kubelet_pods::pods_come_from_the_kubelet";
    if kubelet_minor() < LEAST {
        return skipped(NAME, "this kubelet has no list of its pods");
    }
    let Some(mut scene) = Scene::alone(NAME).await else {
        return;
    };
    scene.agent.set("--source", "kubelet");
    scene.agent.set("--kubelet-socket", scene.today.pods_socket());
    // Nothing about pods is read at the API server.
    let before = scene.follows_app().await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(LARGER).await;
    nothing_restarted(&before, &resized);

    let levels = scene.levels(&resized);
    scene.parts().kubelet.stop();
    scene.agent.reports(&["the kubelet lists no pods"]).await;
    assert_eq!(scene.levels(&resized), levels, "nothing is taken back");
    // A kubelet without an API server has a socket, and does not know all its pods yet.
    scene.parts().server.stop();
    scene.launch_kubelet();
    scene
        .agent
        .reports(&["the kubelet lists no pods", "initializing"])
        .await;
    scene.parts().server.launch();
    let other = Amounts::doubled(150, 80);
    scene.recommend(&[("app", other)]);
    let after = scene.app_reaches(other).await;
    nothing_restarted(&before, &after);

    // A pod that comes now is known as well.
    let spec = json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]});
    scene.make_pod("web-5c4f-y", &spec);
    let second = scene.is_resized("web-5c4f-y", "app", &objects::resources(other)).await;
    scene.agent.reaches("web-5c4f-y", "InSync").await;
    assert_eq!(second["status"]["containerStatuses"][0]["restartCount"], 0);
}
