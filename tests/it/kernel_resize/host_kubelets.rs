//! The agent's facts about the node's kubelet: its version, and whether it resizes in place, before a pod's status
//! shows that. A test says which version there is, 1.20 to 1.36, what a status says, and since when a container runs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use vscaled::model::MemoryLimit;

use super::host_faults::patches;
use super::host_others::limits;
use super::{APP, AT_FIRST, LARGER, NAME, NODE, Scene, resources};
use crate::support::apimodel::Effect;

const QUOTA: &str = "pods \"web-5c4f-x\" is forbidden: exceeded quota: q, requested: limits.memory=256Mi, used: \
                     limits.memory=128Mi, limited: limits.memory=150Mi";

impl Scene {
    /// Sets the kubelet's version in the Node object.
    fn kubelet_is(&self, version: &str) {
        self.api.change("nodes", NODE, |node| {
            node["status"]["nodeInfo"] = json!({"kubeletVersion": version});
        });
    }

    /// Removes the containers' resources from the pod's status, and sets the time since the container's start.
    fn unreported(&self, for_seconds: i64) {
        let started = Timestamp::now() - SignedDuration::from_secs(for_seconds);
        self.api.change("pods", NAME, |pod| {
            let status = pod["status"]["containerStatuses"][0].as_object_mut().unwrap();
            status.remove("resources");
            status.remove("allocatedResources");
            status["state"] = json!({"running": {"startedAt": started.to_string()}});
        });
    }

    /// The kubelet reports the container's resources, equal to its spec.
    fn reported(&self) {
        self.api.change("pods", NAME, |pod| {
            let has = pod["spec"]["containers"][0]["resources"].clone();
            pod["status"]["containerStatuses"][0]["allocatedResources"] = has["requests"].clone();
            pod["status"]["containerStatuses"][0]["resources"] = has;
        });
    }

    /// A pod of this kubelet without resources in its status, with this time since the container's start, and a
    /// recommendation.
    async fn unreported_by(version: &str, for_seconds: i64) -> Self {
        let mut scene = Self::new().await;
        scene.kubelet_is(version);
        scene.unreported(for_seconds);
        scene.start().await;
        scene.recommend(&LARGER);
        scene
    }

    fn calls(&self) -> [usize; 2] {
        ["dry-run pods/resize", "patch pods/resize"].map(|call| self.api.calls(call))
    }

    fn pod_limit(&self) -> Option<MemoryLimit> {
        self.node.held(&self.pod)["pod"].memory_limit()
    }
}

#[tokio::test]
async fn the_kubelets_version_decides_the_rules() {
    let mut scene = Scene::new().await;
    // An init container without limits leaves the pod's limit undeclared for kubelets from 1.27 on.
    scene.unreported(3600);
    scene.api.change("pods", NAME, |pod| {
        pod["spec"]["initContainers"] = json!([{"name": "init", "image": "none", "resources": {}}]);
    });
    scene.kubelet_is("v1.30.4");
    scene.start().await;
    let wider = limits(&scene.pod, None, Some("256Mi"));
    scene.agent.resize(wider).await.unwrap();
    scene.agent.reaches(NAME, "InSync").await;
    let before = MemoryLimit::Bytes(APP.memory_limit.unwrap() << 20);
    assert_eq!(scene.pod_limit(), Some(before), "an undeclared limit is left as it is");

    // Another kubelet on the same node: the agent plans every pod again without a request.
    scene.kubelet_is("v1.20.2");
    let follows = || scene.pod_limit() == Some(MemoryLimit::Bytes(256 << 20));
    scene.agent.wait_for("the pod to follow its container", follows).await;
    let checks = scene.agent.client().await.doctor().await.unwrap().checks;
    let kubelet = checks.iter().find(|check| check.name == "kubelet").unwrap();
    assert!(
        kubelet.found.contains("rules of 1.20 (as its Node object states)"),
        "{kubelet:?}"
    );
}

