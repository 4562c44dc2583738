//! The cost of thousands of nodes at one API server: the sources of real agents with a real kube-apiserver and etcd.
//!
//!     scripts/bench fleet      needs scripts/kube-parts
//!     cargo bench --bench cluster [-- [--quick] [--nodes N] [--pods N] [--namespaces N] [--kinds KIND,...] [--wave N] [--outage SECONDS]]
//!
//! Each node is the agent's own [`KubernetesSource`] with its own connections and the deployed rights. Two other
//! kinds of nodes run with the same API server for comparison: the agent without the random delays after an outage
//! (`hasty`), and a node that watches every VPA, LimitRange and HorizontalPodAutoscaler of the cluster, like agents
//! with informers (`everything`). For each kind, the benchmark measures the start as in a DaemonSet's rollout, rest,
//! a recommender's round over all VPAs, one VPA that concerns every node with the reaction of all nodes, pods and
//! VPAs that come and go, and a kill and restart of the API server under all nodes.
//!
//! The benchmark prints results and judges none.
//!
//! [`KubernetesSource`]: vscaled::sources::kubernetes::KubernetesSource

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;
mod fleet;
mod objects;
mod phases;
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
use phases::Phases;
use procfs::Current;
use serde_json::{Value, json};
use support::cluster::{ApiServer, Release};
use support::fleet::{Calls, Local};
use vscaled::pace::spread_window;

/// The maximum number of restarts of the API server while nodes reconnect.
const MOST_TRIES: usize = 10;
/// The longest time until the API server is ready, and until all watches have started after that.
const RETURN: Duration = Duration::from_secs(600);
/// Descriptors: two connections of each node, also for the API server, which inherits this limit.
const DESCRIPTORS: u64 = 200_000;

/// The extent of the measurement.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer nodes and shorter measurements.
    #[arg(long)]
    quick: bool,
    /// The number of nodes.
    #[arg(long)]
    nodes: Option<usize>,
    /// The number of pods on each node, besides the pod of the workload on every node.
    #[arg(long, default_value_t = 5)]
    pods: usize,
    /// The number of namespaces; half the number of nodes by default.
    #[arg(long)]
    namespaces: Option<usize>,
    /// The kinds of nodes.
    #[arg(long, value_delimiter = ',', default_value = "local,hasty,everything")]
    kinds: Vec<Kind>,
    /// The number of nodes that start at once. The next wave starts when they know their pods.
    #[arg(long, default_value_t = 500)]
    wave: usize,
    /// The length of the API server's outage in seconds.
    #[arg(long, default_value_t = 10)]
    outage: u64,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Local,
    Hasty,
    Everything,
}

/// Durations, and the number of nodes that start at once.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rest: Duration,
    outage: Duration,
    wave: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Only root may raise the hard limit.
    let most = if setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS).is_ok() {
        DESCRIPTORS
    } else {
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        most
    };
    let nodes = arguments.nodes.unwrap_or(if arguments.quick { 30 } else { 100 });
    ensure!(
        nodes as u64 * 3 < most,
        "{nodes} nodes need more than {most} file descriptors: raise the hard limit (ulimit -Hn)"
    );
    let plan = Plan {
        rest: Duration::from_secs(if arguments.quick { 20 } else { 60 }),
        outage: Duration::from_secs(arguments.outage),
        wave: arguments.wave,
    };
    let namespaces = arguments.namespaces.unwrap_or(nodes.div_ceil(2));
    let shape = Shape::of(nodes, arguments.pods, namespaces);
    let load = procfs::LoadAverage::current()?.one;
    let mut cluster = ApiServer::start(Release::Legacy, "cluster").context("there is no API server to measure")?;
    let made = Instant::now();
    shape.create(&cluster).await?;
    let title = format!("{shape}; {plan}; load {load}");
    println!("{title}; objects made in {:.0?}\n", made.elapsed());
    phases::print_titles();
    let mut kept = Kept::default();
    for kind in &arguments.kinds {
        let measured = match kind {
            Kind::Local => measure::<Local>("local", &mut cluster, &shape, plan, &mut kept).await,
            Kind::Hasty => measure::<Hasty>("hasty", &mut cluster, &shape, plan, &mut kept).await,
            Kind::Everything => measure::<Everything>("everything", &mut cluster, &shape, plan, &mut kept).await,
        };
        if let Err(error) = measured {
            kept.note(format!("{kind:?} came to no end: {error:#}"));
        }
        // Waits until the API server has noticed that the nodes are gone.
        if !cluster.is_launched() {
            cluster.launch();
        }
        tokio::task::block_in_place(|| server::all_gone(&cluster, RETURN))?;
    }
    kept.print(&title)
}

/// The results.
#[derive(Default)]
struct Kept {
    phases: Vec<Value>,
    herds: Vec<Value>,
    returns: Vec<Value>,
    notes: Vec<String>,
}

impl Kept {
    fn note(&mut self, note: String) {
        println!("  {note}");
        self.notes.push(note);
    }

    fn print(&self, title: &str) -> anyhow::Result<()> {
        println!("\n{}", self.notes.join("\n"));
        common::keep("fleet", title, &self.phases)?;
        common::keep("fleet-herd", "each node posts one Event", &self.herds)?;
        common::keep(
            "fleet-return",
            "each second after the API server was killed",
            &self.returns,
        )
    }
}

