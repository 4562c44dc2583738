//! The kubelet's own actions on cgroups.

use serde_json::json;
use vscaled::model::{CpuShares, Setting, Settings};

use super::{AT_FIRST, LARGER, SMALLER, Scene, WEB};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

#[tokio::test]
async fn a_kubelets_restart_and_upkeep_undo_nothing() {
    let Some(mut scene) = Scene::resized("cluster_kubelet::kubelet::neither_a_restart").await else {
        return;
    };
    let before = scene.runs(WEB).await;
    scene.kubelet.stop();
    scene.recommend(&SMALLER);
    scene.settles(WEB, &SMALLER).await;
    scene.kubelet.launch(&scene.containerd);

    // A new pod proves that the kubelet works again, and makes it update the cgroups of the QoS classes.
    scene.make_pod("bare", &json!([]), &AT_FIRST);
    scene.runs("bare").await;
    let burstable = before.cgroup.parent().unwrap();
    let requested: u64 = [AT_FIRST, AT_FIRST]
        .iter()
        .flatten()
        .map(|(_, amounts)| amounts.cpu)
        .sum();
    let shares = CpuShares::new(requested * 1024 / 1000);
    let kubelets = Settings::from_iter([Setting::CpuShares(shares)]);
    let up_to_date = || scene.containerd.cgroups().holds(&burstable, &kubelets);
    scene
        .agent
        .wait_for("the kubelet to count both pods as they are declared", up_to_date)
        .await;
    assert!(scene.holds(&before, &SMALLER));

    scene.kill(&before.containers["app"]);
    let restarted = async || {
        let pod = scene.running(WEB)?;
        (pod.containers["app"].id != before.containers["app"].id).then_some(pod)
    };
    let after = scene.agent.until("the container to run again", restarted).await;
    assert_eq!(
        after.containers["side"], before.containers["side"],
        "it was not restarted"
    );
    scene.settles(WEB, &SMALLER).await;
}

#[tokio::test]
async fn a_pod_deleted_amid_changes_leaves_nothing() {
    let Some(scene) = Scene::resized("cluster_kubelet::kubelet::a_pod_that_is_deleted").await else {
        return;
    };
    let gone = scene.runs(WEB).await;
    let delete = ["--namespace=test", "delete", "pod", WEB, "--wait=false"];
    scene.cluster.kubectl(&delete, "");
    // Some of these changes happen before the containers end, some in between, some after.
    for step in 0..8 {
        let app = Amounts::doubled(200 + 10 * step, 90 + step);
        scene.recommend(&[("app", app), LARGER[1]]);
    }
    let deleted = || !scene.exists(WEB);
    scene.agent.wait_for("the pod to be gone", deleted).await;
    scene.recommend(&SMALLER);
    scene.make_pod(WEB, &objects::owned(&scene.cluster), &AT_FIRST);
    let next = scene.settles(WEB, &SMALLER).await;
    assert_ne!(next.cgroup, gone.cgroup);
    let problems = scene.agent.get().await.agent.unwrap().problems;
    assert!(problems.is_empty(), "{problems:#?}");
}
