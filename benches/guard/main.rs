//! The benefit and the cost of the guard, measured on the built daemon with processes that really allocate memory.
//!
//!     cargo bench --bench guard [-- [--quick] [--kills COUNT] [--rate MIB] [--runs COUNT] [PART...]]      as root
//!
//! Parts, all of them by default:
//! - `growth`: a process allocates memory from a limit of 128 MiB on, at several rates, with the guard and without;
//!   for a process that is killed although it is guarded, the facts from the kernel and the guard about that moment;
//! - `late`: the same at full speed, while the agent gets no processor for some time, again and again;
//! - `rest`: processor time of the agent while 250 guarded containers are idle;
//! - `killed`: the agent killed at random moments of growths, of races for the last memory, and of temporary cpu
//!   limits;
//! - `brake`: cgroup v2 only: the effect of a `memory.high` below the limit;
//! - `steady`: cgroup v2 only: its cost for a process that works between it and the limit;
//! - `bursts`: latency and throttling of a service that uses little cpu on average, with a burst, with the guard and with neither.
//!
//! The benchmark prints results and judges none. It creates everything below its own cgroups and temporary
//! directories, and removes it again.

mod account;
mod brake;
mod bursts;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;
mod growth;
mod killed;
mod rest;
mod scene;

#[path = "../../tests/it/support/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the tests' own helpers, which fail by panicking; not all of them are needed here"
)]
mod support;

use std::time::Duration;

use clap::{Parser, ValueEnum};

/// The extent of the measurement.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer and shorter measurements.
    #[arg(long)]
    quick: bool,
    /// The number of times that the agent is killed; a tenth of it with --quick.
    #[arg(long, default_value_t = 130)]
    kills: usize,
    /// A single rate of growth, in mebibytes per second; zero is as fast as possible.
    #[arg(long)]
    rate: Option<u64>,
    /// The number of measurements of each growth.
    #[arg(long)]
    runs: Option<usize>,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// The parts to measure; everything by default.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Growth,
    Late,
    Rest,
    Killed,
    Brake,
    Steady,
    Bursts,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // As the allocating process, the program does nothing else.
    support::allocator::run_if_instructed();
    let arguments = Arguments::parse();
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let runs = arguments.runs.unwrap_or(if arguments.quick { 3 } else { 20 });
    let load = procfs::LoadAverage::current();
    println!("load {:?}", load.map(|load| load.one));
    if wanted(Part::Growth) {
        growth::measure(arguments.rate, runs).await?;
    }
    if wanted(Part::Late) {
        growth::late(runs.min(5)).await?;
    }
    if wanted(Part::Rest) {
        let period = Duration::from_secs(if arguments.quick { 10 } else { 60 });
        rest::measure(250, period).await?;
    }
    if wanted(Part::Killed) {
        let kills = if arguments.quick {
            arguments.kills / 10
        } else {
            arguments.kills
        };
        killed::measure(kills).await?;
    }
    if wanted(Part::Brake) {
        brake::measure(runs).await?;
    }
    if wanted(Part::Steady) {
        brake::steady::measure()?;
    }
    if wanted(Part::Bursts) {
        bursts::measure(if arguments.quick { 40 } else { 250 }).await?;
    }
    Ok(())
}

use procfs::Current;
