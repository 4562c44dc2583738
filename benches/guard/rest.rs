//! The cost of the guard while all containers are idle.

use std::time::{Duration, Instant};

use procfs::process::Process;
use serde_json::json;

use crate::common::Figures;
use crate::scene::Scene;
use crate::support::allocator::{Allocation, Allocator};

/// The time until the work of the start, such as setting alarms, is done.
const SETTLE: Duration = Duration::from_secs(15);

pub(crate) async fn measure(pods: usize, period: Duration) -> anyhow::Result<()> {
    let mut figures = Figures::new("guard-rest", format!("at rest with {pods} containers, over {period:?}"));
    for (guard, held) in [(false, 0), (true, 0), (true, 60), (true, 114)] {
        let scene = Scene::start(pods, guard).await;
        // Some containers hold memory that they do not touch any more: 114 MiB and a process's own are above the last
        // fixed alarm, and below the level at which the guard reacts to growth.
        let holders: Vec<Allocator> = scene
            .pods
            .iter()
            .take(if held > 0 { 20 } else { 0 })
            .map(|pod| {
                let allocation = Allocation { rate: 4, until: held };
                Allocator::start(scene.node.cgroups(), &pod.containers["app"].cgroup, allocation)
            })
            .collect();
        tokio::time::sleep(SETTLE + Duration::from_secs(held / 4)).await;
        let process = Process::new(scene.agent.pid())?;
        let (start, before, switches) = (Instant::now(), processor_time(&process)?, wakes(&process)?);
        tokio::time::sleep(period).await;
        let used = processor_time(&process)?.saturating_sub(before);
        let share = used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
        let each_second = (wakes(&process)? - switches) as f64 / period.as_secs_f64();
        figures.row([
            ("guard", json!(guard)),
            ("holders", json!(holders.len())),
            ("hold_mib", json!(held)),
            ("core_percent", json!(share)),
            ("wakes_per_second", json!(each_second)),
            ("growths", json!(scene.agent.history().await.len())),
        ]);
    }
    figures.print()
}

/// In user and kernel mode, of all threads, in nanoseconds where the kernel has them.
fn processor_time(process: &Process) -> anyhow::Result<Duration> {
    let mut nanos = 0;
    for task in process.tasks()? {
        let text = std::fs::read_to_string(format!("/proc/{}/task/{}/schedstat", process.pid, task?.tid))?;
        nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// The number of times that any thread has waited and continued.
fn wakes(process: &Process) -> anyhow::Result<u64> {
    let mut wakes = 0;
    for task in process.tasks()? {
        wakes += task?.status()?.voluntary_ctxt_switches.unwrap_or(0);
    }
    Ok(wakes)
}
