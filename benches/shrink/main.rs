//! Memory limits that come down under a process that takes and gives back memory as fast as it can: who is killed, what
//! succeeds, how long anybody stands still.
//!
//!     cargo bench --bench shrink [-- [--quick] [--tries COUNT] [--kills COUNT] [PART...]]      as root
//!
//! Parts, all of them by default:
//! - `kills`: from 200 MiB to limits below and above what the process uses, by a plain write, by a write with a look before
//!   and after it, by vscaled's write with and without its freezer, and by the whole agent;
//! - `freeze`: one limit lowered again and again above what is used: how long that takes, and how long one and eight
//!   processes stand still for it;
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

/// How much to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// A tenth of it.
    #[arg(long)]
    quick: bool,
    /// How often a limit is lowered; 1,000 times by default.
    #[arg(long)]
    tries: Option<usize>,
    /// How often the agent is killed; a fifth of all tries by default.
    #[arg(long)]
    kills: Option<usize>,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// What to measure; everything by default.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Kills,
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
    if wanted(Part::Freeze) {
        freeze::measure(tries)?;
    }
    if wanted(Part::Killed) {
        killed::measure(arguments.kills.unwrap_or(tries / 5)).await?;
    }
    machine::print_load()
}
