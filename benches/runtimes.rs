//! Shrinks of memory limits under real language runtimes, to 60 % of the memory that they hold, with hooks and
//! without: successes, durations, kills, freed memory.
//!
//!     cargo bench --bench runtimes [-- [--quick] [--tries COUNT] [--hooks-only] [--agent PROGRAM] [RUNTIME...]]      as root
//!
//! The programs of `examples/hooks` run in containers of a private containerd, produce garbage all the time, and
//! allocate their earlier memory again after each try. The benchmark prints results and judges none.

#[path = "common/mod.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;
#[path = "resize/machine.rs"]
mod machine;

#[path = "../tests/it/support/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the tests' own helpers, which fail by panicking; not all of them are needed here"
)]
mod support;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use support::amounts::Amounts;
use support::runtimes::{Held, Language};
use vscaled::control::proto;

/// Enough for the programs' highest use.
const FULL: Amounts = Amounts::doubled(1000, 192);
/// A try ends after this time.
const PATIENCE: Duration = Duration::from_secs(15);
/// After a shrink, a kill within this time still belongs to the try, and the agent may undo the shrink because of it.
const AFTER: Duration = Duration::from_secs(1);
const WAIT: (&str, &str) = ("VSCALED_BEFORE_SHRINK_WAIT", "10s");
const MIB: u64 = 1 << 20;
const POD: &str = "test/web";

/// The extent of the measurement.
#[derive(Debug, Parser)]
struct Arguments {
    /// A tenth of the measurement.
    #[arg(long)]
    quick: bool,
    /// The number of shrinks of each limit.
    #[arg(long, default_value_t = 200)]
    tries: usize,
    /// No measurement without hooks.
    #[arg(long)]
    hooks_only: bool,
    /// The agent to measure, instead of the one of this build.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// The runtimes; all but nginx and Python by default.
    runtimes: Vec<String>,
}

/// The results of the tries.
#[derive(Debug, Default)]
struct Results {
    stood: common::Samples,
    stood_count: usize,
    undone: usize,
    refused: usize,
    unanswered: usize,
    killed: usize,
    freed: Vec<u64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let tries = if arguments.quick {
        arguments.tries / 10
    } else {
        arguments.tries
    };
    let wanted = |language: &Language| match arguments.runtimes.as_slice() {
        [] => !matches!(language, Language::Nginx | Language::Python),
        named => named.iter().any(|name| name == language.name()),
    };
    machine::print()?;
    println!(
        "  {:<14} {:<8} {:>5} {:>7} {:>7} {:>8} {:>11} {:>7} {:>12} {:>12} {:>11}",
        "runtime", "hooks", "tries", "stood", "undone", "refused", "unanswered", "killed", "p50", "p95", "freed MiB"
    );
    let mut rows = Vec::new();
    for language in Language::ALL.into_iter().filter(wanted) {
        for hooks in [false, true]
            .into_iter()
            .filter(|hooks| *hooks || !arguments.hooks_only)
        {
            match measure(language, hooks, tries, arguments.agent.as_ref()).await {
                Ok(results) => rows.push(print(language, hooks, tries, results)),
                Err(why) => println!("  {:<14} {why}", language.name()),
            }
        }
    }
    common::keep("runtimes", "limits lowered to 60 % of what a program holds", &rows)?;
    machine::print_load()
}

fn print(language: Language, hooks: bool, tries: usize, mut results: Results) -> Value {
    results.freed.sort_unstable();
    let freed = results.freed.get(results.freed.len() / 2).copied().unwrap_or_default();
    let time = |percent| format!("{} ms", results.stood.percentile(percent).as_millis());
    println!(
        "  {:<14} {:<8} {tries:>5} {:>7} {:>7} {:>8} {:>11} {:>7} {:>12} {:>12} {:>11}",
        language.name(),
        if hooks { "yes" } else { "no" },
        results.stood_count,
        results.undone,
        results.refused,
        results.unanswered,
        results.killed,
        time(50),
        time(95),
        freed / MIB
    );
    json!({
        "runtime": language.name(), "hooks": hooks, "tries": tries, "stood": results.stood_count, "refused": results.refused,
        "undone": results.undone, "unanswered": results.unanswered, "killed": results.killed, "p50_ms": results.stood.percentile(50).as_millis(),
        "p95_ms": results.stood.percentile(95).as_millis(), "freed_mib": freed / MIB,
    })
}

