//! Pods from the kubelet's own socket (KEP-4188), where its version has one without a feature gate.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use vscaled::model::MemoryLimit;

use super::{APP, LARGER, Scene, WEB, kubelet_minor, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;
use crate::support::{scratch, skipped};

/// The first minor version of kubelets with the gate on.
pub(super) const LEAST: u32 = 37;

const SECOND: &str = "web-5c4f-y";
const THIRD: &str = "web-5c4f-z";
/// The kubelet adds the node's name to that in the manifest.
const STATIC: &str = "proxy-node-1";

#[tokio::test(flavor = "multi_thread")]
async fn pods_come_from_the_kubelet_before_and_after_it_was_killed() {
    const NAME: &str = "cluster_today::kubelet_pods::pods_come_from_the_kubelet";
    if kubelet_minor() < LEAST {
        return skipped(NAME, "this kubelet has no list of its pods");
    }
    let manifests = tempfile::tempdir_in(scratch()).unwrap();
    let kubelet = json!({"staticPodPath": manifests.path()});
    let Some(mut scene) = Scene::on(NAME, &kubelet).await else {
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
    scene.changes_and_restores_a_static_pod(manifests.path()).await;
}

impl Scene {
    /// Runs a static pod. Returns its mirror pod, with the UID that the kubelet has for it.
    async fn runs_static(&self, manifests: &Path) -> Value {
        let spec = json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]});
        let manifest = self.pod("proxy", "proxy", &json!([]), &spec);
        let hidden = manifests.join(".proxy.json");
        fs::write(&hidden, manifest.to_string()).unwrap();
        fs::rename(hidden, manifests.join("proxy.json")).unwrap();
        let mirror = format!("{}/{STATIC}", self.pods());
        let is_there = || self.today.api.try_get(&mirror).is_ok();
        self.agent.wait_for("the mirror pod", is_there).await;
        let mut pod = self.runs(STATIC).await;
        pod["metadata"]["uid"] = pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone();
        pod
    }

    /// An operator changes a static pod in the kernel alone, because the API server resizes none. `restore`, which has the pods from
    /// the kubelet, too, gives it the values of its manifest again.
    async fn changes_and_restores_a_static_pod(&mut self, manifests: &Path) {
        let pod = self.runs_static(manifests).await;
        self.agent.reaches(STATIC, "NotManaged").await;
        let levels = self.levels(&pod);
        let change = self.limit_by_hand(STATIC, "app", "256Mi").await.unwrap();
        assert_eq!(change.outcome, "Applied", "{change:#?}");
        let (by_hand, held) = (Some(MemoryLimit::Bytes(256 << 20)), self.levels(&pod));
        assert!(held.values().all(|level| level.memory_limit() == by_hand), "{held:#?}");
        let mirror = self.object(STATIC);
        assert_eq!(mirror["spec"], pod["spec"]);
        nothing_restarted(&pod, &mirror);

        self.agent.stop();
        let (code, shown, error) = self.agent.restore(&["--yes", "--no-watch"]);
        assert_eq!(code, Some(0), "{shown}{error}");
        assert_eq!(self.levels(&pod), levels, "{shown}");
    }
}
