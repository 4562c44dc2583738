//! The agent follows changes at the API server.

use super::{AT_FIRST, LARGER, Scene};
use crate::support::cluster::objects;

#[tokio::test]
async fn a_recommendation_becomes_the_kernels_values() {
    let Some(scene) = Scene::started("cluster_api::follows::a_recommendation").await else {
        return;
    };
    assert!(scene.node.holds(&scene.pod, &AT_FIRST));
    scene.make_vpa("Recreate");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    assert!(scene.node.all_run(&scene.pod));

    let told = async || {
        let events = scene.cluster.kubectl(&["--namespace=test", "get", "events"], "");
        events
            .lines()
            .find(|line| line.contains("ResourcesResized"))
            .map(str::to_owned)
    };
    let event = scene.agent.until("an Event", told).await;
    assert!(
        event.contains("pod/web-5c4f-x") && event.contains("recommendation of VPA web"),
        "{event}"
    );
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_and_its_coming_is_noticed() {
    let Some(mut scene) = Scene::new("cluster_api::follows::a_right_that_is_missing") else {
        return;
    };
    scene
        .cluster
        .kubectl(&["delete", "--filename=deploy/base/rbac.yaml"], "");
    scene.agent.start().await;
    scene
        .agent
        .reports(&["lacks the rule", "resources: [pods], verbs: [list]"])
        .await;
    scene.cluster.grant(objects::LEGACY);
    scene.agent.reaches(scene.pod.name, "NotManaged").await;
}

#[tokio::test]
async fn a_vpa_that_makes_no_sense_is_named_and_changes_nothing() {
    let Some(scene) = Scene::started("cluster_api::follows::a_vpa_that_makes_no_sense").await else {
        return;
    };
    scene.make_vpa("Auto");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    let nonsense = serde_json::json!({"recommendation": {"containerRecommendations": [
        {"containerName": "app", "target": {"cpu": "-100m"}},
    ]}});
    scene.cluster.put_status(objects::VPAS, "web", &nonsense);
    scene.agent.reports(&["test/web", "target.cpu", "-100m"]).await;
    assert!(scene.node.holds(&scene.pod, &LARGER));
    scene.recommend(&AT_FIRST);
    scene.settles(&AT_FIRST).await;
}
