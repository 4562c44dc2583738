//! The same limits for the same process, by three ways of lowering them.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use vscaled::actuate::shrink::{Freezer, lower};
use vscaled::cgroup::{Cgroup, Hierarchy};
use vscaled::model::Bytes;
use vscaled::plan::shrink::{RECLAIM_STEP, Reclaim, slack};

use crate::common::{Figures, Samples, Table};
use crate::scene::{ROOMY, Scene, limit, numbers, share_of};

/// The highest use of the process in MiB: some limits are below, some above.
const MOST: u64 = 120;

/// The results of one way.
#[derive(Default)]
struct Tally {
    done: usize,
    /// The number of limits below the process's highest use.
    too_low: usize,
    kills: u64,
    /// The kills from the decision until the limit was written and read back. The others died under a limit below their use,
    /// before the benchmark raised it again.
    kills_meanwhile: u64,
    took: Samples,
    refusing: Samples,
}

/// All five ways.
pub(crate) async fn measure(tries: usize) -> anyhow::Result<()> {
    let mut ways = vec![
        ("a plain write", by_hand(tries, false)?),
        ("look, write without waiting, look", by_hand(tries, true)?),
    ];
    ways.extend(with_and_without_freezer(tries)?);
    ways.push(("vscaled, decision to read back", by_agent(tries).await?));
    print("shrink", tries, ways)
}

/// The two ways that differ only in the freezer: whether it saves processes is a question of many thousand tries.
pub(crate) fn measure_freezer(tries: usize) -> anyhow::Result<()> {
    print("shrink-freezer", tries, with_and_without_freezer(tries)?)
}

fn with_and_without_freezer(tries: usize) -> anyhow::Result<Vec<(&'static str, Tally)>> {
    Ok(vec![
        (
            "make room, look, write, look; not frozen",
            by_lowering(tries, Way::Running)?,
        ),
        (
            "the same as vscaled does, frozen on v2",
            by_lowering(tries, Way::Frozen)?,
        ),
    ])
}

fn print(part: &'static str, tries: usize, ways: Vec<(&'static str, Tally)>) -> anyhow::Result<()> {
    let mut figures = Figures::new(
        part,
        format!(
            "{tries} tries each, from {ROOMY} MiB to 0.3 to 0.95 of it, under a process that uses 5 to {MOST} MiB, and up \
             again at once"
        ),
    );
    let mut table = Table::new("shrink-time", "how long that takes");
    for (name, tally) in ways {
        let Tally {
            done,
            too_low,
            kills,
            kills_meanwhile,
            ..
        } = tally;
        figures.row([
            ("way", json!(name)),
            ("tries", json!(tries)),
            ("lowered", json!(done)),
            ("below_most", json!(too_low)),
            ("killed", json!(kills)),
            ("killed_meanwhile", json!(kills_meanwhile)),
        ]);
        table.row(name, tally.took);
        table.row("  … refused", tally.refusing);
    }
    figures.print()?;
    table.print()
}

impl Tally {
    fn note(&mut self, wanted: u64, done: bool, took: Duration) {
        if done {
            self.done += 1;
            self.too_low += usize::from(wanted < MOST);
            self.took.push(took);
        } else {
            self.refusing.push(took);
        }
    }
}

/// Writes the file, with or without a comparison of the use before and after.
fn by_hand(tries: usize, checked: bool) -> anyhow::Result<Tally> {
    let mut scene = Scene::churning(MOST, 1);
    let cgroup = Cgroup::open(&Hierarchy::discover(None)?, &scene.app())?;
    let memory = |mebibytes| limit(cgroup.outer().version(), mebibytes);
    let file = cgroup.outer().memory_dir().path().join(memory(ROOMY).file().name());
    let (mut tally, mut numbers) = (Tally::default(), numbers());
    for _ in 0..tries {
        scene.revive();
        std::thread::sleep(Duration::from_micros(numbers.u64(..10_000)));
        let wanted = share_of(&mut numbers, ROOMY);
        let before = scene.kills();
        let start = Instant::now();
        let done = if checked {
            cgroup.write(memory(wanted)).is_ok()
        } else {
            fs::write(&file, memory(wanted).to_write()).is_ok()
        };
        let took = start.elapsed();
        tally.kills_meanwhile += scene.kills() - before;
        fs::write(&file, memory(ROOMY).to_write())?;
        tally.note(wanted, done, took);
    }
    tally.kills = scene.kills();
    Ok(tally)
}

