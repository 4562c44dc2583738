//! Counters: the API server's own work, the agents' calls, and the kernel's connections.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::support::cluster::ApiServer;
use crate::support::fleet::Calls;

/// The kinds that nodes follow and read.
const KINDS: [(&str, &str); 6] = [
    ("pods", "Pod"),
    ("nodes", "Node"),
    ("verticalpodautoscalers", "VerticalPodAutoscaler"),
    ("limitranges", "LimitRange"),
    ("horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("deployments", "Deployment"),
];
/// The number of attempts to read the metrics of a busy API server.
const TRIES: usize = 60;

/// Counts since the start of the API server and of this process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) server: Server,
    pub(crate) agents: Agents,
}

/// The API server's own counts since its start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Server {
    /// Gets, lists, and started watches.
    pub(crate) requests: f64,
    /// Events on watches.
    pub(crate) events: f64,
    /// Bytes of these events, and of the answers to gets and lists.
    pub(crate) bytes: f64,
    pub(crate) cpu_seconds: f64,
    /// Memory in use.
    pub(crate) memory: f64,
    /// Open watches.
    pub(crate) watchers: f64,
}

/// The counts of this process, which has all agents.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Agents {
    pub(crate) calls: u64,
    /// Calls that were refused or broke off.
    pub(crate) refused: u64,
    /// Accepted connections on this machine, of all processes.
    pub(crate) connections: u64,
    pub(crate) cpu_seconds: f64,
    /// Memory in use.
    pub(crate) memory: f64,
}

impl Load {
    pub(crate) fn now(cluster: &ApiServer, calls: &Calls) -> anyhow::Result<Self> {
        Ok(Self {
            server: Server::now(cluster)?,
            agents: Agents::now(calls)?,
        })
    }

    /// The difference of the counts. Memory is not a difference.
    pub(crate) fn since(&self, from: &Self) -> Self {
        let (server, agents) = (&self.server, &self.agents);
        Self {
            server: Server {
                requests: server.requests - from.server.requests,
                events: (server.events - from.server.events).max(0.0),
                bytes: (server.bytes - from.server.bytes).max(0.0),
                cpu_seconds: server.cpu_seconds - from.server.cpu_seconds,
                ..*server
            },
            agents: Agents {
                calls: agents.calls - from.agents.calls,
                refused: agents.refused - from.agents.refused,
                connections: agents.connections - from.agents.connections,
                cpu_seconds: agents.cpu_seconds - from.agents.cpu_seconds,
                ..*agents
            },
        }
    }
}

impl Server {
    pub(crate) fn now(cluster: &ApiServer) -> anyhow::Result<Self> {
        let text = metrics(cluster)?;
        let sum = |name: &str, wanted: &dyn Fn(&str) -> bool| -> f64 {
            let lines = text.lines().filter(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && wanted(line)
            });
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        let is_kind = |line: &str| KINDS.iter().any(|(_, kind)| line.contains(&format!("kind=\"{kind}\"")));
        let is_read = |line: &str, verbs: &[&str]| {
            let of = |what: &str| line.contains(what);
            KINDS.iter().any(|(plural, _)| of(&format!("resource=\"{plural}\"")))
                && verbs.iter().any(|verb| of(&format!("verb=\"{verb}\"")))
        };
        let watchers = sum("apiserver_longrunning_requests", &|line| is_read(line, &["WATCH"]));
        let requested = sum("apiserver_request_total", &|line| {
            is_read(line, &["GET", "LIST", "WATCH"])
        });
        let answered = sum("apiserver_response_sizes_sum", &|line| is_read(line, &["GET", "LIST"]));
        Ok(Self {
            // The API server counts a watch as a request when the watch ends.
            requests: requested + watchers,
            events: sum("apiserver_watch_events_total", &is_kind),
            bytes: sum("apiserver_watch_events_sizes_sum", &is_kind) + answered,
            cpu_seconds: sum("process_cpu_seconds_total", &|_| true),
            memory: cluster.memory() as f64,
            watchers,
        })
    }
}

impl Agents {
    pub(crate) fn now(calls: &Calls) -> anyhow::Result<Self> {
        let status = procfs::process::Process::myself()?.status()?;
        let [calls, refused] = calls.answered();
        Ok(Self {
            calls,
            refused,
            connections: connections()?,
            cpu_seconds: Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?).as_secs_f64(),
            memory: (status.vmrss.unwrap_or_default() * 1024) as f64,
        })
    }
}

/// The number of connections that this machine has accepted.
pub(crate) fn connections() -> anyhow::Result<u64> {
    Ok(procfs::net::snmp()?.tcp_passive_opens)
}

/// The API server's metrics. A busy API server gets several requests.
fn metrics(cluster: &ApiServer) -> anyhow::Result<String> {
    let mut complaint = String::new();
    for _ in 0..TRIES {
        match cluster.try_get("/metrics") {
            Ok(text) => return Ok(text),
            Err(said) => complaint = said.to_string(),
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    anyhow::bail!("the API server gives no metrics: {complaint}")
}

/// Waits until no agent's watch is open; the remaining watches are the API server's own.
pub(crate) fn all_gone(cluster: &ApiServer, patience: Duration) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut before = f64::MAX;
    loop {
        let now = Server::now(cluster)?.watchers;
        // The API server notices closed connections within seconds, one after the other.
        if now >= before || started.elapsed() > patience {
            return Ok(());
        }
        before = now;
        std::thread::sleep(Duration::from_secs(5));
    }
}

/// Waits until as many watches are open as before. Returns whether that happened.
pub(crate) async fn all_back(cluster: &ApiServer, watchers: f64, patience: Duration) -> anyhow::Result<bool> {
    let started = Instant::now();
    while tokio::task::block_in_place(|| Server::now(cluster))?.watchers < watchers {
        if started.elapsed() > patience {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(true)
}
