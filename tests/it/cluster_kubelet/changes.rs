//! The agent applies a VPA's recommendations, and the values stay.

use serde_json::json;
use vscaled::control::proto;

use super::{APP, AT_FIRST, LARGER, LEAST, SIDE, SMALLER, Scene, WEB};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

#[tokio::test]
async fn a_recommendation_becomes_the_values_of_running_containers() {
    let Some(scene) = Scene::started("cluster_kubelet::changes::a_recommendation").await else {
        return;
    };
    let before = scene.runs(WEB).await;
    scene.cluster.apply(&objects::vpa("Recreate"));
    for targets in [LARGER, SMALLER] {
        scene.recommend(&targets);
        scene.settles(WEB, &targets).await;
    }
    assert_eq!(scene.runs(WEB).await, before, "nothing was restarted");
}

#[tokio::test]
async fn a_pod_that_nothing_owns_has_what_its_operator_says() {
    let Some(scene) = Scene::started("cluster_kubelet::changes::a_pod_that_nothing_owns").await else {
        return;
    };
    scene.make_pod("bare", &json!([]), &AT_FIRST);
    let bare = scene.runs("bare").await;
    scene.agent.reaches("bare", "NotManaged").await;
    let wanted = proto::Requirements {
        requests: None,
        limits: Some(proto::Amounts {
            cpu: Some("1".to_owned()),
            memory: Some("256Mi".to_owned()),
        }),
    };
    let change = scene
        .agent
        .resize(proto::ResizeRequest {
            pod: "test/bare".to_owned(),
            containers: vec![proto::ContainerValues {
                name: "app".to_owned(),
                values: Some(wanted),
            }],
            ..proto::ResizeRequest::default()
        })
        .await
        .unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    let app = Amounts {
        cpu_limit: Some(1000),
        memory_limit: Some(256),
        ..APP
    };
    assert!(scene.holds(&bare, &[("app", app), ("side", SIDE)]));
    scene.agent.release("test/bare").await.unwrap();
    assert!(scene.holds(&bare, &AT_FIRST));
    assert_eq!(scene.runs("bare").await, bare, "nothing was restarted");
}

#[tokio::test]
async fn a_container_that_the_kubelet_starts_again_has_the_decided_values() {
    let Some(scene) = Scene::resized("cluster_kubelet::changes::a_container_that_starts_again").await else {
        return;
    };
    // The kubelet starts the container with the values of the spec, which are below or above those of the whole pod.
    for decided in [&LARGER, &LEAST] {
        scene.recommend(decided);
        let before = scene.settles(WEB, decided).await;
        scene.kill(&before.containers["app"]);
        let restarted = async || {
            scene
                .running(WEB)
                .filter(|pod| pod.containers["app"].restarts > before.containers["app"].restarts)
        };
        let after = scene.agent.until("the container to run again", restarted).await;
        assert_ne!(after.containers["app"].id, before.containers["app"].id);
        assert_eq!(after.containers["side"], before.containers["side"]);
        scene.settles(WEB, decided).await;
    }
    let history = scene.agent.history().await;
    assert!(
        history.iter().any(|change| change.cause == "container started"),
        "{history:#?}"
    );
}
