//! The effect of a `memory.high` below the limit (cgroup v2 only): the kernel delays a process that exceeds it.
//!
//! The agent does not take part. A thread raises the limit with a delay after use has passed nine tenths of the
//! limit, as an agent on a busy machine might. Until then only the kernel slows the process down.

pub(crate) mod steady;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use vscaled::model::{CgroupVersion, MemoryLimit};

use crate::scene::APP;
use crate::support::allocator::{Allocation, Allocator, End};
use crate::support::bare::{BareNode, BarePod};

const MIB: u64 = 1 << 20;
/// The limit of the container in MiB.
const LIMIT: u64 = 128;
/// The process's total in MiB. The thread raises the limit for it.
const UNTIL: u64 = 256;
/// The position of `memory.high` in percent of the limit.
const BRAKES: [Option<u64>; 4] = [None, Some(95), Some(90), Some(80)];
/// The delays of the thread.
const LATE: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
];
/// The time for which a brake without a thread is watched.
const LEFT_BEHIND: Duration = Duration::from_secs(20);

pub(crate) async fn measure(runs: usize) -> anyhow::Result<()> {
    if BareNode::new().cgroups().version() == CgroupVersion::V1 {
        println!("\nbrake: there is no memory.high on cgroup v1");
        return Ok(());
    }
    time_bought(runs)?;
    left_behind()?;
    cache(runs.min(5))
}

/// A pod with a high limit of its own, and a container of 128 MiB, possibly with a brake.
struct Braked {
    node: BareNode,
    pod: BarePod,
    directory: PathBuf,
}

impl Braked {
    fn new(brake: Option<u64>) -> anyhow::Result<Self> {
        let mut node = BareNode::new();
        let pod = node.run("web", "0a1b2c3d-0000-4000-8000-000000000041", &[("app", APP)]);
        node.cgroups().limit_memory(&pod.cgroup, MemoryLimit::Max);
        let directories = node.cgroups().directories(&pod.containers["app"].cgroup);
        let directory = directories.into_iter().next().context("a cgroup has a directory")?;
        let braked = Self { node, pod, directory };
        if let Some(percent) = brake {
            braked.put("memory.high", &(LIMIT * MIB / 100 * percent).to_string())?;
        }
        Ok(braked)
    }

    fn put(&self, file: &str, value: &str) -> anyhow::Result<()> {
        fs::write(self.directory.join(file), value).with_context(|| file.to_owned())
    }

    fn usage(&self) -> anyhow::Result<u64> {
        Ok(fs::read_to_string(self.directory.join("memory.current"))?
            .trim()
            .parse()?)
    }

    fn process(&self) -> Allocator {
        let allocation = Allocation { rate: 0, until: UNTIL };
        Allocator::start(self.node.cgroups(), &self.pod.containers["app"].cgroup, allocation)
    }
}

/// Kills and lost time with a late thread.
fn time_bought(runs: usize) -> anyhow::Result<()> {
    println!(
        "\na process takes {UNTIL} MiB as fast as it can; its limit of {LIMIT} MiB is grown so late after nine tenths of it, {runs} runs each"
    );
    println!(
        "  {:>12} {:>8} {:>8} {:>16}",
        "memory.high", "late", "killed", "took (median)"
    );
    for late in LATE {
        for brake in BRAKES {
            let (mut killed, mut took) = (0, Vec::new());
            for _ in 0..runs {
                let braked = Braked::new(brake)?;
                match grown_late(&braked, late)? {
                    End::Killed(_) => killed += 1,
                    End::Satisfied(time) => took.push(time),
                }
            }
            took.sort_unstable();
            let median = took
                .get(took.len() / 2)
                .map_or_else(|| "-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
            println!(
                "  {:>12} {late:>8.0?} {:>8} {median:>16}",
                shown(brake),
                format!("{killed}/{runs}")
            );
        }
    }
    Ok(())
}

fn grown_late(braked: &Braked, late: Duration) -> anyhow::Result<End> {
    let mut process = braked.process();
    while process.lives() && braked.usage()? < LIMIT * MIB / 10 * 9 {
        // The brake may keep the use below the limit forever.
        if process.taken() >= UNTIL || held_back(braked)? {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(late);
    braked.put("memory.max", &(4 * UNTIL * MIB).to_string())?;
    braked.put("memory.high", "max")?;
    Ok(process.wait())
}

/// Whether the brake has delayed the process.
fn held_back(braked: &Braked) -> anyhow::Result<bool> {
    let events = fs::read_to_string(braked.directory.join("memory.events"))?;
    let high = events.lines().find_map(|line| line.strip_prefix("high "));
    Ok(high.context("memory.events has no `high`")?.parse::<u64>()? > 0)
}

/// The progress of a process whose brake stays.
fn left_behind() -> anyhow::Result<()> {
    println!("\nthe same with nobody there, after {LEFT_BEHIND:?}");
    for brake in BRAKES {
        let braked = Braked::new(brake)?;
        let mut process = braked.process();
        let started = Instant::now();
        while process.lives() && started.elapsed() < LEFT_BEHIND {
            std::thread::sleep(Duration::from_millis(10));
        }
        let state = if process.lives() {
            "stands still at"
        } else {
            "killed at"
        };
        println!(
            "  memory.high {:>4}: {state} {} MiB after {:.1?}",
            shown(brake),
            process.taken(),
            started.elapsed()
        );
    }
    Ok(())
}

/// The cost for processes that only read files.
fn cache(runs: usize) -> anyhow::Result<()> {
    let file = tempfile::Builder::new()
        .prefix("vscaled-bench-")
        .tempfile_in("/var/tmp")?;
    let block = vec![7_u8; 1 << 20];
    for _ in 0..2 * LIMIT {
        file.as_file().write_all(&block)?;
    }
    file.as_file().sync_all()?;
    println!(
        "\na container of {LIMIT} MiB reads a file of {} MiB {runs} times",
        2 * LIMIT
    );
    for brake in BRAKES {
        let braked = Braked::new(brake)?;
        let started = Instant::now();
        for _ in 0..runs {
            read_in(&braked, file.path())?;
        }
        let rate = (2 * LIMIT * runs as u64) as f64 / started.elapsed().as_secs_f64();
        println!("  memory.high {:>4}: {rate:.0} MiB/s", shown(brake));
    }
    Ok(())
}

fn read_in(braked: &Braked, file: &Path) -> anyhow::Result<()> {
    let script = format!(
        "echo $$ >{}/cgroup.procs && exec cat {}",
        braked.directory.display(),
        file.display()
    );
    let status = Command::new("sh")
        .args(["-ec", &script])
        .stdout(std::process::Stdio::null())
        .status()?;
    ensure!(status.success(), "cat: {status}");
    Ok(())
}

fn shown(brake: Option<u64>) -> String {
    brake.map_or_else(|| "none".to_owned(), |percent| format!("{percent} %"))
}
