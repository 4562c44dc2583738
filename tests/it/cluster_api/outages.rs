//! Outages of the API server.

use vscaled::control::proto;

use super::{AT_FIRST, LARGER, Scene};
use crate::support::amounts::Amounts;

const OTHER: [(&str, Amounts); 1] = [("app", Amounts::doubled(200, 96))];

#[tokio::test]
async fn decisions_hold_without_the_api_server_and_catch_up() {
    let Some(mut scene) = Scene::started("cluster_api::outages::what_was_decided_is_enforced").await else {
        return;
    };
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;

    scene.cluster.stop();
    scene.agent.reports(&["cannot be reached"]).await;
    // A foreign writer restores the old values, and the agent corrects them.
    let container = scene.pod.containers["app"].cgroup.clone();
    let before = AT_FIRST[0].1.settings(scene.node.cgroups().version());
    scene.node.put(&container, &before);
    scene.settles(&LARGER).await;

    scene.cluster.launch();
    scene.recommend(&OTHER);
    scene.settles(&OTHER).await;
    let content = async || scene.agent.get().await.agent.filter(|agent| agent.problems.is_empty());
    scene.agent.until("no problem to be left", content).await;
}

#[tokio::test]
async fn a_hanging_api_server_is_noticed_and_followed_again() {
    let Some(scene) = Scene::started("cluster_api::outages::an_api_server_that_hangs").await else {
        return;
    };
    scene.make_vpa("InPlace");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    scene.cluster.hang(true);
    // No process answers the pings of the connection any more.
    scene.agent.reports(&["cannot be reached", "more like it"]).await;
    scene.cluster.hang(false);
    scene.recommend(&OTHER);
    scene.settles(&OTHER).await;
}

#[tokio::test]
async fn limits_are_set_and_released_by_hand_while_the_api_server_is_away() {
    let Some(mut scene) = Scene::started("cluster_api::outages::limits_are_set_and_released").await else {
        return;
    };
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;

    scene.cluster.stop();
    scene.agent.reports(&["cannot be reached"]).await;
    let by_hand = Amounts {
        memory_limit: Some(320),
        ..LARGER[0].1
    };
    let name = scene.pod.full_name();
    let request = |ttl_us: Option<u64>| proto::ResizeRequest {
        pod: name.clone(),
        containers: vec![proto::ContainerValues {
            name: "app".to_owned(),
            values: Some(proto::Requirements {
                limits: Some(proto::Amounts {
                    cpu: None,
                    memory: Some("320Mi".to_owned()),
                }),
                requests: None,
            }),
        }],
        ttl_us,
        ..proto::ResizeRequest::default()
    };
    for ttl_us in [None, Some(1_000_000)] {
        let change = scene.agent.resize(request(ttl_us)).await.unwrap();
        let holds = scene.node.holds(&scene.pod, &[("app", by_hand)]);
        assert!(holds, "answered before it was there: {change:#?}");
        if ttl_us.is_none() {
            scene.agent.release(&name).await.unwrap();
            let holds = scene.node.holds(&scene.pod, &LARGER);
            assert!(holds, "answered before it was taken back");
        }
        scene.settles(&LARGER).await;
    }
    // The override that exists when the API server returns stays in force until it is released.
    scene.agent.resize(request(None)).await.unwrap();
    scene.cluster.launch();
    let content = async || scene.agent.get().await.agent.filter(|agent| agent.problems.is_empty());
    scene.agent.until("no problem to be left", content).await;
    scene.settles(&[("app", by_hand)]).await;
    scene.agent.release(&name).await.unwrap();
    scene.settles(&LARGER).await;
}
