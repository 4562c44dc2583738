//! Pods from the kubelet's own socket (KEP-4188), where its version has one without a feature gate.

use serde_json::json;

use super::{APP, LARGER, Scene, WEB, kubelet_minor, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;
use crate::support::skipped;

/// The first minor version of kubelets with the gate on.
const LEAST: u32 = 37;

const SECOND: &str = "web-5c4f-y";
const THIRD: &str = "web-5c4f-z";

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
    scene.agent.set("--http-address", "127.0.0.1:0");
    let before = scene.follows_app().await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(LARGER).await;
    nothing_restarted(&before, &resized);
    let spec = json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]});
    scene.make_pod(SECOND, &spec);
    scene.is_resized(SECOND, "app", &objects::resources(LARGER)).await;
    scene.agent.reaches(SECOND, "InSync").await;

    let levels = scene.levels(&resized);
    scene.parts().kubelet.stop();
    scene.agent.reports(&["the kubelet lists no pods"]).await;
    assert_eq!(scene.levels(&resized), levels, "nothing is taken back");
    // Meanwhile recommendations are followed, and a pod is deleted.
    let other = Amounts::doubled(150, 80);
    scene.recommend(&[("app", other)]);
    let wanted = objects::resources(other);
    let asked = || scene.object(WEB)["spec"]["containers"][0]["resources"] == wanted;
    scene.agent.wait_for("the resize to be asked for", asked).await;
    scene.delete(&scene.pods(), SECOND);
    // A kubelet without an API server has a socket, and does not know all its pods yet.
    scene.parts().server.stop();
    scene.launch_kubelet();
    scene
        .agent
        .reports(&["the kubelet lists no pods", "initializing"])
        .await;
    scene.parts().server.launch();
    let after = scene.app_reaches(other).await;
    nothing_restarted(&before, &after);
    let gone = async || scene.agent.pod(SECOND).await.is_none().then_some(());
    scene.agent.until("the deleted pod to be gone", gone).await;

    // A pod that comes now is known as well.
    scene.make_pod(THIRD, &spec);
    let third = scene.is_resized(THIRD, "app", &wanted).await;
    scene.agent.reaches(THIRD, "InSync").await;
    assert_eq!(third["status"]["containerStatuses"][0]["restartCount"], 0);

    // Nothing about pods is read at the API server.
    let calls = scene.api_calls().await;
    let reads = ["list", "watch"].map(|verb| format!("verb=\"{verb}\",resource=\"pods\""));
    let read = |call: &&String| reads.iter().any(|read| call.contains(read));
    assert_eq!(calls.iter().find(read), None);
    let vpas = "verb=\"watch\",resource=\"verticalpodautoscalers\"";
    assert!(calls.iter().any(|call| call.contains(vpas)), "{calls:#?}");
}
