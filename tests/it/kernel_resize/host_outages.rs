//! An operator changes limits during an outage of the API server: the kernel has them at once, the spec follows, and
//! changes by others in the meantime take precedence. Only the agent is cut off, or an answer gets lost; in
//! `cluster_today::faults` a real API server is away.

use std::time::Duration;

use serde_json::json;
use vscaled::control::proto;

use super::host_faults::patches;
use super::{Amounts, LARGER, NAME, SMALLER, Scene, resources};
use crate::support::apimodel::{Effect, Link};

const BY_HAND: [(&str, Amounts); 1] = [(
    "app",
    Amounts {
        cpu_limit: Some(800),
        memory_limit: Some(256),
        ..SMALLER[0].1
    },
)];
const LATER: &str = "the spec follows later";
const LOST: &str = "a change made while the API server was unreachable was overwritten";

impl Scene {
    /// A pod that was resized once, and an agent that knows that the API server is unavailable.
    async fn cut_off() -> Self {
        let scene = Self::managed().await;
        scene.cut().await;
        scene
    }

    pub(super) async fn cut(&self) {
        self.api.kubelet(|kubelet| kubelet.asleep = true);
        self.api.link(Link::Cut);
        self.agent.reports(&["cannot be reached"]).await;
    }

    pub(super) fn mend(&self) {
        self.api.link(Link::Up);
        self.api.kubelet(|kubelet| kubelet.asleep = false);
    }

    fn request(&self, ttl_s: Option<u64>) -> proto::ResizeRequest {
        proto::ResizeRequest {
            ttl_us: ttl_s.map(|seconds| seconds * 1_000_000),
            ..super::host_others::limits(&self.pod, Some("800m"), Some("256Mi"))
        }
    }

    /// Sets an override, and checks that the kernel has it and the spec does not.
    async fn set_by_hand(&self) {
        let change = self.agent.resize(self.request(None)).await.unwrap();
        assert_eq!(change.outcome, "SpecLater", "{change:#?}");
        assert!(change.reason.contains(LATER), "{}", change.reason);
        assert!(self.holds(&BY_HAND), "answered before it was there");
        assert_eq!(self.spec(), resources(SMALLER[0].1));
    }

    async fn has_spec(&self, amounts: Amounts) {
        let wanted = resources(amounts);
        self.agent
            .wait_for("the spec to follow", || self.spec() == wanted)
            .await;
    }

    async fn is_reported_lost(&self, why: &str) {
        let told = async || {
            let history = self.agent.history().await;
            history
                .iter()
                .any(|change| change.cause == LOST && change.reason.contains(why))
                .then_some(())
        };
        self.agent.until("the loss to be told", told).await;
        assert!(self.agent.pod(NAME).await.unwrap().r#override.is_none());
    }
}

#[tokio::test]
async fn a_foreign_spec_wins_meanwhile() {
    let scene = Scene::managed().await;
    scene.recommend_widely(&SMALLER).await;
    scene.cut().await;
    scene.set_by_hand().await;
    let theirs = Amounts::doubled(210, 100);
    let containers = json!([{"name": "app", "resources": resources(theirs)}]);
    scene.api.resize(NAME, &containers).unwrap();
    scene.mend();
    scene
        .is_reported_lost("another client changed the pod's resources")
        .await;
    scene.confirmed(&[("app", theirs)]).await;
    scene.holds_soon(&[("app", theirs)]).await;
    assert_eq!(scene.spec(), resources(theirs));
}

#[tokio::test]
async fn a_late_denial_is_taken_back() {
    let scene = Scene::cut_off().await;
    scene.set_by_hand().await;
    let denial = "admission webhook \"quota.example.com\" denied the request: ask finance";
    scene
        .api
        .fault(patches(None, Effect::Says(400, "BadRequest", denial, None)));
    scene.mend();
    scene.is_reported_lost("ask finance").await;
    scene.api.mend();
    scene.settles(&SMALLER).await;
    assert_eq!(scene.spec(), resources(SMALLER[0].1));
}

#[tokio::test]
async fn an_agent_new_in_an_outage_keeps_values() {
    let mut scene = Scene::cut_off().await;
    scene.set_by_hand().await;
    scene.agent.kill();
    scene.agent.start().await;
    scene.reaches_with_detail("Owed", LATER).await;
    assert!(scene.holds(&BY_HAND));
    scene.mend();
    scene.has_spec(BY_HAND[0].1).await;
    scene.settles(&BY_HAND).await;
    // The agent knows the way back as well.
    scene.cut().await;
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    scene.agent.kill();
    scene.agent.start().await;
    scene.mend();
    scene.has_spec(SMALLER[0].1).await;
    scene.settles(&SMALLER).await;
}

#[tokio::test]
async fn a_silent_api_server_delays_no_operator() {
    let scene = Scene::managed().await;
    scene.api.link(Link::Silent);
    scene.set_by_hand().await;
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    assert!(scene.holds(&SMALLER));
    scene.mend();
    scene.settles(&SMALLER).await;
    assert_eq!(scene.spec(), resources(SMALLER[0].1));
}

#[tokio::test]
async fn an_unanswered_released_request_is_taken_back() {
    let scene = Scene::managed().await;
    // The agent learns of the change neither from the answer nor from a watch.
    for (verb, resource, effect) in [
        ("patch", "pods/resize", Effect::Mute),
        ("watch", "pods", Effect::Stalls),
    ] {
        scene.api.fault(crate::support::apimodel::Fault {
            verb,
            resource,
            times: None,
            effect,
        });
    }
    let change = scene.agent.resize(scene.request(None)).await.unwrap();
    assert_eq!(change.outcome, "SpecLater", "{change:#?}");
    assert_eq!(scene.spec(), resources(BY_HAND[0].1));
    let released = scene.agent.release(&scene.pod.full_name()).await.unwrap();
    assert_eq!(
        released.outcome, "SpecLater",
        "it is not known what the spec has: {released:#?}"
    );
    scene.api.mend();
    scene.has_spec(SMALLER[0].1).await;
    scene.settles(&SMALLER).await;
    assert!(!scene.agent.log().contains(LOST), "{}", scene.agent.log());
}

#[tokio::test]
async fn a_later_unanswered_request_is_recognised() {
    let scene = Scene::managed().await;
    let patch = "patch pods/resize";
    let asked = scene.api.calls(patch);
    scene
        .api
        .fault(patches(Some(1), Effect::Slow(Duration::from_secs(3600))));
    scene.recommend(&LARGER);
    let asks = || scene.api.calls(patch) > asked;
    scene.agent.wait_for("the API server to be asked", asks).await;
    scene.cut().await;
    let change = scene.agent.resize(scene.request(None)).await.unwrap();
    assert_eq!(change.outcome, "SpecLater", "{change:#?}");
    scene.api.mend();
    scene.api.fault(patches(Some(1), Effect::Torn));
    scene.mend();
    let by_hand = Amounts {
        cpu_limit: Some(800),
        ..LARGER[0].1
    };
    scene.has_spec(by_hand).await;
    scene.settles(&[("app", by_hand)]).await;
    assert!(!scene.agent.log().contains(LOST), "{}", scene.agent.log());
    assert!(scene.agent.pod(NAME).await.unwrap().r#override.is_some());
}
