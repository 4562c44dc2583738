//! The API server goes away and comes back.

use super::{AT_FIRST, LARGER, Scene};
use crate::support::amounts::Amounts;

const OTHER: [(&str, Amounts); 1] = [("app", Amounts::doubled(200, 96))];

#[tokio::test]
async fn what_was_decided_is_enforced_while_the_api_server_is_away_and_what_is_new_is_done_when_it_is_back() {
    let Some(mut scene) = Scene::started("cluster_api::outages::what_was_decided_is_enforced").await else {
        return;
    };
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;

    scene.cluster.stop();
    scene.agent.reports(&["cannot be reached"]).await;
    // Somebody puts the old values back: they do not stay.
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
async fn an_api_server_that_hangs_is_noticed_and_followed_again_when_it_answers() {
    let Some(scene) = Scene::started("cluster_api::outages::an_api_server_that_hangs").await else {
        return;
    };
    scene.make_vpa("InPlace");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    scene.cluster.hang(true);
    // Nobody answers the connection's pings any more.
    scene.agent.reports(&["cannot be reached", "more like it"]).await;
    scene.cluster.hang(false);
    scene.recommend(&OTHER);
    scene.settles(&OTHER).await;
}
