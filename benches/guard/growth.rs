//! A process takes memory at a steady rate.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::Current;

use crate::account::{KernelLog, Margin};
use crate::scene::Scene;
use crate::support::allocator::{Allocator, Appetite, End};

/// Mebibytes per second; zero is as fast as it can.
const RATES: [u64; 4] = [50, 200, 500, 0];
/// For how many milliseconds an agent is stopped.
const STOPS: [u64; 6] = [0, 10, 25, 50, 100, 200];
/// What a process takes meanwhile.
const LATE_UNTIL: u64 = 1024;

pub(crate) async fn measure(rate: Option<u64>, runs: usize) -> anyhow::Result<()> {
    let until = ((procfs::Meminfo::current()?.mem_available.unwrap_or(0) / 3) >> 20).min(2048);
    println!("\none process from a limit of 128 MiB to {until} MiB in use, maxAllowed 4 GiB, {runs} runs each");
    println!(
        "  {:>9} {:>8} {:>7} {:>16} {:>16} {:>14} {:>14}",
        "rate", "guard", "killed", "killed at most at", "growths (median)", "lent unused", "took (median)"
    );
    for rate in RATES.into_iter().filter(|one| rate.is_none_or(|rate| rate == *one)) {
        let free = unlimited(rate, until).await;
        println!(
            "  {:>9} {:>8} {:>7} {:>16} {:>16} {:>14} {:>14}",
            shown(rate),
            "no limit",
            0,
            "-",
            "-",
            "-",
            format!("{:.2} s", free.as_secs_f64())
        );
        // Without the guard nothing varies.
        for (guard, runs) in [(false, runs.min(3)), (true, runs)] {
            rounds(rate, until, guard, runs).await?;
        }
    }
    Ok(())
}

async fn rounds(rate: u64, until: u64, guard: bool, runs: usize) -> anyhow::Result<()> {
    let (mut killed, mut highest, mut growths, mut unused, mut took) = (0, 0, Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let scene = Scene::start(1, guard).await;
        let mut log = KernelLog::from_now()?;
        let mut process = start(&scene, rate, until);
        match process.wait() {
            End::Killed(taken) => {
                killed += 1;
                highest = taken.max(highest);
                if guard {
                    println!("    {}\n{}", Margin::of(&scene.agent.log()), log.account(&scene)?);
                }
            }
            End::Satisfied(time) => {
                took.push(time);
                unused.push(scene.limit().saturating_sub(until));
                if guard {
                    println!("    {}", Margin::of(&scene.agent.log()));
                }
                let history = scene.agent.history().await;
                growths.push(
                    history
                        .iter()
                        .filter(|change| change.cause.starts_with("guard:"))
                        .count() as u64,
                );
            }
        }
    }
    let median = |list: &mut Vec<u64>| {
        list.sort_unstable();
        list.get(list.len() / 2).map_or_else(|| "-".to_owned(), u64::to_string)
    };
    took.sort_unstable();
    println!(
        "  {:>9} {:>8} {:>7} {:>16} {:>16} {:>14} {:>14}",
        shown(rate),
        if guard { "yes" } else { "no" },
        format!("{killed}/{runs}"),
        if killed > 0 {
            format!("{highest} MiB")
        } else {
            "-".to_owned()
        },
        median(&mut growths),
        format!("{} MiB", median(&mut unused)),
        took.get(took.len() / 2)
            .map_or_else(|| "-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64())),
    );
    Ok(())
}

/// An agent that gets no processor for so long, again and again: what it can be late by.
pub(crate) async fn late(runs: usize) -> anyhow::Result<()> {
    println!(
        "\none process as fast as it can from 128 MiB to {LATE_UNTIL} MiB, the agent stopped half of the time, {runs} runs each"
    );
    for stop in STOPS.map(Duration::from_millis) {
        let mut killed = 0;
        for _ in 0..runs {
            let scene = Scene::start(1, true).await;
            let mut log = KernelLog::from_now()?;
            let agent = Pid::from_raw(scene.agent.pid());
            let mut process = start(&scene, 0, LATE_UNTIL);
            while process.lives() && process.taken() < LATE_UNTIL {
                if stop.is_zero() {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                kill(agent, Signal::SIGSTOP)?;
                std::thread::sleep(stop);
                kill(agent, Signal::SIGCONT)?;
                std::thread::sleep(stop);
            }
            let margin = Margin::of(&scene.agent.log());
            if let End::Killed(taken) = process.wait() {
                killed += 1;
                let account = log.account(&scene)?;
                let said = account
                    .lines()
                    .find(|line| line.contains("memory: usage"))
                    .unwrap_or_default();
                println!("    killed at {taken} MiB; {margin}; {}", said.trim());
            } else {
                println!("    {margin}");
            }
        }
        println!("  stopped for {stop:>6.0?}: {killed} of {runs} killed");
    }
    Ok(())
}

/// How long the same takes without any limit.
async fn unlimited(rate: u64, until: u64) -> Duration {
    let scene = Scene::start(1, false).await;
    let pod = &scene.pods[0];
    for cgroup in [&pod.cgroup, &pod.containers["app"].cgroup] {
        let unlimited = vscaled::model::MemoryLimit::Max;
        scene.node.cgroups().limit_memory(cgroup, unlimited);
    }
    match start(&scene, rate, until).wait() {
        End::Satisfied(time) => time,
        End::Killed(_) => Duration::MAX,
    }
}

fn start(scene: &Scene, rate: u64, until: u64) -> Allocator {
    Allocator::start(
        scene.node.cgroups(),
        &scene.pods[0].containers["app"].cgroup,
        Appetite { rate, until },
    )
}

fn shown(rate: u64) -> String {
    if rate == 0 {
        "fastest".to_owned()
    } else {
        format!("{rate} MiB/s")
    }
}
