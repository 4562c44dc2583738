//! The annotations of a VPA: the one that lets the agent act goes after a resize, and malformed ones are named once.

use serde_json::{Value, json};
use vscaled::control::proto;

use super::faults::OTHER;
use super::{APP, LARGER, Levels, Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;

/// So much of an annotation is shown.
const SHOWN: usize = 64;

impl Scene {
    /// Gives the VPA these annotations. Its mode leaves running pods alone.
    fn annotate(&self, annotations: &Value) {
        self.make_vpa_with("web", "Off", annotations, &json!({}));
    }

    /// Recommends other amounts, and waits until the agent knows them.
    async fn makes_known(&self, amounts: Amounts) {
        self.recommend(&[("app", amounts)]);
        let memory = format!("{}Mi", amounts.memory);
        let known = async || {
            let reply = self.explain(WEB).await?;
            let mut targets = reply.amounts.iter().filter_map(|amount| amount.target.as_deref());
            targets.any(|target| target == memory).then_some(())
        };
        self.agent.until("the recommendation to be known", known).await;
    }

    /// Waits until the agent says that nobody lets it act on the pod.
    async fn is_left_alone(&self) {
        let pod = async || self.agent.pod(WEB).await.filter(|pod| pod.reason == "NotActedOn");
        // Before the agent has seen the container run, the state says that it does not.
        let is_left_alone = async || pod().await.filter(|pod| pod.state == "NotManaged");
        self.agent.until("the pod to be left alone", is_left_alone).await;
    }

    /// Asserts that nobody has changed a pod, or asked for it.
    fn is_unchanged(&self, before: &Value, levels: &Levels) {
        let pod = self.object(WEB);
        assert_eq!(pod["spec"], before["spec"]);
        assert_eq!(pod["metadata"]["generation"], before["metadata"]["generation"]);
        assert_eq!(self.levels(&pod), *levels);
    }

    /// Waits for the Event about a malformed annotation. Returns its message.
    async fn is_named(&self, annotation: &str, pod: &Value) -> String {
        let words = format!("metadata.annotations[{annotation}]: ");
        let about = |event: &Value| event["message"].as_str().unwrap().contains(&words);
        let named = || self.events(WEB, "ResizeRefused").into_iter().find(about);
        let event = self.agent.until(&words, async || named()).await;
        assert_eq!(
            (&event["type"], &event["involvedObject"]["uid"]),
            (&json!("Warning"), &pod["metadata"]["uid"])
        );
        event["message"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn without_a_valid_annotation_nothing_changes() {
    let Some(mut scene) = Scene::new("cluster_today::annotations::without_the_annotation").await else {
        return;
    };
    let before = scene.runs_app().await;
    scene.agent.start().await;
    scene.annotate(&json!({"vscaled.io/act": "true"}));
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(LARGER).await;
    let levels = scene.levels(&resized);

    // What was applied stays, also with the next agent, and nothing else is.
    scene.annotate(&json!({}));
    scene.is_left_alone().await;
    scene.makes_known(OTHER).await;
    scene.is_unchanged(&resized, &levels);
    scene.agent.stop();
    scene.agent.start().await;
    scene.is_left_alone().await;
    scene.is_unchanged(&resized, &levels);

    // A user with the right to write the VPA may write any text.
    let hostile = format!("ten\n\u{1b}[2J\u{202e}{}", "9".repeat(3_000));
    let malformed = [
        ("vscaled.io/canary", hostile.as_str(), "1% to 100%"),
        ("vscaled.io/canary-bake", "200h", "1m to 168h"),
        (
            "vscaled.io/act",
            "yes",
            "true, false or on-trouble; until then the VPA's mode decides",
        ),
    ];
    for ((annotation, value, allowed), next) in malformed.into_iter().zip([APP, OTHER, APP]) {
        let mut annotations = json!({"vscaled.io/act": "true", "vscaled.io/canary": "100%"});
        annotations[annotation] = json!(value);
        scene.annotate(&annotations);
        let message = scene.is_named(annotation, &before).await;
        let shown: String = value.chars().take(SHOWN).collect();
        let end = format!("metadata.annotations[{annotation}]: {shown:?}: allowed is {allowed}");
        assert!(message.ends_with(&end) && message.len() < 300, "{message}");
        // The next recommendation is not applied either, and repeats nothing.
        scene.makes_known(next).await;
        let notes = scene.explain(WEB).await.unwrap().notes;
        assert!(notes.iter().any(|note| note.ends_with(&end)), "{notes:#?}");
        scene.is_unchanged(&resized, &levels);
    }
    let history = scene.agent.history().await;
    for (annotation, ..) in malformed {
        let words = format!("[{annotation}]");
        let is_named = |change: &&proto::Change| change.outcome == "Refused" && change.reason.contains(&words);
        assert_eq!(history.iter().filter(is_named).count(), 1, "{history:#?}");
    }
    let refusals = scene.events(WEB, "ResizeRefused");
    let counts: Vec<_> = refusals.iter().map(|event| event["count"].clone()).collect();
    assert_eq!(counts, [json!(1), json!(1), json!(1)]);

    scene.annotate(&json!({"vscaled.io/act": "true"}));
    let after = scene.app_reaches(APP).await;
    nothing_restarted(&before, &after);
}
