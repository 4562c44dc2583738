//! kubectl shows operators which values are applied to a pod.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{LARGER, SMALLER, Scene, WEB};
use crate::support::amounts::Amounts;
use crate::support::cluster::{User, objects};

const ANNOTATION: &str = "vscaled.io/applied";

impl Scene {
    /// The pod at the API server.
    fn shown(&self, name: &str) -> Value {
        self.cluster.get(&format!("{}/{name}", objects::PODS))
    }

    fn annotation(&self, name: &str) -> Option<Value> {
        let said = &self.shown(name)["metadata"]["annotations"][ANNOTATION];
        said.as_str().map(|said| serde_json::from_str(said).unwrap())
    }

    async fn is_annotated_with(&self, name: &str, containers: &[(&str, Amounts)]) {
        let resources = containers
            .iter()
            .map(|(name, amounts)| (*name, objects::resources(*amounts)));
        let wanted = json!(resources.collect::<BTreeMap<_, _>>());
        let what = format!("{name} to say {wanted}");
        self.agent
            .wait_for(&what, || self.annotation(name).as_ref() == Some(&wanted))
            .await;
    }

    async fn has_no_annotation(&self, name: &str) {
        let what = format!("{name} to say nothing");
        self.agent.wait_for(&what, || self.annotation(name).is_none()).await;
    }
}

#[tokio::test]
async fn a_pod_says_what_is_applied_to_it_for_as_long_as_anything_is() {
    let Some(scene) = Scene::resized("cluster_kubelet::applied::a_pod_says").await else {
        return;
    };
    scene.is_annotated_with(WEB, &LARGER).await;
    scene.recommend(&SMALLER);
    scene.is_annotated_with(WEB, &SMALLER).await;
    let shown = scene.shown(WEB);

    // A user removes the annotation.
    let annotation = format!("{ANNOTATION}-");
    let annotate = ["--namespace=test", "annotate", "pod", WEB, annotation.as_str()];
    scene.cluster.kubectl(&annotate, "");
    scene.is_annotated_with(WEB, &SMALLER).await;

    // The agent changed nothing else.
    let again = scene.shown(WEB);
    assert_eq!(again["spec"], shown["spec"]);
    assert_eq!(again["metadata"]["labels"], shown["metadata"]["labels"]);

    let delete = ["--namespace=test", "delete", "verticalpodautoscaler", "web"];
    scene.cluster.kubectl(&delete, "");
    scene.has_no_annotation(WEB).await;
    let problems = scene.agent.get().await.agent.unwrap().problems;
    assert!(problems.is_empty(), "{problems:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_restored_says_nothing() {
    let Some(mut scene) = Scene::resized("cluster_kubelet::applied::a_pod_that_was_restored").await else {
        return;
    };
    scene.is_annotated_with(WEB, &LARGER).await;
    scene.agent.stop();
    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert_eq!(scene.annotation(WEB), None);
}

#[tokio::test]
async fn a_missing_rule_is_named_and_resizes_go_on() {
    let Some(scene) = Scene::started("cluster_kubelet::applied::an_agent_without_the_right").await else {
        return;
    };
    scene.cluster.apply(&objects::vpa("InPlaceOrRecreate"));
    scene.cluster.grant_without(objects::LEGACY, &["pods/status"]);
    let may = [
        "auth",
        "can-i",
        "patch",
        "pods",
        "--subresource=status",
        "--namespace=test",
        "--as=system:serviceaccount:vscaled:vscaled",
    ];
    let taken = || scene.cluster.try_kubectl(User::Admin, &may, "").is_err();
    scene.agent.wait_for("the right to be taken away", taken).await;
    scene.recommend(&LARGER);
    scene.settles(WEB, &LARGER).await;
    scene.agent.reports(&[ANNOTATION, "pods/status", "patch"]).await;
    assert_eq!(scene.annotation(WEB), None);

    scene.cluster.grant(objects::LEGACY);
    scene.recommend(&SMALLER);
    scene.settles(WEB, &SMALLER).await;
}
