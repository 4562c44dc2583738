//! Phases of a measurement: the cost of each, and its busiest second.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::server::{Agents, Load, Server, connections};
use crate::support::cluster::ApiServer;
use crate::support::fleet::Calls;

/// The interval between counts.
const COUNTED: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// Calls, refused or broken calls, and connections.
pub(crate) type Counts = [u64; 3];

/// Measures one phase after the other.
pub(crate) struct Phases {
    kind: &'static str,
    nodes: f64,
    calls: Arc<Calls>,
    sampler: Sampler,
    begun: Instant,
    from: Load,
    /// The results of all completed phases.
    pub(crate) rows: Vec<Value>,
}

impl Phases {
    /// Starts the first phase.
    pub(crate) fn of(kind: &'static str, nodes: f64, calls: &Arc<Calls>, cluster: &ApiServer) -> anyhow::Result<Self> {
        Ok(Self {
            kind,
            nodes,
            sampler: Sampler::of(calls),
            from: Load::now(cluster, calls)?,
            calls: Arc::clone(calls),
            begun: Instant::now(),
            rows: Vec::new(),
        })
    }

    /// The counts at the start of the phase.
    pub(crate) const fn begun_with(&self) -> &Load {
        &self.from
    }

    /// Resets the API server's counts after a restart.
    pub(crate) fn server_restarted(&mut self) {
        self.from.server = Server::default();
    }

    /// Ends a phase, prints it and starts the next. Returns the counts until now, and for each second the calls,
    /// refused calls and connections.
    pub(crate) fn end(&mut self, what: &str, cluster: &ApiServer) -> anyhow::Result<(Load, Vec<Counts>)> {
        let took = self.begun.elapsed();
        let now = Load::now(cluster, &self.calls)?;
        let samples = self.sampler.take();
        let [calls_peak, _, connections_peak] = busiest(&samples);
        let Load { server, agents } = now.since(&self.from);
        let Agents {
            calls,
            refused,
            connections,
            ..
        } = agents;
        let kilobytes = server.bytes / 1e3 / self.nodes;
        println!(
            "  {:<42} {:>7.1} {:>9.0} {:>8.1} {:>9.0} {:>8.2} {calls:>9} {refused:>8} {calls_peak:>8} {connections:>8} {connections_peak:>8} \
             {:>8.1} {:>8.1} {:>7.0} {:>7.0}",
            format!("{}: {what}", self.kind),
            took.as_secs_f64(),
            server.requests,
            server.requests / self.nodes,
            server.events,
            kilobytes,
            server.cpu_seconds,
            agents.cpu_seconds,
            server.memory / 1e6,
            agents.memory / 1e6,
        );
        self.rows.push(json!({
            "kind": self.kind, "phase": what, "nodes": self.nodes, "seconds": took.as_secs_f64(),
            "requests": server.requests, "events": server.events, "bytes": server.bytes, "watches": server.watchers,
            "calls": calls, "refused": refused, "calls_in_busiest_second": calls_peak,
            "connections": connections, "connections_in_busiest_second": connections_peak,
            "server_cpu_seconds": server.cpu_seconds, "server_bytes": server.memory,
            "agents_cpu_seconds": agents.cpu_seconds, "agents_bytes": agents.memory,
        }));
        (self.from, self.begun) = (now, Instant::now());
        Ok((now, each_second(&samples)))
    }
}

/// Prints the column titles of [`Phases::end`].
pub(crate) fn print_titles() {
    println!(
        "  {:<42} {:>7} {:>9} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "",
        "seconds",
        "requests",
        "per node",
        "events",
        "kB/node",
        "calls",
        "refused",
        "most/s",
        "connects",
        "most/s",
        "server s",
        "agents s",
        "srv MB",
        "ag. MB"
    );
}

/// Counts in its own thread, which a busy runtime does not delay.
struct Sampler {
    stop: CancellationToken,
    samples: Arc<Mutex<Vec<(Instant, Counts)>>>,
    counting: Option<JoinHandle<()>>,
}

impl Sampler {
    fn of(calls: &Arc<Calls>) -> Self {
        let (stop, samples) = (CancellationToken::new(), Arc::<Mutex<Vec<_>>>::default());
        let (calls, stopped, taken) = (Arc::clone(calls), stop.clone(), Arc::clone(&samples));
        let counting = std::thread::spawn(move || {
            while !stopped.is_cancelled() {
                let [all, refused] = calls.answered();
                let sample = (Instant::now(), [all, refused, connections().unwrap_or_default()]);
                taken.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                std::thread::sleep(COUNTED);
            }
        });
        Self {
            stop,
            samples,
            counting: Some(counting),
        }
    }

    /// Takes the samples since the last call, beginning with the last one of that call.
    fn take(&self) -> Vec<(Instant, Counts)> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let last = samples.last().copied();
        std::mem::replace(&mut *samples, last.into_iter().collect())
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(counting) = self.counting.take()
            && counting.join().is_err()
        {
            eprintln!("counting calls failed");
        }
    }
}

/// The highest counts in any second.
pub(crate) fn busiest(samples: &[(Instant, Counts)]) -> Counts {
    let mut most = Counts::default();
    for (index, (at, before)) in samples.iter().enumerate() {
        // The last sample within a second: a window that is too short gives a count that is too low, never too high.
        let within = samples[index..].iter().take_while(|(later, _)| *later - *at <= SECOND);
        if let Some((_, after)) = within.last() {
            for (most, (after, before)) in most.iter_mut().zip(after.iter().zip(before)) {
                *most = (*most).max(after - before);
            }
        }
    }
    most
}

/// The counts of each second.
pub(crate) fn each_second(samples: &[(Instant, Counts)]) -> Vec<Counts> {
    let mut seconds: Vec<Counts> = Vec::new();
    let Some((begun, _)) = samples.first() else {
        return seconds;
    };
    for pair in samples.windows(2) {
        let second = usize::try_from((pair[1].0 - *begun).as_secs()).unwrap_or_default();
        seconds.resize(seconds.len().max(second + 1), Counts::default());
        for (sum, (after, before)) in seconds[second].iter_mut().zip(pair[1].1.iter().zip(pair[0].1)) {
            *sum += after - before;
        }
    }
    seconds
}
