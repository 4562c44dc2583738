//! A runtime that is unavailable, or never existed: the kernel has the values at once, and the runtime gets them when
//! it returns, without a request.

use super::{APP, Amounts, IDLE, SIDE, Scene};
use crate::support::amounts::pod_manifest;

const TARGET: Amounts = Amounts::doubled(250, 96);

/// Waits until the runtime has stored these amounts.
async fn stores(scene: &Scene, amounts: Amounts) {
    let stored = async || (scene.stored(0).await == amounts.stored()).then_some(());
    scene
        .agent
        .until(&format!("the runtime to store {amounts:?}"), stored)
        .await;
}

#[tokio::test]
async fn an_absent_runtime_is_updated_later() {
    let mut scene = Scene::started(IDLE).await;
    scene.containerd.stop();
    scene.recommend(TARGET, SIDE);
    let holds = || scene.holds(TARGET, SIDE);
    scene.agent.wait_for("the files to hold the values", holds).await;
    let pod = scene.agent.reaches("web", "Owed").await;
    let socket = scene.containerd.socket().display().to_string();
    assert!(pod.detail.contains(&socket), "{}", pod.detail);
    scene.agent.reports(&[&socket]).await;

    // More changes while a runtime sync is pending.
    let next = Amounts::doubled(300, 100);
    scene.recommend(next, SIDE);
    let holds = || scene.holds(next, SIDE);
    scene.agent.wait_for("the files to hold the next values", holds).await;
    scene.agent.reaches("web", "Owed").await;
    let history = scene.agent.history().await;
    assert!(
        history.iter().all(|change| change.outcome == "RuntimeOwed"),
        "{history:#?}"
    );

    scene.containerd.launch().await;
    stores(&scene, next).await;
    scene.settles(next, SIDE).await;
    scene
        .agent
        .until("no problem to be left", async || {
            scene.agent.get().await.agent?.problems.is_empty().then_some(())
        })
        .await;
}

#[tokio::test]
async fn a_manifest_names_a_pod_before_the_runtime() {
    let mut scene = Scene::new(IDLE).await;
    scene.containerd.stop();
    let ids: Vec<_> = scene
        .pod
        .containers
        .iter()
        .map(|container| container.id.clone())
        .collect();
    let containers = [
        ("app", APP, Some(ids[0].as_str())),
        ("side", SIDE, Some(ids[1].as_str())),
    ];
    scene
        .agent
        .write("pod.yaml", &pod_manifest("web", super::UID, &containers));
    // The agent cannot detect the formula without the runtime.
    scene.agent.set("--weight-formula", "linear");
    scene.agent.start().await;
    scene.recommend(TARGET, SIDE);
    let holds = || scene.holds(TARGET, SIDE);
    scene.agent.wait_for("the files to hold the values", holds).await;
    scene.agent.reaches("web", "Owed").await;
    scene.containerd.launch().await;
    stores(&scene, TARGET).await;
    scene.settles(TARGET, SIDE).await;
}

#[tokio::test]
async fn a_restarted_agent_checks_the_runtimes_record() {
    let mut scene = Scene::started(IDLE).await;
    scene.containerd.stop();
    scene.recommend(TARGET, SIDE);
    scene.agent.reaches("web", "Owed").await;
    // The next agent does not know that a runtime sync is pending.
    scene.agent.kill();
    scene.containerd.launch().await;
    scene.agent.start().await;
    stores(&scene, TARGET).await;
    scene.settles(TARGET, SIDE).await;
}

#[tokio::test]
async fn drift_is_repaired_while_the_runtime_is_away() {
    let mut scene = Scene::started(IDLE).await;
    scene.recommend(TARGET, SIDE);
    scene.settles(TARGET, SIDE).await;
    scene.containerd.stop();
    let cgroups = scene.containerd.cgroups();
    for setting in Amounts::doubled(70, 40).settings(cgroups.version()).iter() {
        cgroups.put(&scene.pod.containers[0].cgroup, setting);
    }
    let repaired = async || {
        let history = scene.agent.history().await;
        let drift = history.iter().any(|change| change.cause.starts_with("drift"));
        (drift && scene.holds(TARGET, SIDE)).then_some(())
    };
    scene.agent.until("the repair", repaired).await;
    scene.containerd.launch().await;
    scene.settles(TARGET, SIDE).await;
}

#[tokio::test]
async fn a_runtime_that_hangs_delays_no_file() {
    let mut scene = Scene::new(IDLE).await;
    scene.agent.set("--runtime-timeout", "1s");
    scene.agent.start().await;
    scene.knows_all().await;
    scene.recommend(TARGET, SIDE);
    scene.settles(TARGET, SIDE).await;
    scene.containerd.hang(true);
    let mut last = TARGET;
    for step in 1..4 {
        last = Amounts::doubled(250 + 10 * step, 96 + step);
        scene.recommend(last, SIDE);
        let holds = || scene.holds(last, SIDE);
        scene.agent.wait_for("the files to hold the values", holds).await;
    }
    let pod = scene.agent.reaches("web", "Owed").await;
    assert!(pod.detail.contains("no answer within"), "{}", pod.detail);
    scene.containerd.hang(false);
    stores(&scene, last).await;
    scene.settles(last, SIDE).await;
}
