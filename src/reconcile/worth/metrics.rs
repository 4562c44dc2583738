//! What vscaled was worth, as metrics of the node and of each workload. A scrape renders them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::{WorkloadKey, WorkloadWorth};
use crate::model::{Resource, ResourceList};

/// The most workloads with series: a tenant can make any number of workloads.
const MOST_WORKLOADS: usize = 1024;
/// How long series stay after the last pod that followed a recommendation, or the last count.
const SERIES_STAY: SignedDuration = SignedDuration::from_hours(2);
/// How long the counters of a new workload are shown as zero: scrapers see the first count as a rise.
const SHOWN_AS_ZERO: SignedDuration = SignedDuration::from_mins(2);

/// The values of a scrape: counts since the agent's start, and the current requests.
#[derive(Debug, Clone, Default)]
pub(super) struct WorthMetrics(Arc<Mutex<Series>>);

#[derive(Debug, Default)]
struct Series {
    total: WorkloadWorth,
    workloads: BTreeMap<WorkloadKey, WorkloadSeries>,
}

#[derive(Debug)]
struct WorkloadSeries {
    since: Timestamp,
    used: Timestamp,
    worth: WorkloadWorth,
}

impl WorthMetrics {
    pub(super) fn count(&self, key: &WorkloadKey, worth: &WorkloadWorth, now: Timestamp) {
        self.series().add(key, worth, now);
    }

    /// Replaces the requests of all workloads, and ends the series of those without a pod or a count for [`SERIES_STAY`].
    pub(super) fn request(&self, requests: impl Iterator<Item = (WorkloadKey, WorkloadWorth)>, now: Timestamp) {
        let mut series = self.series();
        let Series { total, workloads } = &mut *series;
        for worth in workloads.values_mut().map(|one| &mut one.worth).chain([total]) {
            (worth.pods, worth.before, worth.now) = Default::default();
        }
        requests.for_each(|(key, worth)| series.add(&key, &worth, now));
        let stays = |one: &WorkloadSeries| now.duration_since(one.used) <= SERIES_STAY;
        series.workloads.retain(|_, one| stays(one));
    }

    fn series(&self) -> MutexGuard<'_, Series> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Series {
    fn add(&mut self, key: &WorkloadKey, worth: &WorkloadWorth, now: Timestamp) {
        self.total.add(worth);
        let new = || WorkloadSeries {
            since: now,
            used: now,
            worth: WorkloadWorth::default(),
        };
        let one = self.workloads.entry(key.clone()).or_insert_with(new);
        one.worth.add(worth);
        one.used = now;
        if self.workloads.len() > MOST_WORKLOADS {
            let oldest = self.workloads.iter().min_by_key(|(_, one)| one.used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.workloads.remove(&oldest);
            }
        }
    }
}

impl WorkloadSeries {
    fn shown(&self, now: Timestamp) -> WorkloadWorth {
        if now.duration_since(self.since) < SHOWN_AS_ZERO {
            WorkloadWorth {
                pods: self.worth.pods,
                before: self.worth.before,
                now: self.worth.now,
                ..WorkloadWorth::default()
            }
        } else {
            self.worth.clone()
        }
    }
}

/// A family of metrics: its name, unit, help and type, and a workload's values, each with one more label or none.
type WorthFamily = (
    &'static str,
    Option<Unit>,
    &'static str,
    MetricType,
    fn(&WorkloadWorth) -> Values,
);
type Values = Vec<(Option<Label>, Box<dyn EncodeMetric>)>;
type Label = (&'static str, String);

fn families() -> [WorthFamily; 6] {
    let kills =
        "Temporary memory limits whose container used more than its limit was before: each would have been a kill";
    let evictions = "Recommendations that running pods were given in place";
    let restarts = "Containers of pods that were given a recommendation in place, once for each pod: replaced, they would have started again";
    let throttled =
        "Half of the time for which the guard held cpu limits higher that throttled in at least half of all periods";
    let cpu = "Cores that pods which follow a recommendation requested before it, and request now";
    let memory = "Memory that pods which follow a recommendation requested before it, and request now";
    let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
    let (seconds, bytes) = (Some(Unit::Seconds), Some(Unit::Bytes));
    [
        ("avoided_kills", None, kills, counter, |worth| count(worth.kills)),
        ("avoided_evictions", None, evictions, counter, |worth| {
            count(worth.evictions)
        }),
        ("avoided_restarts", None, restarts, counter, |worth| {
            count(worth.restarts)
        }),
        ("avoided_throttled", seconds, throttled, counter, |worth| {
            count(worth.throttled_seconds)
        }),
        ("requested_cores", None, cpu, gauge, |worth| requested(worth, cores)),
        ("requested", bytes, memory, gauge, |worth| {
            requested(worth, |amounts| amounts.amount(Resource::Memory))
        }),
    ]
}

fn count<N: EncodeCounterValue + 'static>(value: N) -> Values {
    vec![(None, Box::new(ConstCounter::new(value)))]
}

fn requested<N: EncodeGaugeValue + 'static>(worth: &WorkloadWorth, amount: fn(&ResourceList) -> N) -> Values {
    [("before", &worth.before), ("now", &worth.now)]
        .map(|(when, amounts)| {
            let value: Box<dyn EncodeMetric> = Box::new(ConstGauge::new(amount(amounts)));
            (Some(("when", when.to_owned())), value)
        })
        .into()
}

fn cores(amounts: &ResourceList) -> f64 {
    f64::from(u32::try_from(amounts.amount(Resource::Cpu)).unwrap_or(u32::MAX)) / 1000.0
}

impl Collector for WorthMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (series, now) = (self.series(), Timestamp::now());
        let shown = series.workloads.iter().map(|((namespace, kind, name), one)| {
            let labels = vec![("namespace", namespace.clone()), ("workload", format!("{kind}/{name}"))];
            (labels, one.shown(now))
        });
        let workloads: Vec<_> = shown.collect();
        let node = [(Vec::new(), series.total.clone())];
        for (prefix, series) in [("", &node[..]), ("workload_", &workloads)] {
            for (name, unit, help, metric_type, values) in families() {
                let name = format!("{prefix}{name}");
                let mut encoder = encoder.encode_descriptor(&name, help, unit.as_ref(), metric_type)?;
                let values = series.iter().flat_map(|(labels, worth)| {
                    let with = move |label: Option<Label>| labels.iter().cloned().chain(label).collect::<Vec<_>>();
                    values(worth)
                        .into_iter()
                        .map(move |(label, value)| (with(label), value))
                });
                let values: Vec<_> = values.collect();
                match &values[..] {
                    [(labels, value)] if labels.is_empty() => value.encode(encoder)?,
                    values => values
                        .iter()
                        .try_for_each(|(labels, value)| value.encode(encoder.encode_family(labels)?))?,
                }
            }
        }
        Ok(())
    }
}
