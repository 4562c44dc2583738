//! Kills around the end and the start of the agent.

use std::collections::BTreeMap;

use super::bursts::{check, containers, start_burst};
use super::*;

// A stopping agent waits for its callers, so they must be able to leave meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_without_an_agent_is_reported_later() {
    let mut scene = Scene::started(&[("app", SMALL)]).await;
    scene.kill_one("app");
    let before = scene.wait_for_kills(1).await;
    for (kills, stop) in (2..).zip([Agent::stop, Agent::kill]) {
        stop(&mut scene.agent);
        scene.kill_one("app");
        scene.start().await;
        scene.wait_for_kills(kills).await;
    }
    scene.kill_one("app");
    let told = scene.wait_for_kills(4).await;
    assert_eq!(told[0], before[0]);
    let while_down: Vec<bool> = told.iter().map(|kill| kill.while_down).collect();
    assert_eq!(while_down, [false, true, true, false]);
}

#[tokio::test]
async fn a_first_agent_reports_nothing_earlier() {
    let mut scene = Scene::of(&[("app", SMALL)]);
    scene.kill_one("app");
    scene.start().await;
    let pid = scene.kill_one("app");
    let told = scene.wait_for_kills(1).await.pop().unwrap();
    assert!(!told.while_down);
    assert!(told.victim.is_none_or(|victim| victim.pid == pid));
}

#[tokio::test]
async fn an_agent_killed_amid_a_burst_loses_nothing() {
    let mut scene = Scene::started(&containers()).await;
    let mut victims = BTreeMap::new();
    for _ in 0..2 {
        let burst = start_burst(&scene);
        victims.extend(burst.iter().map(|(name, child)| (child.id(), *name)));
        let enough = victims.len() - burst.len() + 5;
        scene
            .agent
            .until("some kills to be told", async || {
                (scene.reported_kills().await.len() >= enough).then_some(())
            })
            .await;
        scene.agent.kill();
        burst.into_iter().for_each(|(_, child)| was_killed(child));
        scene.start().await;
    }
    check(&scene.wait_for_kills(victims.len()).await, &victims);
    // A repeated report would arrive before this one.
    let last = scene.kill_one("a");
    victims.insert(last, "a");
    check(&scene.wait_for_kills(victims.len()).await, &victims);
}
