//! What the agent costs while nothing happens.

use std::time::{Duration, Instant};

use anyhow::Context;
use procfs::process::Process;

use crate::agent::Agent;
use crate::files::{cgroups, run};
use crate::workload::Workload;

/// Recommendations that are followed before: an agent that has never worked is no agent at rest.
const WORK: usize = 4;
/// What the last pass leaves to be done is over by then: looking at its own writes, saving, and setting the guard's alarms
/// anew, of which the kernel takes some fifty a second. The last recommendation raises limits, so nothing is watched.
pub(crate) const SETTLE: Duration = Duration::from_secs(30);

pub(crate) async fn measure(pods: usize, period: Duration) -> anyhow::Result<()> {
    let workload = Workload::new(pods, 1);
    let (_tree, kubepods) = cgroups(&workload);
    let mut agent = Agent::start(&kubepods, None, &workload.pods(), pods).await?;
    let process = Process::new(i32::try_from(agent.pid())?)?;
    let fresh = Memory::of(&process)?;
    run(&mut agent, &workload, WORK).await?;
    tokio::time::sleep(SETTLE).await;

    println!("\nat rest with {pods} containers");
    measure_rest(&process, period, &fresh).await?;
    println!("  {:<44} {}", "threads", process.status()?.threads);
    Ok(())
}

/// Prints what a process that rests takes, and what it took when it was `fresh`.
pub(crate) async fn measure_rest(process: &Process, period: Duration, fresh: &Memory) -> anyhow::Result<()> {
    let (start, before) = (Instant::now(), processor_time(process)?);
    tokio::time::sleep(period).await;
    let used = processor_time(process)?.saturating_sub(before);
    let share = used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    println!("  {:<44} {share:.2} % of a core over {period:?}", "processor time");
    println!("  {:<44} {}", "memory before the first recommendation", fresh.shown());
    println!("  {:<44} {}", "memory at the end", Memory::of(process)?.shown());
    Ok(())
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
        let [resident, anonymous, peak] = [self.resident, self.anonymous, self.peak].map(|kilobytes| {
            let tenths = (kilobytes * 10).div_ceil(1024);
            format!("{}.{} MiB", tenths / 10, tenths % 10)
        });
        format!("{resident} resident ({anonymous} of it anonymous), {peak} at most so far")
    }
}

/// In user and kernel mode, all threads.
fn processor_time(process: &Process) -> anyhow::Result<Duration> {
    let stat = process.stat()?;
    let ticks = procfs::ticks_per_second();
    Ok(Duration::from_millis((stat.utime + stat.stime) * 1000 / ticks))
}
