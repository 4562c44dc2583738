//! How long after a kill for want of memory who knows of it, and what knowing costs, measured with real kills.
//!
//!     cargo bench --bench oom [-- [--quick] [PART...]]      as root
//!
//! Parts, all of them by default:
//! - `idle`: one kill at a time, so seldom that the kernel explains each: from the kernel's own stamp until the watcher has
//!   handed on its report, until the agent has told it at its socket, and until it is found by reading the log again;
//! - `flood`: 75 kills a second, of which the kernel explains two: what is told, what that costs in processor time and
//!   memory, and what reading the log again each second finds and costs.
//!
//! Prints and never judges. Everything is made below cgroups and temporary directories of its own and removed again.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;
mod flood;
mod idle;
mod log;
#[path = "../resize/machine.rs"]
mod machine;
mod scene;
mod stamps;
mod victim;

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
    /// Fewer kills, and a shorter flood.
    #[arg(long)]
    quick: bool,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// What to measure; everything by default.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Idle,
    Flood,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // Started as a process that is to be killed, it does nothing else.
    victim::obey()?;
    let arguments = Arguments::parse();
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    machine::print()?;
    if wanted(Part::Idle) {
        idle::measure(if arguments.quick { 40 } else { 200 }).await?;
    }
    if wanted(Part::Flood) {
        let period = Duration::from_secs(if arguments.quick { 15 } else { 60 });
        flood::measure(period).await?;
    }
    machine::print_load()
}
