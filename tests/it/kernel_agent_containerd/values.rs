//! Decisions reach the kernel and the runtime, and the containers continue.

use std::fs;

use vscaled::control::proto;
use vscaled::model::CriResources;

use super::{APP, Amounts, IDLE, SIDE, Scene};

impl Scene {
    /// Sets requests and limits as an operator does.
    async fn set_by_hand(&self, app: Amounts, side: Amounts) {
        let amounts = |cpu: Option<u64>, memory: Option<u64>| proto::Amounts {
            cpu: cpu.map(|cpu| format!("{cpu}m")),
            memory: memory.map(|memory| format!("{memory}Mi")),
        };
        let containers = [("app", app), ("side", side)].map(|(name, of)| proto::ContainerValues {
            name: name.to_owned(),
            values: Some(proto::Requirements {
                requests: Some(amounts(Some(of.cpu), Some(of.memory))),
                limits: Some(amounts(of.cpu_limit, of.memory_limit)),
            }),
        });
        let request = proto::ResizeRequest {
            pod: "test/web".to_owned(),
            containers: containers.into(),
            ..proto::ResizeRequest::default()
        };
        self.agent.resize(request).await.unwrap();
    }
}

#[tokio::test]
async fn a_recommendation_reaches_levels_and_runtime() {
    let scene = Scene::started(IDLE).await;
    let before = [scene.life(0).await, scene.life(1).await];
    let (app, side) = (Amounts::doubled(250, 96), Amounts::doubled(40, 24));
    scene.recommend(app, side);
    scene.settles(app, side).await;
    let after = [scene.life(0).await, scene.life(1).await];
    assert_eq!(after, before);
    let history = scene.agent.history().await;
    assert_eq!(history.len(), 1, "{history:#?}");
    assert_eq!(history[0].outcome, "Applied");
}

#[tokio::test]
async fn the_runtime_is_sent_changes_only() {
    let scene = Scene::started(IDLE).await;
    let app = Amounts {
        memory: 96,
        memory_limit: Some(192),
        ..APP
    };
    scene.recommend(app, SIDE);
    scene.settles(app, SIDE).await;
    let history = scene.agent.history().await;
    let told: Vec<_> = history
        .iter()
        .flat_map(|change| &change.steps)
        .filter(|step| step.via == "cri")
        .map(|step| (step.name.as_str(), step.from.as_str(), step.to.as_str()))
        .collect();
    let memory = |mebibytes: u64| format!("memory_limit_in_bytes={}", mebibytes << 20);
    assert_eq!(
        told,
        [("app", memory(128).as_str(), memory(192).as_str())],
        "{history:#?}"
    );
}

#[tokio::test]
async fn a_busy_process_is_resized_twenty_times() {
    // Allocates and computes all the time, and counts its rounds.
    let scene = Scene::started(
        "i=0; while true; do \
         head -c 6000000 /dev/zero | tail -c 6000000 | md5sum >/dev/null || exit 1; \
         i=$((i+1)); echo $i >/progress.new && mv /progress.new /progress; done",
    )
    .await;
    let before = scene.life(0).await;
    let progress = || -> u64 {
        let file = format!("/proc/{}/root/progress", scene.pod.containers[0].pid);
        fs::read_to_string(file).map_or(0, |text| text.trim().parse().unwrap())
    };
    let mut reached = 0;
    for round in 0..20 {
        let app = if round % 2 == 0 {
            Amounts::doubled(300 + round, 96 + round)
        } else {
            Amounts::doubled(100 + round, 40 + round)
        };
        let side = Amounts::doubled(60 - round, 24 + round % 3);
        // The agent follows ten recommendations of a pod at once, and then one each five seconds.
        if round < 10 {
            scene.recommend(app, side);
        } else {
            scene.set_by_hand(app, side).await;
        }
        scene.settles(app, side).await;
        let goes_on = || progress() > reached;
        scene.agent.wait_for("the process to go on", goes_on).await;
        reached = progress();
    }
    let after = scene.life(0).await;
    assert_eq!(after, before);
    assert_eq!(scene.containerd.cgroups().oom_kills(&scene.pod.containers[0].cgroup), 0);
    // The process allocates fast enough for the guard to want more memory at times, which the VPA does not allow.
    let history = scene.agent.history().await;
    let resizes = history
        .into_iter()
        .filter(|change| !change.reason.contains("limit not raised"));
    let outcomes: Vec<_> = resizes.map(|change| (change.outcome, change.reason)).collect();
    assert!(
        outcomes.len() == 20 && outcomes.iter().all(|(outcome, _)| outcome == "Applied"),
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn foreign_runtime_updates_are_corrected() {
    let scene = Scene::started(IDLE).await;
    let app = Amounts::doubled(250, 96);
    scene.recommend(app, SIDE);
    scene.settles(app, SIDE).await;
    let foreign = CriResources {
        cpu_shares: Some(300),
        memory_limit_in_bytes: Some(80 << 20),
        ..CriResources::default()
    };
    scene.update(0, foreign).await;
    let repaired = async || {
        let history = scene.agent.history().await;
        let drift = history.iter().find(|change| change.cause.starts_with("drift"))?;
        drift.steps.iter().any(|step| step.via == "cri").then_some(())
    };
    scene.agent.until("the runtime to be corrected", repaired).await;
    scene.settles(app, SIDE).await;
}

#[tokio::test]
async fn a_stubborn_runtime_client_is_left_alone() {
    let scene = Scene::started(IDLE).await;
    let app = Amounts::doubled(250, 96);
    scene.recommend(app, SIDE);
    scene.settles(app, SIDE).await;
    let foreign = CriResources {
        cpu_shares: Some(300),
        ..CriResources::default()
    };
    for _ in 0..2 {
        scene.update(0, foreign).await;
        let corrected = async || (scene.stored(0).await == app.stored()).then_some(());
        scene.agent.until("the runtime to be corrected", corrected).await;
        scene.settles(app, SIDE).await;
    }
    scene.update(0, foreign).await;
    scene.agent.reaches("web", "Foreign").await;
    let left = scene.containerd.cgroups().settings(&scene.pod.containers[0].cgroup);

    // The agent corrects another value of the container. Neither the file nor the runtime's record of this value
    // changes.
    let cgroups = scene.containerd.cgroups();
    let tighter = Amounts::doubled(250, 70).settings(cgroups.version());
    let memory = tighter.iter().find(|setting| setting.memory().is_some()).unwrap();
    cgroups.put(&scene.pod.containers[0].cgroup, memory);
    let repaired = || cgroups.settings(&scene.pod.containers[0].cgroup) == left;
    scene.agent.wait_for("the memory limit to be repaired", repaired).await;
    scene.agent.reaches("web", "Foreign").await;
    let stored = scene.stored(0).await;
    assert_eq!(stored.cpu_shares, Some(300));
    assert_eq!(stored.memory_limit_in_bytes, Some(192 << 20));
}
