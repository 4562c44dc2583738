//! The delay until observers know of a kill, and the cost of observation, measured with real kills.
//!
//!     cargo bench --bench oom [-- [--quick] [PART...]]      as root
//!
//! Parts, all of them by default:
//! - `idle`: one kill at a time, so rarely that the kernel logs each: from the kernel's timestamp until the watcher
//!   has passed on its report, until the agent has reported it at its socket, and until a repeated read of the log
//!   finds it;
//! - `flood`: 75 kills a second, of which the kernel logs two: the reported kills, their cost in processor time and
//!   memory, and the results and the cost of a complete read of the log every second.
//!
//! The benchmark prints results and judges none. It creates everything below its own cgroups and temporary
//! directories, and removes it again.

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

/// The extent of the measurement.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer kills, and a shorter flood.
    #[arg(long)]
    quick: bool,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// The parts to measure; everything by default.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Idle,
    Flood,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // As a victim process, the program does nothing else.
    victim::run_if_instructed()?;
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
