//! Containers end and start during a resize.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Amounts, IDLE, SIDE, Scene};

const TARGET: Amounts = Amounts::doubled(250, 96);

#[tokio::test]
async fn a_restarted_container_has_the_decided_values() {
    let mut scene = Scene::started(IDLE).await;
    scene.recommend(TARGET, SIDE);
    scene.settles(TARGET, SIDE).await;
    for attempt in 1..4 {
        let ended = scene.pod.containers[0].pid;
        kill(Pid::from_raw(ended), Signal::SIGKILL).unwrap();
        scene.containerd.restart(&mut scene.pod, &scene.spec, 0, attempt).await;
        assert_ne!(scene.pod.containers[0].pid, ended);
        // Periodic passes are an hour apart, so the agent must react to the runtime's event.
        scene.settles(TARGET, SIDE).await;
        scene.knows_all().await;
    }
    let history = scene.agent.history().await;
    let started = history.iter().filter(|change| change.cause == "container started");
    assert!(started.count() >= 3, "{history:#?}");
    assert!(
        !scene.agent.log().contains("another program"),
        "a new container's values are nobody's drift"
    );
}

#[tokio::test]
async fn a_dying_container_does_not_hold_up_the_other() {
    let mut scene = Scene::started(IDLE).await;
    for attempt in 1..6 {
        // The kill happens before, between and after the steps of one of these passes.
        for step in 0..6 {
            let value = u64::from(200 + 10 * step + attempt);
            scene.recommend(Amounts::doubled(value, 90), Amounts::doubled(value / 4, 30));
            tokio::time::sleep(Duration::from_millis(20)).await;
            if step == attempt {
                kill(Pid::from_raw(scene.pod.containers[0].pid), Signal::SIGKILL).unwrap();
            }
        }
        let side = Amounts::doubled(77, 30 + u64::from(attempt));
        scene.recommend(TARGET, side);
        let cgroups = scene.containerd.cgroups();
        let settled = || cgroups.holds(&scene.pod.containers[1].cgroup, &side.settings(cgroups.version()));
        scene
            .agent
            .wait_for("the other container to have its values", settled)
            .await;

        scene.containerd.restart(&mut scene.pod, &scene.spec, 0, attempt).await;
        scene.settles(TARGET, side).await;
    }
}

#[tokio::test]
async fn a_pod_that_is_gone_is_forgotten_in_peace() {
    let scene = Scene::started(IDLE).await;
    scene.recommend(TARGET, SIDE);
    scene.settles(TARGET, SIDE).await;
    scene.containerd.remove_pod(&scene.pod).await;
    scene.recommend(Amounts::doubled(300, 100), SIDE);
    scene.agent.reaches("web", "NotRunning").await;
}