/// Lowers the limit of one program this many times. The error is a sentence that names the missing runtime.
async fn measure(language: Language, hooks: bool, tries: usize, agent: Option<&PathBuf>) -> Result<Results, String> {
    let mut held = Held::new(language, FULL).await?;
    if let Some(agent) = agent {
        held.run_agent(agent);
    }
    let declared = if hooks {
        [language.hooks(), &[WAIT]].concat()
    } else {
        Vec::new()
    };
    held.describe(&declared);
    held.agent.start().await;
    held.begins().await;
    let is_told = declared.iter().any(|(name, _)| *name == "VSCALED_AFTER_GROW");
    let mut results = Results::default();
    for number in 0..tries {
        if number > 0 {
            grow(&mut held, is_told).await;
        }
        shrink(&mut held, &mut results).await;
    }
    Ok(results)
}

/// Raises the limit again, runs the program's hook if there is one, and waits until the program has allocated its
/// memory.
async fn grow(held: &mut Held, is_told: bool) {
    // A limit that was not lowered does not grow.
    let is_told = is_told && held.limit() < FULL.memory * 2 * MIB;
    held.recommend(FULL);
    held.agent
        .wait_for("the limit to grow", || {
            held.has_ended() || held.limit() == FULL.memory * 2 * MIB
        })
        .await;
    if held.has_ended() {
        held.restart().await;
        return;
    }
    let told = async || {
        let latest = held.agent.history().await.pop()?;
        (!is_told || latest.cause.starts_with("hook after-grow")).then_some(())
    };
    held.agent.until("the program to be told", told).await;
    let asked = held.shared("grow");
    let began = Instant::now();
    drop(fs::write(&asked, ""));
    while asked.exists() && began.elapsed() < PATIENCE && !held.has_ended() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    if held.has_ended() {
        held.restart().await;
    }
}

async fn shrink(held: &mut Held, results: &mut Results) {
    let (before, kills) = (held.usage(), held.kills());
    let target = before * 6 / 10 / (2 * MIB);
    let lower = Amounts::doubled(FULL.cpu, target);
    let began = Instant::now();
    let seen = held.agent.history().await.last().map_or(0, |change| change.sequence);
    held.recommend(lower);
    let mut refused = false;
    while held.limit() != target * 2 * MIB && began.elapsed() < PATIENCE && !refused {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if began.elapsed() > Duration::from_millis(100) {
            let history = held.agent.history().await;
            // The guard reports separately that it does not raise a limit whose shrink is due.
            let mut of_try = history.iter().filter(|change| change.sequence > seen);
            refused = of_try.any(|change| change.outcome == "Refused" && change.cause.starts_with("recommendation"));
        }
    }
    let took = began.elapsed();
    let stood = held.limit() == target * 2 * MIB;
    if stood {
        tokio::time::sleep(AFTER).await;
    }
    if held.kills() > kills || held.has_ended() {
        results.killed += 1;
    } else if !refused && was_undone(held).await {
        results.undone += 1;
    } else if stood {
        results.freed.push(before.saturating_sub(held.usage()));
        results.stood.push(took);
        results.stood_count += 1;
    } else if refused {
        results.refused += 1;
    } else {
        results.unanswered += 1;
    }
}

/// Whether the agent undid the shrink. It would not try again for minutes: an operator's request ends that wait.
async fn was_undone(held: &Held) -> bool {
    let explained = held.agent.client().await.explain(POD.to_owned()).await;
    if !explained.is_ok_and(|reply| reply.next.contains("is tried again at")) {
        return false;
    }
    let full = proto::Amounts {
        cpu: None,
        memory: Some(format!("{}Mi", FULL.memory * 2)),
    };
    let by_hand = proto::ResizeRequest {
        pod: POD.to_owned(),
        containers: vec![proto::ContainerValues {
            name: "app".to_owned(),
            values: Some(proto::Requirements {
                requests: None,
                limits: Some(full),
            }),
        }],
        ..proto::ResizeRequest::default()
    };
    let set = held.agent.resize(by_hand).await;
    let released = held.agent.release(POD).await;
    if let Err(error) = set.and(released) {
        eprintln!("  {error}");
    }
    true
}
