//! Kills at a receiver of reports, end to end: kernel, watcher, kill log, gRPC.

use std::collections::BTreeSet;

use super::bursts::{containers, start_burst};
use super::*;
use crate::reports::sink::Sink;

/// The ids of the kills that a sink printed, with repetitions.
fn ids(lines: &[String]) -> Vec<String> {
    let id = |line: &String| {
        let report: serde_json::Value = serde_json::from_str(line).unwrap();
        report["id"]
            .as_str()
            .unwrap_or_else(|| panic!("no id in {line}"))
            .to_owned()
    };
    lines.iter().map(id).collect()
}

#[tokio::test]
async fn a_burst_reaches_receivers_of_a_killed_agent() {
    let mut sink = Sink::start(&["--listen", "127.0.0.1:0"]);
    let mut scene = Scene::of(&containers());
    scene.agent.set("--node-name", "node-1");
    scene.agent.set("--report-grpc-endpoint", &sink.address);
    scene.start().await;
    let burst = start_burst(&scene);
    let enough = async || (scene.reported_kills().await.len() >= 5).then_some(());
    scene.agent.until("some kills to be told", enough).await;
    scene.agent.kill();
    let count = burst.len();
    burst.into_iter().for_each(|(_, child)| was_killed(child));
    scene.start().await;
    let told: BTreeSet<String> = scene
        .wait_for_kills(count)
        .await
        .into_iter()
        .map(|kill| kill.id)
        .collect();

    // The agent resends a report that was not acknowledged when it was killed, with the same id. Other processes on
    // the machine may be killed too, and the agent reports them.
    let received = sink.until(|lines| {
        let received: BTreeSet<String> = ids(lines).into_iter().collect();
        told.is_subset(&received)
    });
    for id in &told {
        let again = ids(&received).iter().filter(|other| *other == id).count();
        assert!((1..=2).contains(&again), "{id} came {again} times");
    }
}
