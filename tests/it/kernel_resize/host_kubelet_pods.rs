//! Pods come from the kubelet's socket. It has what the API server does not tell: pods that are new in an outage of the agent's
//! link alone, and one that ends beside its namesake. `cluster_today::kubelet_pods` has a real kubelet's.

use serde_json::json;

use super::{AT_FIRST, Amounts, SMALLER, Scene, object, resources};
use crate::support::apimodel::PodsSocket;
use crate::support::bare::BarePod;

const OTHER: &str = "web-5c4f-y";
const UIDS: [&str; 2] = [
    "0a1b2c3d-0000-4000-8000-000000000072",
    "0a1b2c3d-0000-4000-8000-000000000073",
];

impl Scene {
    /// An agent that reads its pods from the kubelet.
    async fn by_the_kubelet() -> (Self, PodsSocket) {
        let mut scene = Self::new().await;
        let socket = scene.api.pods_socket();
        scene.agent.set("--source", "kubelet");
        scene.agent.set("--kubelet-socket", socket.path());
        scene.start().await;
        (scene, socket)
    }

    /// Starts another pod.
    fn runs_another(&mut self, name: &'static str, uid: &'static str) -> BarePod {
        self.node.run(name, uid, &AT_FIRST)
    }
}

#[tokio::test]
async fn a_pod_new_in_an_outage_is_resized() {
    let (mut scene, _socket) = Scene::by_the_kubelet().await;
    scene.cut().await;
    let other = scene.runs_another(OTHER, UIDS[0]);
    scene.api.put("pods", object(&other, "web-5c4f"));
    scene.agent.reaches(OTHER, "NotManaged").await;
    let by_hand = Amounts {
        memory_limit: Some(256),
        ..AT_FIRST[0].1
    };
    let request = super::host_others::limits(&other, None, Some("256Mi"));
    let change = scene.agent.resize(request).await.unwrap();
    assert_eq!(change.outcome, "SpecLater", "{change:#?}");
    assert!(scene.node.holds_as_specified(&other, &[("app", by_hand)]));
    scene.mend();
    let spec = || scene.api.get("pods", &other.full_name()).unwrap()["spec"]["containers"][0]["resources"].clone();
    scene
        .agent
        .wait_for("the spec to follow", || spec() == resources(by_hand))
        .await;
}

#[tokio::test]
async fn a_namesake_outlives_the_pod_before() {
    let (mut scene, socket) = Scene::by_the_kubelet().await;
    let before = scene.runs_another(OTHER, UIDS[0]);
    let mut ending = object(&before, "web-5c4f");
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    scene.api.put("pods", ending.clone());
    scene.agent.reaches(OTHER, "NotManaged").await;
    // The kubelet has both pods until the first has ended; the API server has forgotten it.
    socket.put_own(ending);
    let after = scene.runs_another(OTHER, UIDS[1]);
    scene.api.put("pods", object(&after, "web-5c4f"));
    let is_new = async || {
        scene
            .agent
            .pod(OTHER)
            .await
            .filter(|pod| pod.uid == after.uid)
            .map(drop)
    };
    scene.agent.until("the new pod", is_new).await;
    socket.take_own();
    scene.recommend(&SMALLER);
    scene.settles(&SMALLER).await;
    let is_resized = || scene.node.holds_as_specified(&after, &SMALLER);
    scene.agent.wait_for("the new pod to be resized", is_resized).await;
}
