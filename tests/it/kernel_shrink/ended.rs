//! The agent ends in the middle of a shrink.

use std::time::Duration;

use super::{ROOMY, Scene, random};
use crate::support::amounts::vpa_manifest;
use crate::support::churn;

use super::roomy;

/// The number of times that the agent is killed.
const KILLS: u64 = 50;
/// The number of times that the agent is stopped.
const STOPS: u64 = 15;

impl Scene {
    /// A scene with a process, whose limits rise and fall. The limit follows the request: `ROOMY` is 25 times as
    /// much.
    async fn busy() -> Self {
        let mut scene = Self::started().await;
        scene.spawn(&churn::command(2, 40));
        scene.recommend(8);
        scene
            .agent
            .wait_for("the recommendation", || scene.limits() == [ROOMY, ROOMY])
            .await;
        // Otherwise a later rise to the highest use would count as growth.
        scene
            .agent
            .wait_for("the most that is used", || scene.usage() > 39 << 20)
            .await;
        scene
    }

    /// A recommendation that makes the limit 25 times as many MiB.
    fn recommend(&self, request: u64) {
        let target = crate::support::amounts::Amounts {
            memory: request,
            ..roomy(0)
        };
        self.agent
            .write("vpa.yaml", &vpa_manifest("web", "web", &[("app", target)]));
    }

    /// Sends lower and higher limits without pauses, for some milliseconds.
    async fn change_limits(&self, random: &mut fastrand::Rng) {
        for _ in 0..3 {
            self.recommend(random.u64(3..8));
            tokio::time::sleep(Duration::from_micros(random.u64(..40_000))).await;
        }
    }

    /// Checks that no cgroup is frozen, no process was killed, and the limits are those of the last recommendation.
    async fn recovers(&self, round: u64) {
        self.agent.wait_for("everything to go on", || !self.is_frozen()).await;
        assert_eq!(self.kills(), 0, "round {round}");
        let [app, pod] = self.limits();
        assert!(app <= pod, "round {round}: {app} in {pod}");
    }
}

#[tokio::test]
async fn a_new_agent_thaws_what_a_killed_one_froze() {
    let mut scene = Scene::busy().await;
    let mut random = random();
    let mut frozen = 0;
    for round in 0..KILLS {
        scene.change_limits(&mut random).await;
        scene.agent.kill();
        frozen += u64::from(scene.is_frozen());
        scene.agent.launch();
        scene.recovers(round).await;
    }
    println!("{frozen} of {KILLS} times something was frozen when the agent was killed");
    scene.agent.kill();
    scene.agent.start().await;
    scene.recommend(7);
    scene
        .agent
        .wait_for("the last limit", || scene.limits() == [175, 175])
        .await;
    scene.agent.reaches("web", "InSync").await;
    assert_eq!((scene.kills(), scene.is_frozen(), scene.markers()), (0, false, 0));
}

#[tokio::test]
async fn a_stop_amid_a_shrink_leaves_nothing_frozen() {
    let mut scene = Scene::busy().await;
    let mut random = random();
    for round in 0..STOPS {
        scene.change_limits(&mut random).await;
        scene.agent.stop();
        assert_eq!(
            (scene.is_frozen(), scene.markers(), scene.kills()),
            (false, 0, 0),
            "round {round}"
        );
        scene.agent.start().await;
    }
}
