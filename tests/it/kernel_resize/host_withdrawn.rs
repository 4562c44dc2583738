//! A wish that ends takes its request along, if the kubelet has not carried the request out: what a test makes it answer, or
//! nothing yet. `cluster_today::answers` has the deferred request of a VPA that goes.

use serde_json::{Value, json};

use super::host_faults::patches;
use super::{Amounts, FULL, LARGER, NAME, ResizeResult, SMALLER, Scene, resources, vpa};
use crate::support::apimodel::Effect;

impl Scene {
    fn has_vpa(&self, change: impl Fn(&mut Value)) {
        let mut vpa = vpa(&LARGER);
        change(&mut vpa);
        self.api.put("verticalpodautoscalers", vpa);
    }

    async fn has_taken_back(&self) {
        let wanted = resources(SMALLER[0].1);
        self.agent
            .wait_for("the request to be taken back", || self.spec() == wanted)
            .await;
        self.agent.reaches(NAME, "NotManaged").await;
        self.holds_soon(&SMALLER).await;
    }
}

#[tokio::test]
async fn an_infeasible_request_ends_with_the_mode() {
    let scene = Scene::managed().await;
    scene.set_resize_result(ResizeResult::Infeasible(FULL));
    scene.recommend(&LARGER);
    scene.reaches_with_detail("Infeasible", FULL).await;
    scene.has_vpa(|vpa| vpa["spec"]["updatePolicy"]["updateMode"] = json!("Off"));
    scene.has_taken_back().await;
}

#[tokio::test]
async fn a_request_without_the_kubelets_answer_ends_with_its_annotation() {
    let scene = Scene::managed().await;
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend(&LARGER);
    scene.holds_soon(&LARGER).await;
    scene.agent.reaches(NAME, "InSync").await;
    scene.has_vpa(|vpa| vpa["metadata"]["annotations"]["vscaled.io/act"] = json!("false"));
    scene.has_taken_back().await;
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.confirmed(&SMALLER).await;
}

#[tokio::test]
async fn a_request_the_api_server_did_not_answer_ends() {
    let scene = Scene::managed().await;
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.api.fault(patches(Some(1), Effect::Torn));
    scene.recommend(&LARGER);
    let asked = || scene.spec() == resources(LARGER[0].1);
    scene.agent.wait_for("the API server to carry it out", asked).await;
    scene.api.remove("verticalpodautoscalers", "web");
    scene.has_taken_back().await;
}

#[tokio::test]
async fn a_wish_that_ended_without_an_agent_ends() {
    let mut scene = Scene::deferred().await;
    scene.agent.kill();
    scene.api.remove("verticalpodautoscalers", "web");
    scene.agent.start().await;
    scene.has_taken_back().await;
}

#[tokio::test]
async fn another_clients_pending_amount_stays() {
    let scene = Scene::deferred().await;
    let theirs = json!([{"name": "app", "resources": {"limits": {"cpu": "900m"}}}]);
    scene.api.resize(NAME, &theirs).unwrap();
    scene.api.remove("verticalpodautoscalers", "web");
    let wanted = resources(Amounts {
        cpu_limit: Some(900),
        ..SMALLER[0].1
    });
    scene
        .agent
        .wait_for("the request to be taken back", || scene.spec() == wanted)
        .await;
}
