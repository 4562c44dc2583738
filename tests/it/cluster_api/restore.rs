//! Removing vscaled from a node of a cluster restores the values of the specs at the API server.

use super::{AT_FIRST, LARGER, Scene};

#[tokio::test(flavor = "multi_thread")]
async fn values_go_back_to_what_the_api_server_has_as_the_spec() {
    let Some(mut scene) = Scene::started("cluster_api::restore::values_go_back").await else {
        return;
    };
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    scene.agent.stop();

    let (code, shown, error) = scene.agent.restore(&[]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{shown}");
    assert!(
        shown.contains("test/web-5c4f-x: Planned") && shown.contains("add --yes to do it"),
        "{shown}"
    );
    assert!(scene.node.holds(&scene.pod, &LARGER), "a rehearsal wrote something");

    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert!(scene.node.holds(&scene.pod, &AT_FIRST), "{shown}");
    assert!(scene.node.all_run(&scene.pod));

    // The VPA still has its recommendation, and no agent acts on it.
    let (code, shown, _) = scene.agent.restore(&[]);
    assert!(
        code == Some(0) && shown.contains("test/web-5c4f-x: as its spec says"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_specs_nothing_is_written() {
    let Some(mut scene) = Scene::started("cluster_api::restore::nothing_is_written").await else {
        return;
    };
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    scene.agent.stop();
    scene.cluster.stop();
    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!((code, shown.as_str()), (Some(1), ""), "{error}");
    assert!(
        error.contains("the specs of the pods are not known") && error.contains("cannot be reached"),
        "{error}"
    );
    assert!(scene.node.holds(&scene.pod, &LARGER));
}
