//! The cost of a brake for a process that legally works between `memory.high` and its limit.
//!
//! The process holds a working set. In each turn it frees a part and allocates it again, and touches every page. It
//! never reaches the limit. It writes the duration of each turn.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use vscaled::model::CgroupVersion;

use super::{BRAKES, Braked, LIMIT, shown};
use crate::support::bare::BareNode;

/// Working sets in percent of the limit.
const SETS: [u64; 3] = [85, 93, 96];
/// The duration of the work on each.
const PERIOD: Duration = Duration::from_secs(8);
/// The MiB that a turn frees and allocates again.
const TURN: u64 = 4;

pub(crate) fn measure() -> anyhow::Result<()> {
    if BareNode::new().cgroups().version() == CgroupVersion::V1 {
        println!("\nsteady: there is no memory.high on cgroup v1");
        return Ok(());
    }
    println!(
        "\na process that holds a part of {LIMIT} MiB, and gives back and takes again {TURN} MiB of it in each turn, {PERIOD:?} each"
    );
    println!(
        "  {:>12} {:>8} {:>12} {:>14} {:>14}",
        "memory.high", "holds", "turns/s", "longest turn", "held back"
    );
    for set in SETS {
        for brake in BRAKES {
            let worked = work(brake, LIMIT * set / 100)?;
            println!(
                "  {:>12} {:>8} {:>12.0} {:>14.1?} {:>14}",
                shown(brake),
                format!("{set} %"),
                worked.turns as f64 / worked.time.as_secs_f64(),
                worked.longest,
                worked.held_back,
            );
        }
    }
    Ok(())
}

struct Worked {
    turns: u64,
    time: Duration,
    longest: Duration,
    held_back: u64,
}

fn work(brake: Option<u64>, mebibytes: u64) -> anyhow::Result<Worked> {
    let mut braked = Braked::new(brake)?;
    let told = tempfile::Builder::new().prefix("vscaled-bench-").tempdir_in("/tmp")?;
    let file = told.path().join("turns");
    let cgroup = braked.pod.containers["app"].cgroup.clone();
    braked
        .node
        .spawn(&cgroup, &script(mebibytes, &file.display().to_string()));
    // The brake may delay the process on its way to the working set.
    let started = Instant::now();
    while !file.exists() && started.elapsed() < PERIOD {
        std::thread::sleep(Duration::from_millis(10));
    }
    let began = Instant::now();
    std::thread::sleep(PERIOD);
    let time = began.elapsed();
    let held_back = count(&braked, "high")?;
    ensure!(count(&braked, "oom_kill")? == 0, "it was killed below its limit");
    let (turns, longest) = turns(&fs::read_to_string(&file).unwrap_or_default(), time);
    Ok(Worked {
        turns,
        time,
        longest,
        held_back,
    })
}

/// Perl, which returns memory of that size to the kernel as soon as it is freed.
fn script(mebibytes: u64, file: &str) -> String {
    let kept = mebibytes.saturating_sub(2 * TURN + 8);
    format!(
        "exec perl -MTime::HiRes=time -e '$|=1; my @kept = map {{ \"x\" x 1048576 }} 1..{kept}; open my $out, q(>), q({file}); \
         $out->autoflush(1); while (1) {{ my $then = time; my $part = \"y\" x ({TURN} * 1048576); undef $part; \
         syswrite $out, sprintf(qq(%.6f\\n), time - $then); }}' 2>/dev/null"
    )
}

/// The number of turns, and the longest of them; the whole time if there was none.
fn turns(text: &str, time: Duration) -> (u64, Duration) {
    // The last line may be incomplete.
    let whole = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n')?.parse().ok());
    let took: Vec<Duration> = whole.map(Duration::from_secs_f64).collect();
    (took.len() as u64, took.into_iter().max().unwrap_or(time))
}

fn count(braked: &Braked, key: &str) -> anyhow::Result<u64> {
    let events = fs::read_to_string(braked.directory.join("memory.events"))?;
    let value = events
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    Ok(value
        .with_context(|| format!("memory.events has no `{key}`"))?
        .parse()?)
}
