//! What vscaled was worth: what workloads requested before it changed their pods and what they request now, and what did not
//! happen to them. Pure.
//!
//! What did not happen is counted where it certainly would have, or is derived by a rule that docs/report.md states; it counts from
//! the agent's start. What pods requested before is kept over restarts, with what is desired for them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::pod::PodState;
use super::resize::ResizeStatus;
use crate::model::{NamedRequirements, Resource, ResourceList};
use crate::observe::metrics::{Gauges, Labels, family, register};
use crate::plan::sum;

/// Workloads for which something is counted one by one. A node has fewer at a time, but sees many jobs.
const MOST: usize = 1024;
/// What pods requested when they first followed a recommendation, and what they request now.
const WHEN: [Labels<1>; 2] = [[("when", "before")], [("when", "now")]];

/// What did not happen to a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Avoided {
    /// A container used more memory than its limit was before the guard grew it.
    Kill,
    /// A pod has what is recommended, without a new one in its place.
    Eviction,
    /// Time for which a container would have been throttled at the limit it had.
    ThrottledSeconds(f64),
}

/// One workload's pods on this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WorkloadWorth {
    /// Pods that follow a recommendation.
    pub(crate) pods: u64,
    pub(crate) before: ResourceList,
    pub(crate) now: ResourceList,
    /// What did not happen to them since the agent started.
    pub(crate) kills: u64,
    pub(crate) evictions: u64,
    pub(crate) throttled_seconds: f64,
}

/// A workload: its namespace, kind and name.
pub(crate) type WorkloadKey = (String, String, String);

impl WorkloadWorth {
    /// Adds what another workload has.
    pub(crate) fn add(&mut self, other: &Self) {
        self.pods += other.pods;
        self.before = sum([&self.before, &other.before].into_iter());
        self.now = sum([&self.now, &other.now].into_iter());
        self.kills += other.kills;
        self.evictions += other.evictions;
        self.throttled_seconds += other.throttled_seconds;
    }
}

/// All workloads, and since when it is counted what did not happen to them.
#[derive(Debug)]
pub(crate) struct WorthReport {
    pub(crate) since: Timestamp,
    pub(crate) workloads: BTreeMap<WorkloadKey, WorkloadWorth>,
}

impl WorthReport {
    /// All workloads together.
    pub(crate) fn total(&self) -> WorkloadWorth {
        let mut total = WorkloadWorth::default();
        self.workloads.values().for_each(|one| total.add(one));
        total
    }
}

/// What is counted, and where it is shown.
#[derive(Debug)]
pub(crate) struct Worth {
    since: Timestamp,
    counts: BTreeMap<WorkloadKey, WorkloadWorth>,
    kills: Counter,
    evictions: Counter,
    throttled: Counter<f64, AtomicU64>,
    cpu: Family<Labels<1>, Gauge<f64, AtomicU64>>,
    memory: Gauges<1>,
}

impl Worth {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let r = registry;
        let kills =
            "Temporary memory limits whose container used more than its limit was before: each would have been a kill";
        let evictions = "Recommendations that running pods were given in place";
        let throttled = "Half of the time for which the guard held cpu limits higher that throttled in at least half of all periods";
        let cpu = "Cores that pods which follow a recommendation requested before it, and request now";
        let memory = "Memory that pods which follow a recommendation requested before it, and request now";
        Self {
            since: Timestamp::now(),
            counts: BTreeMap::new(),
            kills: register(r, "avoided_kills", kills, Counter::default()),
            evictions: register(r, "avoided_evictions", evictions, Counter::default()),
            throttled: register(r, "avoided_throttled_seconds", throttled, Counter::default()),
            cpu: family(r, "requested_cores", cpu, WHEN),
            memory: family(r, "requested_bytes", memory, WHEN),
        }
    }

    pub(crate) fn count(&mut self, state: &PodState, avoided: Avoided) {
        let mut worth = WorkloadWorth::default();
        match avoided {
            Avoided::Kill => {
                worth.kills = 1;
                self.kills.inc();
            }
            Avoided::Eviction => {
                worth.evictions = 1;
                self.evictions.inc();
            }
            Avoided::ThrottledSeconds(seconds) => {
                worth.throttled_seconds = seconds;
                self.throttled.inc_by(seconds);
            }
        }
        let key = key_of(state);
        if self.counts.len() < MOST || self.counts.contains_key(&key) {
            self.counts.entry(key).or_default().add(&worth);
        }
    }

    /// All workloads of these pods, and those that something is counted for. A pod that waits for its kubelet has neither what it
    /// requested before nor yet what it is to request.
    pub(crate) fn report<'a>(&self, pods: impl Iterator<Item = &'a PodState>) -> WorthReport {
        let (since, mut workloads) = (self.since, self.counts.clone());
        for state in pods.filter(|state| state.resize.status == ResizeStatus::Clear) {
            if let Some(before) = state.desired.before {
                let worth = WorkloadWorth {
                    pods: 1,
                    before,
                    now: requests(&state.desired.without_temporary(&state.pod)),
                    ..WorkloadWorth::default()
                };
                workloads.entry(key_of(state)).or_default().add(&worth);
            }
        }
        WorthReport { since, workloads }
    }

    /// Shows what the pods request.
    pub(crate) fn show<'a>(&self, pods: impl Iterator<Item = &'a PodState>) {
        let total = self.report(pods).total();
        for (labels, amounts) in WHEN.iter().zip([total.before, total.now]) {
            let cpu = u32::try_from(amounts.amount(Resource::Cpu)).unwrap_or(u32::MAX);
            self.cpu.get_or_create(labels).set(f64::from(cpu) / 1000.0);
            let memory = i64::try_from(amounts.amount(Resource::Memory)).unwrap_or(i64::MAX);
            self.memory.get_or_create(labels).set(memory);
        }
    }
}

fn key_of(state: &PodState) -> WorkloadKey {
    let workload = &state.decision.workload;
    let namespace = state.pod.metadata.namespace.clone();
    (namespace, workload.kind.clone(), workload.name.clone())
}

/// What all containers request together.
pub(crate) fn requests(containers: &[NamedRequirements]) -> ResourceList {
    let containers = NamedRequirements::split(containers).0;
    sum(containers.iter().map(|named| &named.resources.requests))
}
