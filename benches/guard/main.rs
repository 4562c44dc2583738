//! What the guard saves and what it costs, measured on the built daemon with processes that really take memory.
//!
//!     cargo bench --bench guard [-- [--quick] [--kills COUNT] [--rate MIB] [--runs COUNT] [PART...]]      as root
//!
//! Parts, all of them by default:
//! - `growth`: a process takes memory from a limit of 128 MiB on, at several rates, with the guard and without; of one that is
//!   killed although it is guarded, what the kernel and the guard say of that moment;
//! - `late`: the same as fast as it can, while the agent gets no processor for some time, again and again;
//! - `rest`: processor time of the agent while 250 guarded containers do nothing;
//! - `killed`: the agent killed at random moments of growths, of races for the last memory, and of cpu lending;
//! - `brake`: cgroup v2 only: what a `memory.high` below the limit would add;
//! - `steady`: cgroup v2 only: what it would cost a process that works between it and the limit.
//!
//! Prints and never judges. Everything is made below cgroups and temporary directories of its own and removed again.

mod account;
mod brake;
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

/// How much to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer and shorter measurements.
    #[arg(long)]
    quick: bool,
    /// How often the agent is killed; a tenth of it with --quick.
    #[arg(long, default_value_t = 130)]
    kills: usize,
    /// One rate of growth alone, in mebibytes per second; zero is as fast as it can.
    #[arg(long)]
    rate: Option<u64>,
    /// How often each growth is measured.
    #[arg(long)]
    runs: Option<usize>,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// What to measure; everything by default.
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
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // Started as a process that takes memory, it does nothing else.
    support::allocator::obey();
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
    Ok(())
}

use procfs::Current;
