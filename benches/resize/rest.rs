//! The cost of an idle agent.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use procfs::process::{FDTarget, Process};
use serde_json::json;

use crate::agent::Agent;
use crate::common::Figures;
use crate::files::cgroups;
use crate::machine;
use crate::rounds::Round;
use crate::workload::Workload;

/// The number of recommendations before the measurement: an agent without earlier work does not represent an idle
/// agent.
const WORK: usize = 8;
/// The time until the last pass's later work is done: reading its own writes, saving, and setting the guard's alarms,
/// of which the kernel accepts about fifty a second. The last recommendation raises limits, so no shrink is watched.
pub(crate) const SETTLE: Duration = Duration::from_secs(30);

/// Measures an agent for each of these numbers of containers, one after the other.
pub(crate) async fn measure(containers: &[usize], period: Duration) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for containers in containers {
        rows.push((*containers, one(*containers, period).await?));
    }
    let mut figures = Figures::new(
        "rest",
        format!(
            "at rest, over {period:?} each (cgroup {}); descriptors are those of all the agent",
            machine::version()?
        ),
    );
    for (containers, rest) in rows {
        figures.row([
            ("containers", json!(containers)),
            ("resident_mib", json!(rest.memory.resident as f64 / 1024.0)),
            ("anonymous_mib", json!(rest.memory.anonymous as f64 / 1024.0)),
            ("core_percent", json!(rest.processor)),
            ("descriptors", json!(rest.open.descriptors())),
            ("inotify_watches", json!(rest.open.watches)),
        ]);
    }
    figures.print()
}

async fn one(containers: usize, period: Duration) -> anyhow::Result<Rest> {
    let workload = Workload::new(containers, 1);
    let (_tree, kubepods) = cgroups(&workload);
    let mut agent = Agent::start(&kubepods, None, &workload.pods(), containers).await?;
    let process = Process::new(i32::try_from(agent.pid())?)?;
    let fresh = Memory::of(&process)?;
    for round in 0..WORK {
        Round::run(&mut agent, &workload, round).await?;
    }
    // The kernel takes about ten milliseconds for each of a container's alarms.
    tokio::time::sleep(SETTLE + Duration::from_millis(50) * u32::try_from(containers)?).await;
    println!("\nat rest with {containers} containers");
    machine::print_load()?;
    let rest = measure_rest(&process, period, &fresh).await?;
    println!("  {:<44} {}", "threads", process.status()?.threads);
    println!("  {:<44} {}", "descriptors", rest.open.shown());
    Ok(rest)
}

/// The resources of an idle process.
pub(crate) struct Rest {
    memory: Memory,
    /// In percent of a core.
    processor: f64,
    open: Open,
}

/// Measures and prints the resources of an idle process, and prints its memory right after the start (`fresh`).
pub(crate) async fn measure_rest(process: &Process, period: Duration, fresh: &Memory) -> anyhow::Result<Rest> {
    let (start, before) = (Instant::now(), processor_time(process)?);
    tokio::time::sleep(period).await;
    let used = processor_time(process)?.saturating_sub(before);
    let rest = Rest {
        memory: Memory::of(process)?,
        processor: used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0,
        open: Open::of(process)?,
    };
    println!(
        "  {:<44} {:.2} % of a core over {period:?}",
        "processor time", rest.processor
    );
    println!("  {:<44} {}", "memory before the first recommendation", fresh.shown());
    println!("  {:<44} {}", "memory at the end", rest.memory.shown());
    Ok(rest)
}

/// In kilobytes.
pub(crate) struct Memory {
    resident: u64,
    anonymous: u64,
    peak: u64,
}

impl Memory {
    pub(crate) fn of(process: &Process) -> anyhow::Result<Self> {
        let status = process.status()?;
        Ok(Self {
            resident: status.vmrss.context("no VmRSS")?,
            anonymous: status.rssanon.context("no RssAnon")?,
            peak: status.vmhwm.context("no VmHWM")?,
        })
    }

    fn shown(&self) -> String {
        let [resident, anonymous, peak] = [self.resident, self.anonymous, self.peak].map(mebibytes);
        format!("{resident} resident ({anonymous} of it anonymous), {peak} at most so far")
    }
}

fn mebibytes(kilobytes: u64) -> String {
    let tenths = (kilobytes * 10).div_ceil(1024);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// The open descriptors of a process.
#[derive(Default)]
struct Open {
    cgroups: usize,
    eventfds: usize,
    others: usize,
    /// Files that its inotify descriptors watch.
    watches: usize,
}

impl Open {
    fn of(process: &Process) -> anyhow::Result<Self> {
        let mut open = Self::default();
        for descriptor in process.fd()? {
            let descriptor = descriptor?;
            match &descriptor.target {
                FDTarget::Path(path) if path.starts_with("/sys/fs/cgroup") => open.cgroups += 1,
                FDTarget::AnonInode(kind) if kind.contains("eventfd") => open.eventfds += 1,
                _ => open.others += 1,
            }
            let information = Path::new("/proc")
                .join(process.pid.to_string())
                .join("fdinfo")
                .join(descriptor.fd.to_string());
            let lines = std::fs::read_to_string(information).unwrap_or_default();
            open.watches += lines.lines().filter(|line| line.starts_with("inotify ")).count();
        }
        Ok(open)
    }

    const fn descriptors(&self) -> usize {
        self.cgroups + self.eventfds + self.others
    }

    fn shown(&self) -> String {
        let Self {
            cgroups,
            eventfds,
            others,
            watches,
        } = self;
        format!("{cgroups} of cgroups, {eventfds} eventfds, {others} others; {watches} inotify watches")
    }
}

/// In user and kernel mode, of all threads, including ended ones.
fn processor_time(process: &Process) -> anyhow::Result<Duration> {
    Ok(clock_getcpuclockid(Pid::from_raw(process.pid))?.now()?.into())
}