#[tokio::test]
async fn a_new_pod_waits_for_its_status() {
    let scene = Scene::unreported_by("v1.36.2", 1).await;
    scene
        .reaches_with_detail("Working", "waits until its kubelet (1.36) reports")
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(scene.holds(&AT_FIRST), "the kubelet was bypassed");
    assert_eq!(scene.calls(), [0, 0]);
    scene.reported();
    scene.settles(&LARGER).await;
    assert_eq!((scene.spec(), scene.calls()), (resources(LARGER[0].1), [0, 1]));
    scene.confirmed(&LARGER).await;
}

#[tokio::test]
async fn a_pod_waits_where_a_neighbour_is_resized() {
    let mut scene = Scene::new().await;
    let beside = scene
        .node
        .run("beside", "0a1b2c3d-0000-4000-8000-000000000073", &AT_FIRST);
    let mut reported = super::object(&beside, "none");
    reported["metadata"]["ownerReferences"] = json!([]);
    scene.api.put("pods", reported);
    scene.unreported(1);
    scene.start().await;
    scene.recommend(&LARGER);
    scene
        .reaches_with_detail("Working", "waits until its kubelet reports")
        .await;
    assert!(scene.holds(&AT_FIRST));
    scene.reported();
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
}

#[tokio::test]
async fn a_kubelet_without_the_gate_ends_the_wait() {
    // The container runs for longer than any kubelet takes to report it.
    let scene = Scene::unreported_by("v1.34.3", 3600).await;
    scene.settles(&LARGER).await;
    assert_eq!((scene.spec(), scene.calls()), (resources(AT_FIRST[0].1), [0, 0]));
}

#[tokio::test]
async fn a_wait_for_an_unknown_gate_ends() {
    let scene = Scene::unreported_by("v1.33.0", 55).await;
    scene
        .reaches_with_detail(
            "Working",
            "a kubelet that reports none by then has resizing in place switched off",
        )
        .await;
    assert!(scene.holds(&AT_FIRST));
    scene.settles(&LARGER).await;
    assert_eq!(scene.calls(), [0, 0]);
}

#[tokio::test]
async fn a_quota_undoes_an_earlier_direct_write() {
    let scene = Scene::unreported_by("v1.34.3", 3600).await;
    scene.settles(&LARGER).await;
    // An administrator turns the feature gate on.
    scene
        .api
        .fault(patches(None, Effect::Says(403, "Forbidden", QUOTA, None)));
    scene.reported();
    scene.reaches_with_detail("Refused", "exceeded quota").await;
    scene.holds_soon(&AT_FIRST).await;
    let denied = scene.passes("Refused").await;
    assert!(denied.reason.contains("exceeded quota"), "{denied:#?}");
    assert_eq!(scene.spec(), resources(AT_FIRST[0].1));
    scene.api.mend();
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
}

#[tokio::test]
async fn an_api_server_without_resize_is_asked_again() {
    let scene = Scene::started().await;
    scene.api.fault(patches(None, Effect::Unknown));
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(AT_FIRST[0].1));
    assert_eq!(scene.calls(), [0, 1], "the only request is the refused one");
    scene.api.mend();
    let follows = || scene.spec() == resources(LARGER[0].1);
    scene.agent.wait_for("the spec to follow", follows).await;
    scene.confirmed(&LARGER).await;
}

#[tokio::test]
async fn an_upgraded_kubelet_is_tried_at_once() {
    let scene = Scene::started().await;
    scene.kubelet_is("v1.32.0");
    scene.api.fault(patches(None, Effect::Unknown));
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    // A refusal at the end of the pause of 10 s would begin one of 20 s.
    let refusals = || scene.agent.log().matches("asked_again_in=10s").count();
    let before = refusals();
    assert!(before > 0, "{}", scene.agent.log());
    scene.kubelet_is("v1.33.1");
    scene
        .agent
        .wait_for("the API server to be asked anew", || refusals() > before)
        .await;
    scene.api.mend();
    let follows = || scene.spec() == resources(LARGER[0].1);
    scene.agent.wait_for("the spec to follow", follows).await;
}
