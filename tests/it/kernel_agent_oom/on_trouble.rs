//! A VPA whose changes wait for trouble: a kill starts the change.

use super::{SMALL, Scene};
use crate::support::amounts::{Amounts, vpa_manifest};

/// What the VPA recommends: more memory.
const WANTED: Amounts = Amounts::doubled(1000, 16);

#[tokio::test]
async fn a_kill_has_its_pod_changed_at_once() {
    let scene = Scene::started(&[("app", SMALL)]).await;
    let vpa = vpa_manifest("web", "web", &[("app", WANTED)]);
    let vpa = vpa.replacen("test}", "test, annotations: {vscaled.io/act: on-trouble}}", 1);
    scene.agent.write("vpa.yaml", &vpa);
    let decided = async || {
        let pod = scene.agent.pod("web").await?;
        (pod.reason == "NoTrouble").then_some(())
    };
    scene.agent.until("the change to wait for trouble", decided).await;
    scene.kill_one("app");
    let holds = || scene.node.cgroup_holds(&scene.cgroup("app"), WANTED);
    scene.agent.wait_for("the recommended memory", holds).await;
    let recommended = async || {
        let history = scene.agent.history().await;
        let mut causes = history.iter().map(|change| &change.cause);
        causes.any(|cause| cause.contains("recommendation")).then_some(())
    };
    scene.agent.until("the change in the history", recommended).await;
}
