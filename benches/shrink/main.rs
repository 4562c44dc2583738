//! Shrinks of memory limits under a process that allocates and frees memory as fast as possible: kills, successes,
//! and the time for which processes are frozen.
//!
//!     cargo bench --bench shrink [-- [--quick] [--tries COUNT] [--kills COUNT] [PART...]]      as root
//!
//! Parts, all but `freezer` by default:
//! - `kills`: from 200 MiB to limits below and above the process's use, by a plain write, by a write with a check
//!   before and after it, by vscaled's write with and without its freezer, and by the whole agent;
//! - `freezer`: only with and without the freezer, for many thousand tries; not among the parts by default;
//! - `freeze`: one limit lowered again and again above the use: the duration, and the time for which one and eight
//!   processes are frozen;
//! - `killed`: the agent killed at random moments of shrinks.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;
mod freeze;
mod killed;
mod kills;
#[path = "../resize/machine.rs"]
mod machine;
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

use clap::{Parser, ValueEnum};

/// The extent of the measurement.
#[derive(Debug, Parser)]
struct Arguments {
    /// A tenth of the measurement.
    #[arg(long)]
    quick: bool,
    /// The number of shrinks; 1,000 by default.
    #[arg(long)]
    tries: Option<usize>,
    /// The number of times that the agent is killed; a fifth of all tries by default.
    #[arg(long)]
    kills: Option<usize>,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// The parts to measure; everything but `freezer` by default.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Kills,
    Freezer,
    Freeze,
    Killed,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let tries = arguments.tries.unwrap_or(if arguments.quick { 100 } else { 1000 });
    machine::print()?;
    if wanted(Part::Kills) {
        kills::measure(tries).await?;
    }
    if arguments.parts.contains(&Part::Freezer) {
        kills::measure_freezer(tries)?;
    }
    if wanted(Part::Freeze) {
        freeze::measure(tries)?;
    }
    if wanted(Part::Killed) {
        killed::measure(arguments.kills.unwrap_or(tries / 5)).await?;
    }
    machine::print_load()
}