/// Whether the processes run during the write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Running,
    Frozen,
}

/// The agent's own write, with or without the freezer.
fn by_lowering(tries: usize, way: Way) -> anyhow::Result<Tally> {
    let mut scene = Scene::churning(MOST, 1);
    let cgroup = Cgroup::open(&Hierarchy::discover(None)?, &scene.app())?;
    let version = cgroup.outer().version();
    let roomy = limit(version, ROOMY);
    let file = cgroup.outer().memory_dir().path().join(roomy.file().name());
    let state = std::env::temp_dir().join(format!("shrink-{}", std::process::id()));
    fs::create_dir_all(&state)?;
    let freezer = Freezer::below(&state)?;
    let (mut tally, mut numbers) = (Tally::default(), numbers());
    for _ in 0..tries {
        scene.revive();
        std::thread::sleep(Duration::from_micros(numbers.u64(..10_000)));
        let wanted = share_of(&mut numbers, ROOMY);
        let before = scene.kills();
        let start = Instant::now();
        let done = match way {
            Way::Running => lower_running(&cgroup, wanted)?,
            Way::Frozen => lower(&cgroup, limit(version, wanted), &freezer, &mut Vec::new()).is_ok(),
        };
        let took = start.elapsed();
        tally.kills_meanwhile += scene.kills() - before;
        fs::write(&file, roomy.to_write())?;
        tally.note(wanted, done, took);
    }
    fs::remove_dir_all(&state)?;
    tally.kills = scene.kills();
    Ok(tally)
}

/// Lowers a limit as [`lower`] does on v2, without freezing: reclaims, compares the use, and writes.
fn lower_running(cgroup: &Cgroup, wanted: u64) -> anyhow::Result<bool> {
    let (outer, bytes) = (cgroup.outer(), Bytes::new(wanted << 20));
    let highest = bytes.saturating_sub(slack(bytes));
    for attempt in 1..=5 {
        let mut usage = outer.memory_usage()?;
        if usage > highest && outer.reclaim_way()? == Reclaim::OnRequest {
            outer.reclaim(usage.saturating_sub(highest).min(RECLAIM_STEP))?;
            usage = outer.memory_usage()?;
        }
        if usage <= highest && cgroup.write(limit(outer.version(), wanted)).is_ok() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(7) * attempt);
    }
    Ok(false)
}

/// Requests the limit from the agent, which keeps a limit until the next request.
async fn by_agent(tries: usize) -> anyhow::Result<Tally> {
    let mut scene = Scene::churning(MOST, 1);
    let agent = scene.agent().await;
    let (mut tally, mut numbers) = (Tally::default(), numbers());
    for _ in 0..tries {
        scene.revive();
        tokio::time::sleep(Duration::from_micros(numbers.u64(..10_000))).await;
        let wanted = share_of(&mut numbers, ROOMY);
        let before = scene.kills();
        let change = agent.resize(scene.limit(wanted)).await?;
        let stages = change.stages.unwrap_or_default();
        tally.kills_meanwhile += scene.kills() - before;
        let done = change.outcome == "Applied";
        let took = if done { stages.verified_us } else { stages.prepare_us };
        tally.note(wanted, done, Duration::from_micros(took));
        agent.resize(scene.limit(ROOMY)).await?;
    }
    tally.kills = scene.kills();
    anyhow::ensure!(!scene.is_frozen(), "something is still frozen");
    Ok(tally)
}
