//! Other writers act on the same pods.

use serde_json::json;

use super::{APP, LARGER, Scene};
use crate::support::amounts::Amounts;

#[tokio::test]
async fn only_the_resource_of_an_hpa_is_left() {
    let Some(scene) = Scene::started("cluster_api::others::a_resource_that_an_hpa_scales_on").await else {
        return;
    };
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    scene.cluster.apply(&json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "test"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }));
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&LARGER);
    let only_memory = Amounts {
        cpu: APP.cpu,
        cpu_limit: APP.cpu_limit,
        ..LARGER[0].1
    };
    scene.settles(&[("app", only_memory)]).await;
    let causes = scene.agent.history().await;
    assert_eq!(causes.len(), 1, "{causes:#?}");

    let delete = ["--namespace=test", "delete", "horizontalpodautoscaler", "web"];
    scene.cluster.kubectl(&delete, "");
    scene.settles(&LARGER).await;
}

#[tokio::test]
async fn a_competing_updater_is_named() {
    let Some(scene) = Scene::started("cluster_api::others::an_updater_that_resizes").await else {
        return;
    };
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    let annotate = [
        "--namespace=test",
        "annotate",
        "pod",
        scene.pod.name,
        "vpaInPlaceUpdated=true",
    ];
    scene.cluster.kubectl(&annotate, "");
    scene
        .agent
        .reports(&["updater", "VPA test/web", scene.pod.name, "vscaled.io/act"])
        .await;

    // As the message says. Afterwards only the agent acts on the VPA.
    let mut vpa = crate::support::cluster::objects::vpa("Off");
    vpa["metadata"]["annotations"] = json!({"vscaled.io/act": "true"});
    scene.cluster.apply(&vpa);
    let content = async || scene.agent.get().await.agent.filter(|agent| agent.problems.is_empty());
    scene.agent.until("no problem to be left", content).await;
    scene.settles(&LARGER).await;
}
