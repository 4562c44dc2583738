//! The agent does not enforce cpu limits that the kubelet does not enforce.

use serde_json::json;

use super::{AT_FIRST, LARGER, SMALLER, Scene, WEB};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

/// The same amounts without a cpu limit.
fn unbounded(containers: [(&'static str, Amounts); 2]) -> [(&'static str, Amounts); 2] {
    containers.map(|(name, amounts)| {
        let unbounded = Amounts {
            cpu_limit: None,
            ..amounts
        };
        (name, unbounded)
    })
}

#[tokio::test]
async fn a_kubelet_without_quotas_gets_none() {
    let configured = json!({"cpuCFSQuota": false});
    let Some(mut scene) = Scene::configured("cluster_kubelet::quotas::no_quota", &configured).await else {
        return;
    };
    scene.agent.set("--sweep-interval", "1s");
    scene.agent.start().await;
    scene.agent.reaches(WEB, "NotManaged").await;
    let pod = scene.runs(WEB).await;
    assert!(scene.holds(&pod, &unbounded(AT_FIRST)), "what the kubelet wrote");
    scene.cluster.apply(&objects::vpa("InPlaceOrRecreate"));
    for targets in [LARGER, SMALLER] {
        scene.recommend(&targets);
        let pod = scene.settles(WEB, &unbounded(targets)).await;
        scene.kill(&pod.containers["app"]);
        let restarted = async || {
            scene
                .running(WEB)
                .filter(|now| now.containers["app"] != pod.containers["app"])
        };
        scene.agent.until("the container to run again", restarted).await;
        scene.settles(WEB, &unbounded(targets)).await;
    }
    let passes = scene.agent.history().await.len();
    // Long enough for two periodic passes.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!(scene.agent.history().await.len(), passes, "nothing is drift");
}
