//! From a VPA's status at the API server to every level of the pod, where the kubelet cannot resize.
//!
//! Everything is real: etcd and kube-apiserver, a kubelet without in-place resize (1.32), containerd, and the agent
//! with its deployed rights. One pod of three containers; the clock starts when the recommender's PATCH of the VPA's
//! status is sent.
//!
//! For comparison, the same change without vscaled: delete the pod and create it again with other values. This
//! measures the kubelet's part alone, without an updater's wait of a minute, a scheduler and a webhook.

mod recreate;
mod round;
mod scene;

use std::time::{Duration, Instant};

use crate::common::{Samples, Table, shown};
use crate::levels::Levels;
use crate::support::amounts::Amounts;
use round::Round;
pub(crate) use scene::client;
use scene::{CONTAINERS, POD, Scene};

/// Rounds that only warm up.
const WARM_UP: usize = 4;
/// The pause between rounds.
const BETWEEN: Duration = Duration::from_secs(5);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// The initial amounts of the containers.
const AT_FIRST: Amounts = amounts(1);

/// The initial amounts multiplied by a factor.
const fn amounts(factor: u64) -> Amounts {
    Amounts::doubled(50 * factor, 32 * factor)
}

/// The recommended amounts of each round: up and down, never the same twice.
const fn recommended(round: usize) -> Amounts {
    const AMOUNTS: [Amounts; 4] = [amounts(2), amounts(4), amounts(3), amounts(6)];
    AMOUNTS[round % AMOUNTS.len()]
}

pub(crate) async fn measure(rounds: usize, recreated: usize) -> anyhow::Result<()> {
    let Some(mut scene) = Scene::new().await? else {
        return Ok(());
    };
    let pod = scene.runs(POD).await?;
    let mut levels = Levels::open(&pod)?;
    let mut changes = scene.agent.client().await.watch().await?;
    let mut done = Vec::with_capacity(rounds);
    for number in 0..rounds + WARM_UP {
        let round = Round::run(&scene, &mut levels, &mut changes, recommended(number)).await?;
        scene.agent.reaches(POD, "InSync").await;
        done.push(round);
        // The agent follows a changed recommendation every five seconds in the long run. A random delay, so that rounds do not
        // align with a timer.
        tokio::time::sleep(BETWEEN + Duration::from_millis(fastrand::u64(..150))).await;
    }
    let last = Instant::now();
    while !scene.says(POD, recommended(rounds + WARM_UP - 1)).await? {
        anyhow::ensure!(last.elapsed() < PATIENCE, "the pod does not say what it has");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let said = last.elapsed();
    anyhow::ensure!(scene.runs(POD).await? == pod, "a container was started again");
    scene.agent.stop();
    let recreated = recreate::measure(&scene, recreated).await?;
    print(&done[WARM_UP..], recreated)?;
    println!(
        "  all {} containers are those of the beginning; the annotation said what they have {} after the last round",
        CONTAINERS.len(),
        shown(said)
    );
    Ok(())
}

fn print(rounds: &[Round], recreated: Samples) -> anyhow::Result<()> {
    let row = |of: fn(&Round) -> Duration| rounds.iter().map(of).collect::<Samples>();
    let mut table = Table::new(
        "legacy",
        "A VPA's status at a real API server → every level, three containers, kubelet 1.32",
    );
    table.row("PATCH sent → answered", row(|round| round.answered));
    table.row("PATCH sent → another watcher told", row(|round| round.heard));
    table.row("PATCH sent → decided", row(|round| round.decided));
    table.row("PATCH sent → all levels hold it", row(|round| round.held));
    table.row("PATCH sent → all levels verified", row(|round| round.verified));
    table.row("PATCH sent → runtime and socket told", row(|round| round.told));
    let rest = "after the other watcher → all levels hold it";
    table.row(rest, row(|round| round.held.saturating_sub(round.heard)));
    table.row("decided → verified, in the agent", row(|round| round.inside));
    table.row("pod deleted, made again → containers hold it", recreated);
    table.print()
}
