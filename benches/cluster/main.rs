//! What hundreds of nodes cost one API server: real agents' sources against a real kube-apiserver with etcd.
//!
//!     scripts/bench fleet      needs scripts/kube-parts
//!     cargo bench --bench cluster [-- [--quick] [--nodes N] [--pods N] [--namespaces N] [--kinds KIND,...]]
//!
//! Each node is the agent's own [`KubernetesSource`] with its own connections and the rights it is deployed with. Beside it,
//! against the same API server: the same without the pauses by which agents come back one after the other (`hasty`), and a node
//! that watches every VPA, LimitRange and HorizontalPodAutoscaler of the cluster, as agents with informers do (`everything`). For
//! each: starting all at once, being at rest, a recommender's round over all VPAs, one VPA that concerns every node and what all
//! nodes do then, pods and VPAs that come and go, and the API server starting again under them.
//!
//! Prints and never judges.
//!
//! [`KubernetesSource`]: vscaled::sources::kubernetes::KubernetesSource

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

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use fleet::{Everything, Fleet, Hasty, Node};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use objects::{EVERYWHERE, Shape, herd};
use procfs::Current;
use server::Load;
use support::cluster::{ApiServer, User};
use support::fleet::{Calls, Local};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use vscaled::pace::spread_window;

/// How often calls are counted.
const COUNTED: Duration = Duration::from_millis(100);
/// How often the API server is started again while nodes come back.
const MOST_TRIES: usize = 20;

/// How much to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer nodes and shorter measurements.
    #[arg(long)]
    quick: bool,
    /// How many nodes.
    #[arg(long)]
    nodes: Option<usize>,
    /// How many pods there are on each, beside the one of what runs everywhere.
    #[arg(long, default_value_t = 5)]
    pods: usize,
    /// How many namespaces there are; half as many as nodes by default.
    #[arg(long)]
    namespaces: Option<usize>,
    /// What runs on the nodes.
    #[arg(long, value_delimiter = ',', default_value = "local,hasty,everything")]
    kinds: Vec<Kind>,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Local,
    Hasty,
    Everything,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // Each node has a few connections.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let nodes = arguments.nodes.unwrap_or(if arguments.quick { 30 } else { 100 });
    let rest = Duration::from_secs(if arguments.quick { 20 } else { 60 });
    let namespaces = arguments.namespaces.unwrap_or(nodes.div_ceil(2));
    let shape = Shape::of(nodes, arguments.pods, namespaces);
    let load = procfs::LoadAverage::current()?.one;
    let mut cluster = ApiServer::start("cluster").context("there is no API server to measure")?;
    shape.create(&cluster).await?;
    println!("{shape}; load {load}\n");
    server::print_titles();
    let mut notes = Vec::new();
    for (number, kind) in arguments.kinds.iter().enumerate() {
        if number > 0 {
            // Until the API server has noticed that the others are gone.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        notes.extend(match kind {
            Kind::Local => measure::<Local>("local", &mut cluster, &shape, rest).await?,
            Kind::Hasty => measure::<Hasty>("hasty", &mut cluster, &shape, rest).await?,
            Kind::Everything => measure::<Everything>("everything", &mut cluster, &shape, rest).await?,
        });
    }
    println!("\n{}", notes.join("\n"));
    Ok(())
}

/// Measures nodes of one kind; returns what the table has no column for.
async fn measure<N: Node>(
    name: &str,
    cluster: &mut ApiServer,
    shape: &Shape,
    rest: Duration,
) -> anyhow::Result<Vec<String>> {
    let row = |what: &str, from: &Load, took: Duration, cluster: &ApiServer| {
        let now = Load::now(cluster);
        now.print(&format!("{name}: {what}"), from, took, shape.nodes_as_float());
        now
    };
    let mut notes = Vec::new();
    let calls = Arc::new(Calls::new());
    let (idle, memory) = (Load::now(cluster), server::own_memory()?);
    let busiest = Busiest::of(&calls);
    let started = Instant::now();
    let fleet = Fleet::<N>::start(cluster, shape, &calls).await;
    fleet.knows(shape).await;
    notes.push(format!("{name}: all start at once: {}", busiest.end().await));
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
    notes.push(format!(
        "{name}: {:.1} watches and {:.0} kB of memory in the agent's place for each node; the last node heard the last change after {} ms",
        (told.watchers - idle.watchers) / shape.nodes_as_float(),
        kilobytes / shape.nodes_as_float(),
        last.as_millis(),
    ));

    let speaking = Instant::now();
    let round = shape.recommend_everywhere(cluster).await?;
    let spoken = Instant::now();
    fleet.heard_of(EVERYWHERE, round).await;
    notes.push(format!(
        "{name}: the last node heard of one VPA after {} ms",
        spoken.elapsed().as_millis()
    ));
    let all = row("one VPA concerns every node", &told, speaking.elapsed(), cluster);

    let mut clients = Vec::new();
    for _ in 0..shape.nodes {
        clients.push(calls.client(cluster, User::Agent).await);
    }
    let window = spread_window(shape.nodes as u64);
    let acting = Instant::now();
    for (what, window) in [("all at once", Duration::ZERO), ("at their places", window)] {
        notes.push(format!(
            "{name}: one Event of each node, {what}: {}",
            herd(&clients, window).await
        ));
    }
    drop(clients);
    let acted = row("one Event of each node, twice", &all, acting.elapsed(), cluster);

    let churning = Instant::now();
    let changed = shape.churn(cluster, (shape.nodes / 100).max(5)).await?;
    fleet.knows(shape).await;
    row(
        &format!("{changed} pods and VPAs change"),
        &acted,
        churning.elapsed(),
        cluster,
    );

    let busiest = Busiest::of(&calls);
    let stopped = Instant::now();
    let ended = tokio::task::block_in_place(|| {
        cluster.stop();
        // An outage that every node notices.
        std::thread::sleep(Duration::from_secs(10));
        (0..MOST_TRIES).take_while(|_| cluster.try_launch().is_err()).count()
    });
    ensure!(ended < MOST_TRIES, "the API server ended itself {ended} times");
    server::all_back(cluster, told.watchers).await;
    row(
        "the API server comes back",
        &Load::default(),
        stopped.elapsed(),
        cluster,
    );
    let round = shape.recommend(cluster).await?;
    fleet.heard(shape, round).await;
    notes.push(format!(
        "{name}: the API server comes back, having ended itself {ended} times: {}",
        busiest.end().await
    ));
    Ok(notes)
}

/// Counts the calls of a second.
struct Busiest {
    stop: CancellationToken,
    counted: JoinHandle<Vec<[u64; 2]>>,
}

impl Busiest {
    fn of(calls: &Arc<Calls>) -> Self {
        let (calls, stop) = (Arc::clone(calls), CancellationToken::new());
        let stopped = stop.clone();
        let counted = tokio::spawn(async move {
            let mut counted = vec![calls.answered()];
            while !stopped.is_cancelled() {
                tokio::time::sleep(COUNTED).await;
                counted.push(calls.answered());
            }
            counted
        });
        Self { stop, counted }
    }

    async fn end(self) -> String {
        self.stop.cancel();
        let Ok(counted) = self.counted.await else {
            return String::new();
        };
        let (first, last) = (counted[0], counted[counted.len() - 1]);
        let in_a_second = counted.windows(11).map(|second| second[10][0] - second[0][0]).max();
        format!(
            "{} calls, at most {} in a second, {} refused or broken off",
            last[0] - first[0],
            in_a_second.unwrap_or(last[0] - first[0]),
            last[1] - first[1]
        )
    }
}
