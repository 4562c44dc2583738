//! A changed recommendation goes to a share of the pods first, and to the rest after a time without trouble: twenty pods, of
//! which one restarts when the test says. `cluster_today::inside` has two real ones.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;

use super::host_manners::another;
use super::{Amounts, NODE, SMALLER, Scene, vpa};

const OTHERS: usize = 20;

impl Scene {
    /// The time until which this pod waits, as `explain` prints it.
    async fn waits_until(&self, pod: &str) -> Option<Timestamp> {
        let reply = self.agent.client().await.explain(pod.to_owned()).await.ok()?;
        let notes = reply.notes.iter();
        let mut ends = notes.filter_map(|note| note.split_once("this one gets it at ")?.1.split_once(','));
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
