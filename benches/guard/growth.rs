//! A process that allocates memory at a steady rate.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::Current;
use serde_json::{Value, json};

use crate::account::{KernelLog, Margin};
use crate::common::Figures;
use crate::scene::Scene;
use crate::support::allocator::{Allocation, Allocator, End};

/// MiB per second; zero means as fast as possible.
const RATES: [u64; 4] = [50, 200, 500, 0];
/// The times in milliseconds for which an agent is stopped.
const STOPS: [u64; 6] = [0, 10, 25, 50, 100, 200];
/// The MiB that a process allocates meanwhile.
const LATE_UNTIL: u64 = 1024;

pub(crate) async fn measure(rate: Option<u64>, runs: usize) -> anyhow::Result<()> {
    let until = ((procfs::Meminfo::current()?.mem_available.unwrap_or(0) / 3) >> 20).min(2048);
    let title = format!(
        "one process from a limit of 128 MiB to {until} MiB in use, maxAllowed 4 GiB, {runs} runs with the guard"
    );
    let mut figures = Figures::new("growth", title);
    for rate in RATES.into_iter().filter(|one| rate.is_none_or(|rate| rate == *one)) {
        let free = unlimited(rate, until).await;
        figures.row([
            ("mib_per_second", shown(rate)),
            ("guard", json!("no limit")),
            ("runs", json!(1)),
            ("killed", json!(0)),
            ("killed_at_most_at_mib", Value::Null),
            ("growths", Value::Null),
            ("lent_unused_mib", Value::Null),
            ("seconds", json!(free.as_secs_f64())),
        ]);
        // Without the guard the results do not vary.
        for (guard, runs) in [(false, runs.min(3)), (true, runs)] {
            figures.row(rounds(rate, until, guard, runs).await?);
        }
    }
    figures.print()
}

/// Runs one rate several times. Amounts are medians.
async fn rounds(rate: u64, until: u64, guard: bool, runs: usize) -> anyhow::Result<[(&'static str, Value); 8]> {
    let (mut killed, mut highest, mut growths, mut unused, mut took) = (0, None, Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let scene = Scene::start(1, guard).await;
        let mut log = KernelLog::from_now()?;
        let mut process = start(&scene, rate, until);
        match process.wait() {
            End::Killed(taken) => {
                killed += 1;
                highest = highest.max(Some(taken));
                if guard {
                    println!("    {}\n{}", Margin::of(&scene.agent.log()), log.account(&scene)?);
                }
            }
            End::Satisfied(time) => {
                took.push(time.as_millis());
                unused.push(u128::from(scene.limit().saturating_sub(until)));
                if guard {
                    println!("    {}", Margin::of(&scene.agent.log()));
                }
                let history = scene.agent.history().await;
                let grew = history.iter().filter(|change| change.cause.starts_with("guard:"));
                growths.push(grew.count() as u128);
            }
        }
    }
    let median = |mut list: Vec<u128>| {
        list.sort_unstable();
        list.get(list.len() / 2).copied()
    };
    Ok([
        ("mib_per_second", shown(rate)),
        ("guard", json!(guard)),
        ("runs", json!(runs)),
        ("killed", json!(killed)),
        ("killed_at_most_at_mib", json!(highest)),
        ("growths", json!(median(growths))),
        ("lent_unused_mib", json!(median(unused))),
        ("seconds", json!(median(took).map(|millis| millis as f64 / 1000.0))),
    ])
}

/// An agent that gets no processor for this time, again and again: its possible delay.
pub(crate) async fn late(runs: usize) -> anyhow::Result<()> {
    println!(
        "\none process as fast as it can from 128 MiB to {LATE_UNTIL} MiB, the agent stopped half of the time, {runs} runs each"
    );
    let mut figures = Figures::new("late", "the same while the agent was stopped half of the time");
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
        figures.row([
            ("stopped_ms", json!(stop.as_millis())),
            ("runs", json!(runs)),
            ("killed", json!(killed)),
        ]);
    }
    figures.print()
}

/// The duration of the same growth without any limit.
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
        Allocation { rate, until },
    )
}

fn shown(rate: u64) -> Value {
    if rate == 0 { json!("fastest") } else { json!(rate) }
}
