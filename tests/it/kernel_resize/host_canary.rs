//! A changed recommendation goes to a share of the pods first, and to the rest after a time without trouble: twenty pods, of
//! which one restarts when the test says. `cluster_today::inside` has two real ones.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::host_manners::another;
use super::{Amounts, LARGER, NODE, SMALLER, Scene, vpa};

const OTHERS: usize = 20;

impl Scene {
    /// The time until which this pod waits, as `explain` prints it.
    async fn waits_until(&self, pod: &str) -> Option<Timestamp> {
        let reply = self.agent.client().await.explain(pod.to_owned()).await.ok()?;
        let notes = reply.notes.iter();
        let mut ends = notes.filter_map(|note| note.split_once("this one has it from ")?.1.split_once(','));
        ends.next()?.0.parse().ok()
    }
}

#[tokio::test]
async fn a_canary_goes_first_and_the_rest_follow() {
    let mut scene = Scene::new().await;
    scene.api.allocatable(NODE, &json!({"cpu": "400", "memory": "800Gi"}));
    let all: Vec<_> = (1000..1000 + OTHERS)
        .map(|number| (format!("test/web-{number}"), another(&scene, number)))
        .collect();
    scene.start().await;
    let cgroups = scene.node.cgroups();
    let cpu_of = |target: [(&str, Amounts); 1]| target[0].1.settings(cgroups.version());
    let have = |target| {
        let settings = cpu_of(target);
        let have = all.iter().filter(|(_, cgroup)| cgroups.holds(cgroup, &settings));
        have.map(|(pod, _)| pod.clone()).collect::<Vec<_>>()
    };

    let began = Instant::now();
    let mut canary = vpa(&SMALLER);
    canary["metadata"]["annotations"] = json!({"vscaled.io/canary": "30%", "vscaled.io/canary-bake": "1m"});
    scene.api.put("verticalpodautoscalers", canary);
    let waits = async |scene: &Scene| {
        let mut waiting = Vec::new();
        for (pod, _) in &all {
            if let Some(until) = scene.waits_until(pod).await {
                waiting.push((pod.clone(), until));
            }
        }
        waiting
    };
    let some_wait = async || Some(waits(&scene).await).filter(|waiting| !waiting.is_empty());
    let waiting = scene.agent.until("some pods to wait", some_wait).await;
    let first = OTHERS - waiting.len();
    assert!((1..OTHERS - 1).contains(&first), "{first} of {OTHERS} go first");
    let first_have = || have(SMALLER).len() == first;
    scene.agent.wait_for("the first to have it", first_have).await;
    let (canaries, until) = (have(SMALLER), waiting[0].1);
    assert!(waiting.iter().all(|(pod, _)| !canaries.contains(pod)));

    // The next agent knows the start of the wait, and which pods go first.
    scene.agent.stop();
    scene.agent.start().await;
    let again = async || scene.waits_until(&waiting[0].0).await;
    let kept = scene.agent.until("the same pod to wait", again).await;
    assert_eq!((kept, waits(&scene).await.len()), (until, waiting.len()));

    // One of the first pods restarts, so the waiting time begins again.
    let mut pod = scene.api.get("pods", &canaries[0]).unwrap();
    let end = Timestamp::now();
    pod["status"]["containerStatuses"][0]["lastState"] = json!({"terminated": {"reason": "Error", "exitCode": 1, "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()}});
    scene.api.put("pods", pod);
    let later = async || scene.waits_until(&waiting[0].0).await.filter(|until| *until > kept);
    let later = scene.agent.until("the wait to begin again", later).await;
    assert!(later.duration_since(end).as_secs().abs_diff(60) <= 1, "{later} {end}");
    assert_eq!(have(SMALLER).len(), first);

    let all_have = || have(SMALLER).len() == OTHERS;
    scene.agent.wait_for("the rest to have it", all_have).await;
    assert!(began.elapsed() > Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(Timestamp::now() >= later);
}

#[tokio::test]
async fn a_malformed_annotation_is_named_once() {
    let scene = Scene::managed().await;
    let recommend = |share: &str, bake: &str, targets: &[(&str, Amounts)]| {
        let mut vpa = vpa(targets);
        vpa["metadata"]["annotations"] = json!({"vscaled.io/canary": share, "vscaled.io/canary-bake": bake});
        scene.api.put("verticalpodautoscalers", vpa);
    };
    let refusals = || {
        let events = scene.api.all("events").into_iter();
        let refused = events.filter(|event| event["reason"] == "ResizeRefused");
        refused.collect::<Vec<_>>()
    };
    let told = async |annotation: &str| {
        let of_it = || {
            let about = |event: &Value| event["message"].as_str().unwrap().contains(annotation);
            refusals().into_iter().find(about)
        };
        let told = scene.agent.until(annotation, async || of_it()).await;
        assert_eq!(
            (&told["type"], &told["involvedObject"]["uid"]),
            (&json!("Warning"), &json!(scene.pod.uid))
        );
        told["message"].as_str().unwrap().to_owned()
    };
    // A user with the right to write the VPA may write any text, whether or not a resize is due.
    let hostile = format!("ten\n\u{1b}[2J\u{202e}{}", "9".repeat(3_000));
    recommend(&hostile, "1m", &SMALLER);
    let message = told("[vscaled.io/canary]").await;
    assert!(
        message.contains(
            "): VerticalPodAutoscaler web: \
             metadata.annotations[vscaled.io/canary]: \"ten\\n\\u{1b}[2J\\u{202e}999"
        ) && message.ends_with("99\": allowed is 1% to 100%"),
        "{message}"
    );
    assert!(message.len() < 300, "{message}");
    // The agent does not repeat the message with each recommendation, and applies none.
    recommend(&hostile, "1m", &LARGER);
    recommend("100%", "200h", &LARGER);
    let message = told("[vscaled.io/canary-bake]").await;
    assert!(
        message.ends_with("metadata.annotations[vscaled.io/canary-bake]: \"200h\": allowed is 1m to 168h"),
        "{message}"
    );
    assert!(scene.holds(&SMALLER));
    recommend("100%", "1m", &LARGER);
    scene.settles(&LARGER).await;
    // The same for the other annotation of a VPA, which removes its mode.
    let mut vpa = vpa(&LARGER);
    vpa["metadata"]["annotations"] = json!({"vscaled.io/act": "yes"});
    scene.api.put("verticalpodautoscalers", vpa);
    let message = told("[vscaled.io/act]").await;
    assert!(
        message.ends_with("\"yes\": allowed is true, false or on-trouble"),
        "{message}"
    );
    let said: Vec<_> = refusals().into_iter().map(|event| event["count"].clone()).collect();
    assert_eq!(said, [json!(1), json!(1), json!(1)]);
}
