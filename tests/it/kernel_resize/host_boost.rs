//! Startup boosts: pods that VPA's webhook gave more cpu for their start. A test says when a pod becomes ready, how long a boost
//! lasts, and what the agent misses or may not write; `cluster_today::pairing` has the real webhook.

use jiff::Timestamp;
use serde_json::json;

use super::{Amounts, NAME, Scene, resources};
use crate::support::apimodel::{Effect, Fault};

const ANNOTATION: &str = "vpaCpuStartupBoost/app";
/// The webhook's amounts, the amounts before, and the recommended amounts.
const BOOSTED: Amounts = Amounts::doubled(1000, 64);
const BEFORE: Amounts = Amounts::doubled(100, 64);
const WANTED: Amounts = Amounts::doubled(200, 96);
/// The recommended amounts with the boosted cpu.
const BOOSTED_WANTED: [(&str, Amounts); 1] = [("app", Amounts::doubled(1000, 96))];

impl Scene {
    /// A starting pod with ten times its cpu; the boost continues for some seconds after the pod is ready. No agent
    /// runs yet.
    async fn boosted(seconds: i64) -> Self {
        let scene = Self::of(BOOSTED).await;
        scene.api.change("pods", NAME, |pod| {
            pod["metadata"]["annotations"][ANNOTATION] = resources(BEFORE).to_string().into();
        });
        scene.boost_for(seconds);
        scene
    }

    fn boost_for(&self, seconds: i64) {
        self.api.change("verticalpodautoscalers", "web", |vpa| {
            vpa["spec"]["startupBoost"] = json!({"cpu": {"type": "Factor", "factor": 10, "durationSeconds": seconds}});
        });
    }

    /// Changes the recommendation, with the same boost in the VPA.
    fn wants(&self, wanted: Amounts) {
        let list = &resources(wanted)["requests"];
        self.api.change("verticalpodautoscalers", "web", |vpa| {
            vpa["status"]["recommendation"]["containerRecommendations"] =
                json!([{"containerName": "app", "target": list, "lowerBound": list, "upperBound": list}]);
        });
    }

    fn becomes_ready(&self) -> Timestamp {
        let since = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
        self.api.change("pods", NAME, |pod| {
            pod["status"]["conditions"] =
                json!([{"type": "Ready", "status": "True", "lastTransitionTime": since.to_string()}]);
        });
        since
    }

    fn is_marked(&self) -> bool {
        self.object()["metadata"]["annotations"].get(ANNOTATION).is_some()
    }

    async fn is_unmarked(&self) {
        self.agent
            .wait_for("the boost's annotation to go", || !self.is_marked())
            .await;
    }

    /// Waits until `vscalectl explain` prints these words.
    async fn explains(&self, words: &str) {
        let explained = async || {
            let name = format!("test/{NAME}");
            let reply = self.agent.client().await.explain(name).await.ok()?;
            let said = format!("{}\n{}", reply.notes.join("\n"), reply.next);
            said.contains(words).then_some(())
        };
        self.agent.until(&format!("explain to say {words}"), explained).await;
    }

    fn caused(history: &[vscaled::control::proto::Change], cause: &str) -> Option<Timestamp> {
        let mut found = history.iter().filter(|change| change.cause == cause);
        found.next().map(|change| change.at.parse().unwrap())
    }
}

#[tokio::test]
async fn a_boost_ends_at_every_level_once_ready() {
    let mut scene = Scene::boosted(0).await;
    scene.wants(WANTED);
    scene.agent.start().await;
    scene.settles(&BOOSTED_WANTED).await;
    scene
        .explains("app: cpu keeps its startup boost until the pod is ready")
        .await;
    assert!(scene.is_marked(), "memory moved; the boost lasts");

    scene.becomes_ready();
    scene.settles(&[("app", WANTED)]).await;
    assert_eq!(scene.spec(), resources(WANTED));
    scene.is_unmarked().await;
    let history = scene.agent.history().await;
    assert!(
        Scene::caused(&history, "startup boost of VPA web ended").is_some(),
        "{history:?}"
    );
    assert_eq!(scene.api.calls("patch pods/resize"), 2);
    assert_eq!(scene.api.calls("patch pods"), 0, "only subresources are written");
    // Without its annotation, the agent treats the pod like any other.
    let larger = Amounts::doubled(300, 96);
    scene.wants(larger);
    scene.settles(&[("app", larger)]).await;
}

#[tokio::test]
async fn a_boost_beyond_readiness_ends_by_the_clock() {
    let mut scene = Scene::boosted(3600).await;
    scene.wants(Amounts {
        memory: BOOSTED.memory,
        memory_limit: BOOSTED.memory_limit,
        ..WANTED
    });
    scene.agent.start().await;
    let since = scene.becomes_ready();
    let hour = since + jiff::SignedDuration::from_hours(1);
    scene.explains(&format!("A startup boost ends at {hour:.0}")).await;
    assert!(scene.holds(&[("app", BOOSTED)]));

    let elapsed = Timestamp::now().duration_since(since).as_secs();
    let lasts = jiff::SignedDuration::from_secs(elapsed + 3);
    scene.boost_for(lasts.as_secs());
    scene.settles(&[("app", Amounts::doubled(200, 64))]).await;
    let history = scene.agent.history().await;
    let ended = Scene::caused(&history, "startup boost of VPA web ended").unwrap();
    let end = since + lasts;
    assert!(ended >= end, "{ended} is before {end}");
    eprintln!("taken back {:?} after its end", ended.duration_since(end));
    scene.is_unmarked().await;
}

#[tokio::test]
async fn a_boost_counts_only_while_a_vpa_boosts() {
    let mut scene = Scene::boosted(0).await;
    scene.wants(WANTED);
    scene.agent.start().await;
    scene.settles(&BOOSTED_WANTED).await;
    scene.agent.kill();
    scene.api.remove("verticalpodautoscalers", "web");
    scene.becomes_ready();
    scene.agent.start().await;
    scene.agent.reaches(NAME, "NotManaged").await;
    assert!(scene.holds(&BOOSTED_WANTED), "an annotation alone says nothing");

    let mut vpa = super::vpa(&[("app", WANTED)]);
    vpa["spec"]["startupBoost"] = json!({"cpu": {"type": "Factor", "factor": 10}});
    scene.api.put("verticalpodautoscalers", vpa);
    scene.holds_soon(&[("app", WANTED)]).await;
    scene.is_unmarked().await;
}

#[tokio::test]
async fn a_new_agent_takes_back_an_ended_boost() {
    let mut scene = Scene::boosted(0).await;
    scene.becomes_ready();
    scene.wants(WANTED);
    scene.agent.start().await;
    scene.settles(&[("app", WANTED)]).await;
    scene.is_unmarked().await;
}

#[tokio::test]
async fn an_annotation_is_removed_once_allowed() {
    let mut scene = Scene::boosted(0).await;
    scene.wants(WANTED);
    scene.api.fault(Fault {
        verb: "patch",
        resource: "pods/status",
        times: None,
        effect: Effect::Forbidden,
    });
    scene.agent.start().await;
    scene.becomes_ready();
    scene.settles(&[("app", WANTED)]).await;
    scene.agent.reports(&[ANNOTATION, "pods/status", "patch"]).await;
    assert!(scene.is_marked());
    scene.api.mend();
    scene.is_unmarked().await;
    assert!(scene.holds(&[("app", WANTED)]));
}
