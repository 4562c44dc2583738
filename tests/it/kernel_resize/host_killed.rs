//! An agent that is killed between two steps of a resize, while an answer is held back or lost: the next one knows which
//! requests were its own.

use std::time::Duration;

use serde_json::{Value, json};

use super::host_faults::patches;
use super::{Amounts, LARGER, NAME, SMALLER, Scene, UID, resources};
use crate::support::apimodel::Effect;

const PATCH: &str = "patch pods/resize";
const THEIRS: &str = "another client changed the spec";

impl Scene {
    fn patches_meet(&self, effect: Effect) {
        self.api.fault(patches(Some(1), effect));
    }

    /// Kills the agent, and starts the next one with an API server without faults.
    async fn is_killed(&mut self) {
        self.agent.kill();
        self.api.mend();
        self.agent.start().await;
    }
}

#[tokio::test]
async fn before_the_api_server_has_done_it_asks_again() {
    let mut scene = Scene::managed().await;
    let patches = scene.api.calls(PATCH);
    scene.patches_meet(Effect::Slow(Duration::from_secs(3600)));
    scene.recommend(&LARGER);
    let asks = || scene.api.calls(PATCH) > patches;
    scene.agent.wait_for("the API server to be asked", asks).await;
    assert_eq!(scene.spec(), resources(SMALLER[0].1));
    scene.is_killed().await;
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
}

#[tokio::test]
async fn an_unanswered_request_is_recognised() {
    let mut scene = Scene::managed().await;
    scene.patches_meet(Effect::Mute);
    scene.recommend(&LARGER);
    let wanted = resources(LARGER[0].1);
    scene
        .agent
        .wait_for("the spec to change", || scene.spec() == wanted)
        .await;
    let text = std::fs::read_to_string(scene.agent.state_file()).unwrap();
    let state: Value = serde_json::from_str(&text).unwrap();
    let standing = &state["pods"][UID]["standing"];
    // Once a watch has delivered the spec, the agent knows that the request was applied.
    let mut known = ["asking", "asked"]
        .map(|noted| &standing[noted]["targets"][0])
        .into_iter();
    assert!(known.any(|noted| noted["limits"] == wanted["limits"]), "{standing}");
    assert_eq!(standing["recommended"]["targets"][0]["limits"], wanted["limits"]);
    let patches = scene.api.calls(PATCH);
    scene.is_killed().await;
    scene.settles(&LARGER).await;
    assert_eq!(scene.api.calls(PATCH), patches, "asked again for what was there");
    assert!(!scene.agent.log().contains(THEIRS), "{}", scene.agent.log());
    // The next change shows which amounts the agent recognizes as its own.
    scene.recommend_widely(&LARGER).await;
    let theirs = Amounts::doubled(310, 130);
    scene
        .api
        .resize(NAME, &json!([{"name": "app", "resources": resources(theirs)}]))
        .unwrap();
    scene.confirmed(&[("app", theirs)]).await;
    scene.settles(&[("app", theirs)]).await;
    assert_eq!(scene.spec(), resources(theirs));
}

#[tokio::test]
async fn the_way_back_is_known_before_the_answer() {
    let mut scene = Scene::managed().await;
    scene.patches_meet(Effect::Mute);
    let by_hand = [(
        "app",
        Amounts {
            cpu_limit: Some(800),
            ..SMALLER[0].1
        },
    )];
    let request = super::host_others::limits(&scene.pod, Some("800m"), None);
    let mut client = scene.agent.client().await;
    let asked = tokio::spawn(async move { client.resize(request).await });
    let wanted = resources(by_hand[0].1);
    scene
        .agent
        .wait_for("the spec to change", || scene.spec() == wanted)
        .await;
    scene.is_killed().await;
    assert!(asked.await.unwrap().is_err(), "nobody has answered");
    scene.settles(&by_hand).await;
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    scene.settles(&SMALLER).await;
    assert_eq!(scene.spec(), resources(SMALLER[0].1));
}

#[tokio::test]
async fn a_later_recommendation_ignores_an_override() {
    let mut scene = Scene::started().await;
    let request = super::host_others::limits(&scene.pod, Some("800m"), None);
    scene.agent.resize(request).await.unwrap();
    scene.agent.kill();
    scene.recommend(&LARGER);
    scene.agent.start().await;
    let by_hand = [(
        "app",
        Amounts {
            cpu_limit: Some(800),
            ..LARGER[0].1
        },
    )];
    scene.settles(&by_hand).await;
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
}

#[tokio::test]
async fn a_killed_agent_continues_its_resize() {
    let mut scene = Scene::managed().await;
    for (round, millis) in [0, 1, 2, 4, 6, 8, 12, 16, 24, 40].into_iter().enumerate() {
        let wanted = if round % 2 == 0 { &LARGER } else { &SMALLER };
        scene.recommend(wanted);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        scene.is_killed().await;
        scene.settles(wanted).await;
        scene.confirmed(wanted).await;
        assert!(
            !scene.agent.log().contains(THEIRS),
            "killed after {millis} ms: {}",
            scene.agent.log()
        );
    }
}

#[tokio::test]
async fn values_stay_while_the_api_server_is_silent() {
    let mut scene = Scene::managed().await;
    let request = super::host_others::limits(&scene.pod, Some("500m"), None);
    scene.agent.resize(request).await.unwrap();
    scene.agent.stop();
    let answering = scene.api.hold_answers(&["list", "watch"], "pods", None);
    scene.agent.set("--sweep-interval", "1s");
    scene.agent.start().await;
    // The agent runs a pass meanwhile.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    answering.cancel();
    let pod = scene.agent.reaches(NAME, "InSync").await;
    assert!(pod.r#override.is_some(), "{pod:#?}");
}

#[tokio::test]
async fn an_observed_decision_waits_for_the_sources() {
    let mut scene = Scene::new().await;
    let (spec, patches) = (scene.spec(), scene.api.calls(PATCH));
    scene.agent.set("--observe-only", "true");
    scene.start().await;
    scene.recommend(&SMALLER);
    scene.agent.reaches(NAME, "Working").await;
    scene.agent.stop();
    let answering = scene.api.hold_answers(&["list", "watch"], "pods", None);
    scene.agent.set("--observe-only", "false");
    scene.agent.set("--sweep-interval", "1s");
    scene.agent.start().await;
    // The agent would run a pass meanwhile.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!scene.holds(&SMALLER), "an observed recommendation is in force");
    assert_eq!((scene.spec(), scene.api.calls(PATCH)), (spec, patches));
    answering.cancel();
    scene.settles(&SMALLER).await;
}
