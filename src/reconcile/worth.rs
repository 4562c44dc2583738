//! What vscaled was worth: what workloads requested before it changed their pods and what they request now, and what did not
//! happen to them. Pure.
//!
//! What did not happen is counted where it certainly would have, or is derived by a rule that docs/report.md states; it counts by
//! the hour, from the agent's start. What pods requested before is kept over restarts, with what is desired for them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

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

/// Hours of workloads that are kept, the latest: a node has some hundred workloads at a time, and sees many jobs.
const MOST: usize = 8192;
const HOUR: i64 = 3600;
/// What pods requested when they first followed a recommendation, and what they request now.
const WHEN: [Labels<1>; 2] = [[("when", "before")], [("when", "now")]];

/// What did not happen to a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Avoided {
    /// A container used more memory than its limit was before the guard grew it.
    Kill,
    /// A pod has what is recommended, without a new one in its place. The first time, so many containers go on that would have had
    /// to start again.
    Eviction { restarts: u64 },
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
    pub(crate) restarts: u64,
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
        self.restarts += other.restarts;
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
    /// By hour since 1970, and workload.
    counts: BTreeMap<(i64, WorkloadKey), WorkloadWorth>,
    kills: Counter,
    evictions: Counter,
    restarts: Counter,
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
        let restarts = "Containers of pods that were given a recommendation in place, once for each pod: replaced, they would have started again";
        let throttled = "Half of the time for which the guard held cpu limits higher that throttled in at least half of all periods";
        let cpu = "Cores that pods which follow a recommendation requested before it, and request now";
        let memory = "Memory that pods which follow a recommendation requested before it, and request now";
        Self {
            since: Timestamp::now(),
            counts: BTreeMap::new(),
            kills: register(r, "avoided_kills", kills, Counter::default()),
            evictions: register(r, "avoided_evictions", evictions, Counter::default()),
            restarts: register(r, "avoided_restarts", restarts, Counter::default()),
            throttled: register(r, "avoided_throttled_seconds", throttled, Counter::default()),
            cpu: family(r, "requested_cores", cpu, WHEN),
            memory: family(r, "requested_bytes", memory, WHEN),
        }
    }

    pub(crate) fn count(&mut self, state: &PodState, avoided: Avoided, now: Timestamp) {
        let mut worth = WorkloadWorth::default();
        match avoided {
            Avoided::Kill => {
                worth.kills = 1;
                self.kills.inc();
            }
            Avoided::Eviction { restarts } => {
                (worth.evictions, worth.restarts) = (1, restarts);
                self.evictions.inc();
                self.restarts.inc_by(restarts);
            }
            Avoided::ThrottledSeconds(seconds) => {
                worth.throttled_seconds = seconds;
                self.throttled.inc_by(seconds);
            }
        }
        let key = (hour_of(now), key_of(state));
        self.counts.entry(key).or_default().add(&worth);
        if self.counts.len() > MOST
            && let Some(((oldest, _), _)) = self.counts.pop_first()
        {
            // No hour is kept in part.
            self.counts.retain(|(hour, _), _| *hour > oldest);
            self.since = begin_of(oldest + 1);
        }
    }

    /// All workloads of these pods, and those that something was counted for in so much time.
    pub(crate) fn report<'a>(
        &self,
        pods: impl Iterator<Item = &'a PodState>,
        time: Option<Duration>,
        now: Timestamp,
    ) -> WorthReport {
        let begin = time
            .and_then(|time| now.checked_sub(time).ok())
            .map(|begin| begin_of(hour_of(begin)));
        let since = begin.map_or(self.since, |begin| begin.max(self.since));
        let mut workloads = BTreeMap::<WorkloadKey, WorkloadWorth>::new();
        for ((_, key), worth) in self.counts.range((hour_of(since), WorkloadKey::default())..) {
            workloads.entry(key.clone()).or_default().add(worth);
        }
        for (state, worth) in requested(pods) {
            workloads.entry(key_of(state)).or_default().add(&worth);
        }
        WorthReport { since, workloads }
    }

    /// Shows what the pods request.
    pub(crate) fn show<'a>(&self, pods: impl Iterator<Item = &'a PodState>) {
        let mut total = WorkloadWorth::default();
        requested(pods).for_each(|(_, worth)| total.add(&worth));
        for (labels, amounts) in WHEN.iter().zip([total.before, total.now]) {
            let cpu = u32::try_from(amounts.amount(Resource::Cpu)).unwrap_or(u32::MAX);
            self.cpu.get_or_create(labels).set(f64::from(cpu) / 1000.0);
            let memory = i64::try_from(amounts.amount(Resource::Memory)).unwrap_or(i64::MAX);
            self.memory.get_or_create(labels).set(memory);
        }
    }
}

/// What each of these pods requested before and requests now. One that waits for its kubelet has neither what it requested before
/// nor yet what it is to request.
fn requested<'a>(pods: impl Iterator<Item = &'a PodState>) -> impl Iterator<Item = (&'a PodState, WorkloadWorth)> {
    let clear = pods.filter(|state| state.resize.status == ResizeStatus::Clear);
    clear.filter_map(|state| {
        let worth = WorkloadWorth {
            pods: 1,
            before: state.desired.before?,
            now: requests(&state.desired.without_temporary(&state.pod)),
            ..WorkloadWorth::default()
        };
        Some((state, worth))
    })
}

fn hour_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(HOUR)
}

fn begin_of(hour: i64) -> Timestamp {
    Timestamp::from_second(hour.saturating_mul(HOUR)).unwrap_or(Timestamp::MIN)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decide::PodDecision;
    use crate::sources::parse_manifests;

    const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: web, uid: u1}, spec: {containers: [{name: app}]}}";

    fn at(hour: i64, second: i64) -> Timestamp {
        Timestamp::from_second(500_000 * HOUR + hour * HOUR + second).unwrap()
    }

    fn kills(worth: &Worth, time: Option<u64>, now: Timestamp) -> (u64, i64) {
        let report = worth.report(std::iter::empty(), time.map(Duration::from_secs), now);
        (report.total().kills, (report.since.as_second() - at(0, 0).as_second()))
    }

    #[test]
    fn what_did_not_happen_counts_by_the_hour() {
        let pod = Arc::clone(&parse_manifests("test", POD).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let mut worth = Worth::register(&mut Registry::default());
        worth.since = at(0, 600);
        for (hour, second) in [(0, 700), (1, 5), (1, 3599), (3, 0)] {
            worth.count(&state, Avoided::Kill, at(hour, second));
        }
        let now = at(3, 60);
        assert_eq!(kills(&worth, None, now), (4, 600));
        assert_eq!(kills(&worth, Some(60), now), (1, 3 * 3600));
        assert_eq!(kills(&worth, Some(2 * 3600), now), (3, 3600), "whole hours");
        for long in [7 * 86_400, u64::MAX] {
            assert_eq!(kills(&worth, Some(long), now), (4, 600), "it was not there before");
        }
        // Of more than is kept the oldest hours go, and are not counted in part.
        for number in 0..MOST {
            let hour = i64::try_from(number / 100).unwrap() + 4;
            state.decision.workload.name = number.to_string();
            worth.count(&state, Avoided::Kill, at(hour, 0));
        }
        let now = at(100, 0);
        let (kept, since) = kills(&worth, None, now);
        assert!((MOST as u64 - 100..=MOST as u64).contains(&kept), "{kept}");
        assert_eq!(since, 4 * 3600);
    }
}
