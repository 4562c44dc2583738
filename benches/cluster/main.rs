//! What hundreds of nodes cost one API server: real agents' sources against a real kube-apiserver with etcd.
//!
//!     cargo bench --bench cluster [-- [--quick] [--nodes N] [--pods N]]      needs scripts/kube-parts
//!
//! Each node is the agent's own [`KubernetesSource`] with its own connections and the rights it is deployed with. Beside it,
//! against the same API server: a node that watches every VPA, LimitRange and HorizontalPodAutoscaler of the cluster, as
//! agents with informers do. For both: starting all at once, being at rest, a recommender's round over all VPAs, and the
//! API server starting again under them.
//!
//! Prints and never judges.

mod fleet;
mod objects;
mod server;

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

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use fleet::{Everything, Fleet, Local, Node};
use objects::Shape;
use procfs::Current;
use server::Load;
use support::cluster::ApiServer;

/// How much to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer nodes and shorter measurements.
    #[arg(long)]
    quick: bool,
    /// How many nodes.
    #[arg(long)]
    nodes: Option<usize>,
    /// How many pods there are on each.
    #[arg(long, default_value_t = 5)]
    pods: usize,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let nodes = arguments.nodes.unwrap_or(if arguments.quick { 30 } else { 100 });
    let rest = Duration::from_secs(if arguments.quick { 20 } else { 60 });
    let shape = Shape::of(nodes, arguments.pods);
    let load = procfs::LoadAverage::current()?.one;
    let mut cluster = ApiServer::start("cluster").context("there is no API server to measure")?;
    shape.create(&cluster).await?;
    println!("{shape}; load {load}\n");
    server::print_titles();
    let mut notes = Vec::new();
    notes.extend(measure::<Local>("local", &mut cluster, &shape, rest).await?);
    // Until the API server has noticed that those are gone.
    tokio::time::sleep(Duration::from_secs(5)).await;
    notes.extend(measure::<Everything>("everything", &mut cluster, &shape, rest).await?);
    println!("\n{}", notes.join("\n"));
    Ok(())
}

/// Measures nodes of one kind; returns what the table has no column for.
async fn measure<N: Node>(
    name: &str,
    cluster: &mut ApiServer,
    shape: &Shape,
    rest: Duration,
) -> anyhow::Result<[String; 2]> {
    let row = |what: &str, from: &Load, took: Duration, cluster: &ApiServer| {
        let now = Load::now(cluster);
        now.print(&format!("{name}: {what}"), from, took, shape.nodes_as_float());
        now
    };
    let (idle, memory) = (Load::now(cluster), server::own_memory()?);
    let started = Instant::now();
    let fleet = Fleet::<N>::start(cluster, shape).await?;
    fleet.knows(shape).await;
    let running = row("all start at once", &idle, started.elapsed(), cluster);

    let resting = Instant::now();
    tokio::time::sleep(rest).await;
    let rested = row("at rest", &running, resting.elapsed(), cluster);

    let speaking = Instant::now();
    let round = shape.recommend(cluster).await?;
    let spoken = Instant::now();
    fleet.heard(shape, round).await;
    let last = spoken.elapsed();
    let told = row("every VPA changes", &rested, speaking.elapsed(), cluster);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let kilobytes = server::own_memory()?.saturating_sub(memory) as f64 / 1e3;
    let held = format!(
        "{name}: {:.1} watches and {:.0} kB of memory in the agent's place for each node; the last node heard the last change after {} ms",
        (told.watchers - idle.watchers) / shape.nodes_as_float(),
        kilobytes / shape.nodes_as_float(),
        last.as_millis(),
    );

    let stopped = Instant::now();
    tokio::task::block_in_place(|| {
        cluster.stop();
        cluster.launch();
    });
    let busiest = server::all_back(cluster, told.watchers).await;
    row(
        "the API server starts again",
        &Load::default(),
        stopped.elapsed(),
        cluster,
    );
    let round = shape.recommend(cluster).await?;
    fleet.heard(shape, round).await;
    let back = format!("{name}: at most {busiest:.0} requests in a second when the API server was back");
    Ok([held, back])
}