/// Measures nodes of one kind.
async fn measure<N: Node>(
    name: &'static str,
    cluster: &mut ApiServer,
    shape: &Shape,
    plan: Plan,
    kept: &mut Kept,
) -> anyhow::Result<()> {
    let calls = Arc::new(Calls::new());
    let mut phases = Phases::of(name, shape.nodes_as_float(), &calls, cluster)?;
    let idle = *phases.begun_with();
    let measured = follow::<N>(name, cluster, shape, plan, &mut phases, &calls, kept).await;
    kept.phases.append(&mut phases.rows);
    let (fleet, running) = measured?;
    let each = |after: f64, before: f64| (after - before) / 1e3 / shape.nodes_as_float();
    kept.note(format!(
        "{name}: {:.1} watches, {:.0} kB in the agents' process and {:.0} kB in the API server for each node",
        (running.server.watchers - idle.server.watchers) / shape.nodes_as_float(),
        each(running.agents.memory, idle.agents.memory),
        each(running.server.memory, idle.server.memory),
    ));
    let returned = come_back(
        name,
        cluster,
        shape,
        plan,
        &mut phases,
        &fleet,
        running.server.watchers,
        kept,
    )
    .await;
    kept.phases.append(&mut phases.rows);
    returned
}

/// Measures everything except the outage. Returns the nodes, and the counts after the start.
async fn follow<N: Node>(
    name: &'static str,
    cluster: &ApiServer,
    shape: &Shape,
    plan: Plan,
    phases: &mut Phases,
    calls: &Calls,
    kept: &mut Kept,
) -> anyhow::Result<(Fleet<N>, server::Load)> {
    let fleet = Fleet::<N>::start(cluster, shape, plan.wave, calls).await?;
    let running = phases.end("all start", cluster)?.0;

    tokio::time::sleep(plan.rest).await;
    phases.end("at rest", cluster)?;

    let round = shape.recommend(cluster).await?;
    let spoken = Instant::now();
    fleet.heard(shape, round).await?;
    let last = spoken.elapsed();
    phases.end("every VPA changes", cluster)?;

    let round = shape.recommend_everywhere(cluster).await?;
    let spoken = Instant::now();
    fleet.heard_of(EVERYWHERE, round).await?;
    kept.note(format!(
        "{name}: the last node heard of the last of all VPAs after {} ms, of one VPA that concerns it after {} ms",
        last.as_millis(),
        spoken.elapsed().as_millis()
    ));
    phases.end("one VPA concerns every node", cluster)?;

    let places = spread_window(shape.nodes as u64);
    for (what, window) in [("at once", Duration::ZERO), ("at their places", places)] {
        let posted = herd(&fleet.clients, window).await;
        kept.note(format!("{name}: one Event of each node, {what}: {posted}"));
        kept.herds.push(posted.row(name, window));
        phases.end(&format!("one Event of each, {what}"), cluster)?;
    }

    let changed = shape.churn(cluster, (shape.nodes / 100).max(5)).await?;
    fleet.knows(shape).await?;
    phases.end(&format!("{changed} pods and VPAs change"), cluster)?;
    Ok((fleet, running))
}

/// Kills the API server, and starts it again after a while under all nodes.
#[expect(clippy::too_many_arguments, reason = "what a phase needs, of one that is apart")]
async fn come_back<N: Node>(
    name: &'static str,
    cluster: &mut ApiServer,
    shape: &Shape,
    plan: Plan,
    phases: &mut Phases,
    fleet: &Fleet<N>,
    watchers: f64,
    kept: &mut Kept,
) -> anyhow::Result<()> {
    let stopped = Instant::now();
    cluster.stop();
    let mut ends = Vec::new();
    tokio::task::block_in_place(|| {
        std::thread::sleep(plan.outage);
        while ends.len() < MOST_TRIES {
            match cluster.try_launch(RETURN) {
                Ok(()) => break,
                Err(ended) => ends.push(ended),
            }
        }
    });
    phases.server_restarted();
    let ready = stopped.elapsed();
    if !ends.is_empty() {
        kept.note(format!(
            "{name}: the API server did not come up {} times: {}",
            ends.len(),
            ends[0]
        ));
    }
    ensure!(cluster.is_launched(), "the API server did not come up");
    fleet.is_ready();
    let back = server::all_back(cluster, watchers, RETURN).await?;
    let all = stopped.elapsed();
    let (_, seconds) = phases.end("the API server comes back", cluster)?;
    for (second, [calls, refused, connections]) in seconds.iter().enumerate() {
        kept.returns.push(json!({
            "kind": name, "second": second, "calls": calls, "refused": refused, "connections": connections,
        }));
    }
    let answered = seconds.iter().map(|[calls, refused, _]| calls - refused);
    kept.note(format!(
        "{name}: away for {:?}, ready {:.0?} after its end, {} watches back after {all:.0?}; answers in each second: {}",
        plan.outage,
        ready,
        if back { "all" } else { "not all" },
        series(answered)
    ));
    kept.note(format!(
        "{name}: connections in each second: {}",
        series(seconds.iter().map(|counts| counts[2]))
    ));
    let round = shape.recommend(cluster).await?;
    fleet.heard(shape, round).await?;
    phases.end("every VPA changes again", cluster)?;
    Ok(())
}

fn series(counts: impl Iterator<Item = u64>) -> String {
    let counts: Vec<_> = counts.map(|count| count.to_string()).collect();
    counts.join(" ")
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rest, outage, wave } = self;
        write!(f, "{wave} start at once, {rest:?} at rest, away for {outage:?}")
    }
}
