//! The savings of vscaled: what workloads requested before it changed their pods and what they request now, and the
//! kills, evictions, restarts and throttling that it avoided. A scrape renders the metrics of the node and each workload.
//!
//! An event counts as avoided where it would certainly have happened, or by a rule that docs/report.md states. Counts
//! are kept by the hour, from the agent's start. The requests before are saved with the desired state.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::pod::PodState;
use crate::model::objects::{LONGEST_LABEL, LONGEST_SUBDOMAIN};
use crate::model::{PodAmounts, Resource, ResourceList};
use crate::plan::sum;
use crate::share::places_of_most;

/// The most hours of workloads that are kept, the latest ones: a node has some hundred workloads at a time, and sees many jobs.
const MOST_HOURS: usize = 8192;
const HOUR: i64 = 3600;
/// The most workloads with series: a tenant can make any number of workloads. Of more, the oldest of the namespace with most goes.
const MOST_WORKLOADS: usize = 1024;
/// How long series stay after the last pod that followed a recommendation, or the last count.
const SERIES_STAY: SignedDuration = SignedDuration::from_hours(2);
/// How long the counters of a new workload are shown as zero: scrapers see the first count as a rise.
const SHOWN_AS_ZERO: Duration = Duration::from_secs(120);

/// An event that the agent has avoided for a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Avoided {
    /// A container used more memory than its limit was before the guard raised it.
    Kill,
    /// A running pod got its recommendation, without being replaced. The first time, this many
    /// containers would have started again.
    Eviction { restarts: u64 },
    /// The time in which a container would have been throttled at its earlier limit.
    ThrottledSeconds(f64),
}

/// The pods of one workload on this node, with counts since the agent's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WorkloadSavings {
    /// Pods that follow a recommendation.
    pub(crate) pods: u64,
    pub(crate) before: ResourceList,
    pub(crate) now: ResourceList,
    /// Avoided since the agent started.
    pub(crate) kills: u64,
    pub(crate) evictions: u64,
    pub(crate) restarts: u64,
    pub(crate) throttled_seconds: f64,
}

/// Identifies a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkloadId {
    pub(crate) namespace: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl WorkloadSavings {
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

/// All workloads, and the beginning of the counts.
#[derive(Debug)]
pub(crate) struct SavingsReport {
    pub(crate) since: Timestamp,
    pub(crate) workloads: BTreeMap<WorkloadId, WorkloadSavings>,
}

impl SavingsReport {
    /// All workloads together.
    pub(crate) fn total(&self) -> WorkloadSavings {
        let mut total = WorkloadSavings::default();
        self.workloads.values().for_each(|one| total.add(one));
        total
    }
}

/// The counts, and their metrics.
#[derive(Debug)]
pub(crate) struct Savings {
    since: Timestamp,
    /// The counts by hour since 1970 and workload.
    counts: BTreeMap<(i64, WorkloadId), WorkloadSavings>,
    metrics: SavingsMetrics,
}

impl Savings {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = SavingsMetrics::default();
        registry.register_collector(Box::new(metrics.clone()));
        Self {
            since: Timestamp::now(),
            counts: BTreeMap::new(),
            metrics,
        }
    }

    pub(crate) fn count(&mut self, state: &PodState, avoided: Avoided, now: Timestamp) {
        let mut savings = WorkloadSavings::default();
        match avoided {
            Avoided::Kill => savings.kills = 1,
            Avoided::Eviction { restarts } => (savings.evictions, savings.restarts) = (1, restarts),
            Avoided::ThrottledSeconds(seconds) => savings.throttled_seconds = seconds,
        }
        let key = key_of(state);
        self.metrics.0.lock().add(&key, &savings, now);
        self.counts.entry((hour_of(now), key)).or_default().add(&savings);
        if self.counts.len() > MOST_HOURS
            && let Some(((oldest, _), _)) = self.counts.pop_first()
        {
            // Drop the whole hour.
            self.counts.retain(|(hour, _), _| *hour > oldest);
            self.since = begin_of(oldest + 1);
        }
    }

    /// All workloads of these pods, and those with a count in this time.
    pub(crate) fn report<'a>(
        &self,
        pods: impl Iterator<Item = &'a PodState>,
        time: Option<Duration>,
        now: Timestamp,
    ) -> SavingsReport {
        let begin = time
            .and_then(|time| now.checked_sub(time).ok())
            .map(|begin| begin_of(hour_of(begin)));
        let since = begin.map_or(self.since, |begin| begin.max(self.since));
        let mut workloads = BTreeMap::<WorkloadId, WorkloadSavings>::new();
        for ((_, key), savings) in self.counts.range((hour_of(since), WorkloadId::default())..) {
            workloads.entry(key.clone()).or_default().add(savings);
        }
        for (state, savings) in requested(pods) {
            workloads.entry(key_of(state)).or_default().add(&savings);
        }
        SavingsReport { since, workloads }
    }

    /// Updates the metrics of the pods' requests, and ends the series of workloads without a pod
    /// or a count for [`SERIES_STAY`].
    pub(crate) fn show<'a>(&self, pods: impl Iterator<Item = &'a PodState>, now: Timestamp) {
        let mut series = self.metrics.0.lock();
        let Series { total, workloads } = &mut *series;
        for savings in workloads.values_mut().map(|one| &mut one.savings).chain([total]) {
            (savings.pods, savings.before, savings.now) = Default::default();
        }
        for (state, savings) in requested(pods) {
            series.add(&key_of(state), &savings, now);
        }
        series.workloads.retain(|_, one| {
            // The clock may have been set back since.
            one.used = one.used.min(now);
            now.duration_since(one.used) <= SERIES_STAY
        });
    }
}

/// The values of a scrape: counts since the agent's start, and the current requests.
#[derive(Debug, Clone, Default)]
struct SavingsMetrics(Arc<Mutex<Series>>);

#[derive(Debug, Default)]
struct Series {
    total: WorkloadSavings,
    workloads: BTreeMap<WorkloadId, WorkloadSeries>,
}

#[derive(Debug)]
struct WorkloadSeries {
    /// When the series began, by a clock that nobody sets: scrapers add counters again that fall to zero and come back.
    since: Instant,
    used: Timestamp,
    savings: WorkloadSavings,
}

impl Series {
    fn add(&mut self, key: &WorkloadId, savings: &WorkloadSavings, now: Timestamp) {
        self.total.add(savings);
        let new = || WorkloadSeries {
            since: Instant::now(),
            used: now,
            savings: WorkloadSavings::default(),
        };
        let one = self.workloads.entry(key.clone()).or_insert_with(new);
        one.savings.add(savings);
        one.used = now;
        if self.workloads.len() > MOST_WORKLOADS
            && let Some(lost) = self.oldest_of_most()
        {
            self.workloads.remove(&lost);
        }
    }

    /// The workload of the namespace with most that was used longest ago.
    fn oldest_of_most(&self) -> Option<WorkloadId> {
        let mut workloads: Vec<_> = self.workloads.iter().collect();
        workloads.sort_by_key(|(_, one)| one.used);
        let namespaces = workloads.iter().map(|(workload, _)| &workload.namespace);
        let (oldest, _) = places_of_most(namespaces)?;
        workloads.get(oldest).map(|(key, _)| (*key).clone())
    }
}

/// A family of metrics, with the samples of one workload.
struct Family {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    samples: Vec<Sample>,
}

struct Sample {
    /// The value of the label `when`, if there is one.
    when: Option<&'static str>,
    metric: Metric,
}

type Metric = Box<dyn EncodeMetric>;

fn families(savings: &WorkloadSavings) -> [Family; 6] {
    let kills =
        "Temporary memory limits whose container used more than its limit was before: each would have been a kill";
    let evictions = "Recommendations that running pods were given in place";
    let restarts = "Containers of pods that were given a recommendation in place, once for each pod: an eviction would have restarted them";
    let throttled =
        "Half of the time for which the guard raised cpu limits that throttled in at least half of all periods";
    let cpu = "Cores that pods which follow a recommendation requested before it, and request now";
    let memory = "Memory that pods which follow a recommendation requested before it, and request now";
    let sample = |when, metric: Metric| Sample { when, metric };
    let count = |count: u64| vec![sample(None, Box::new(ConstCounter::new(count)))];
    let requested = |metric: fn(&ResourceList) -> Metric| {
        let each = [("before", &savings.before), ("now", &savings.now)];
        Vec::from(each.map(|(when, amounts)| sample(Some(when), metric(amounts))))
    };
    let held = vec![sample(None, Box::new(ConstCounter::new(savings.throttled_seconds)))];
    let cores = |amounts: &ResourceList| -> Metric {
        let thousandths = u32::try_from(amounts.amount(Resource::Cpu)).unwrap_or(u32::MAX);
        Box::new(ConstGauge::new(f64::from(thousandths) / 1000.0))
    };
    let bytes = |amounts: &ResourceList| -> Metric { Box::new(ConstGauge::new(amounts.amount(Resource::Memory))) };
    let family = |name, unit, help, samples| Family {
        name,
        unit,
        help,
        samples,
    };
    [
        family("avoided_kills", None, kills, count(savings.kills)),
        family("avoided_evictions", None, evictions, count(savings.evictions)),
        family("avoided_restarts", None, restarts, count(savings.restarts)),
        family("avoided_throttled", Some(Unit::Seconds), throttled, held),
        family("requested_cores", None, cpu, requested(cores)),
        family("requested", Some(Unit::Bytes), memory, requested(bytes)),
    ]
}

impl Collector for SavingsMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let series = self.0.lock();
        let workloads = series.workloads.iter().map(|(workload, one)| {
            let WorkloadId { namespace, kind, name } = workload;
            let mut shown = one.savings.clone();
            if one.since.elapsed() < SHOWN_AS_ZERO {
                (shown.kills, shown.evictions, shown.restarts, shown.throttled_seconds) = Default::default();
            }
            let labels = vec![("namespace", namespace.clone()), ("workload", format!("{kind}/{name}"))];
            (labels, families(&shown))
        });
        let workloads: Vec<_> = workloads.collect();
        let node = vec![(Vec::new(), families(&series.total))];
        // The controller does not wait for the text.
        drop(series);
        for (prefix, series) in [("", node), ("workload_", workloads)] {
            for (index, family) in families(&WorkloadSavings::default()).iter().enumerate() {
                let name = format!("{prefix}{}", family.name);
                let metric_type = family.samples[0].metric.metric_type();
                let mut encoder = encoder.encode_descriptor(&name, family.help, family.unit.as_ref(), metric_type)?;
                let values = series.iter().flat_map(|(labels, families)| {
                    let when_label = |when: &str| ("when", when.to_owned());
                    let with = move |when: Option<_>| labels.iter().cloned().chain(when.map(when_label)).collect();
                    let samples = families[index].samples.iter();
                    samples.map(move |sample| (with(sample.when), &sample.metric))
                });
                let values: Vec<(Vec<_>, _)> = values.collect();
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

/// The requests of each of these pods, before and now. A pod that waits for its kubelet has neither amount.
fn requested<'a>(pods: impl Iterator<Item = &'a PodState>) -> impl Iterator<Item = (&'a PodState, WorkloadSavings)> {
    let clear = pods.filter(|state| state.resize.is_clear());
    clear.filter_map(|state| {
        let savings = WorkloadSavings {
            pods: 1,
            before: state.desired.before?,
            now: requests(&state.desired.without_temporary(&state.pod)),
            ..WorkloadSavings::default()
        };
        Some((state, savings))
    })
}

fn hour_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(HOUR)
}

fn begin_of(hour: i64) -> Timestamp {
    Timestamp::from_second(hour.saturating_mul(HOUR)).unwrap_or(Timestamp::MIN)
}

/// The key of a pod's workload. Keys stay, and each is the label of several series: no object has a longer kind or name, but what a tenant
/// writes about owners and targets may.
pub(crate) fn key_of(state: &PodState) -> WorkloadId {
    let workload = &state.decision.workload;
    let begin = |text: &str, longest: usize| -> String {
        let fits = |(at, character): &(usize, char)| at + character.len_utf8() <= longest;
        let kept = text.char_indices().take_while(fits);
        kept.map(|(_, character)| character).collect()
    };
    WorkloadId {
        namespace: state.pod.metadata.namespace.clone(),
        kind: begin(&workload.kind, LONGEST_LABEL),
        name: begin(&workload.name, LONGEST_SUBDOMAIN),
    }
}

/// The sum of the containers' requests.
pub(crate) fn requests(amounts: &PodAmounts) -> ResourceList {
    sum(amounts.containers.iter().map(|named| &named.resources.requests))
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::decide::PodDecision;
    use crate::model::Outcome;
    use crate::reconcile::desired::TemporaryLimit;
    use crate::sources::parse_manifests;

    const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: web, uid: u1}, spec: {containers: [{name: app}]}}";

    fn at(hour: i64, second: i64) -> Timestamp {
        Timestamp::from_second(500_000 * HOUR + hour * HOUR + second).unwrap()
    }

    fn kills(savings: &Savings, time: Option<u64>, now: Timestamp) -> (u64, i64) {
        let report = savings.report(std::iter::empty(), time.map(Duration::from_secs), now);
        (report.total().kills, (report.since.as_second() - at(0, 0).as_second()))
    }

    /// Lets the time pass for which counters are shown as zero.
    fn age(savings: &Savings) {
        let mut series = savings.metrics.0.lock();
        series.workloads.values_mut().for_each(|one| one.since -= SHOWN_AS_ZERO);
    }

    #[test]
    fn what_did_not_happen_counts_by_the_hour() {
        let pod = Arc::clone(&parse_manifests("test", POD).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let mut savings = Savings::register(&mut Registry::default());
        savings.since = at(0, 600);
        for (hour, second) in [(0, 700), (1, 5), (1, 3599), (3, 0)] {
            savings.count(&state, Avoided::Kill, at(hour, second));
        }
        let now = at(3, 60);
        assert_eq!(kills(&savings, None, now), (4, 600));
        assert_eq!(kills(&savings, Some(60), now), (1, 3 * 3600));
        assert_eq!(kills(&savings, Some(2 * 3600), now), (3, 3600), "whole hours");
        for long in [7 * 86_400, u64::MAX] {
            assert_eq!(kills(&savings, Some(long), now), (4, 600), "it was not there before");
        }
        // Of more than is kept the oldest hours go, and are not counted in part.
        for number in 0..MOST_HOURS {
            let hour = i64::try_from(number / 100).unwrap() + 4;
            state.decision.workload.name = number.to_string();
            savings.count(&state, Avoided::Kill, at(hour, 0));
        }
        let now = at(100, 0);
        let (kept, since) = kills(&savings, None, now);
        assert!((MOST_HOURS as u64 - 100..=MOST_HOURS as u64).contains(&kept), "{kept}");
        assert_eq!(since, 4 * 3600);
    }

    #[test]
    fn a_workloads_endless_name_is_cut() {
        let pod = Arc::clone(&parse_manifests("test", POD).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let mut key_with = |kind: &str, name: &str| {
            let workload = &mut state.decision.workload;
            (workload.kind, workload.name) = (kind.to_owned(), name.to_owned());
            key_of(&state)
        };
        let key = |kind: &str, name: &str| WorkloadId {
            namespace: "default".to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        assert_eq!(key_with("Job", "nightly"), key("Job", "nightly"));
        let cut = key_with(&"é".repeat(8 << 10), &"n".repeat(8 << 10));
        assert_eq!(cut, key(&"é".repeat(31), &"n".repeat(253)));
    }

    #[test]
    fn a_busy_namespace_loses_its_own_series() {
        let (mut series, none, now) = (Series::default(), WorkloadSavings::default(), Timestamp::now());
        let key = |namespace: &str, name: &str| WorkloadId {
            namespace: namespace.to_owned(),
            kind: "Job".to_owned(),
            name: name.to_owned(),
        };
        let quiet = key("shop", "nightly");
        series.add(&quiet, &none, now - SignedDuration::from_mins(1));
        for number in 0..2 * MOST_WORKLOADS {
            series.add(&key("busy", &number.to_string()), &none, now);
        }
        assert!(series.workloads.contains_key(&quiet));
        assert_eq!(series.workloads.len(), MOST_WORKLOADS);
    }

    #[test]
    fn each_amount_has_its_series() {
        let requests = "{requests: {cpu: 1500m, memory: 1Gi}}";
        let pod = POD.replace("{name: app}", &format!("{{name: app, resources: {requests}}}"));
        let pod = Arc::clone(&parse_manifests("test", &pod).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let before = [(Resource::Cpu, 2500), (Resource::Memory, 2 << 30)];
        state.desired.before = Some(ResourceList::from_fn(|of| {
            before
                .into_iter()
                .find_map(|(resource, amount)| (resource == of).then_some(amount))
        }));
        let mut registry = Registry::default();
        let (mut savings, now) = (Savings::register(&mut registry), Timestamp::now());
        savings.show(std::iter::once(&state), now);
        for avoided in [
            Avoided::Kill,
            Avoided::Eviction { restarts: 3 },
            Avoided::Eviction { restarts: 0 },
            Avoided::ThrottledSeconds(2.5),
        ] {
            savings.count(&state, avoided, now);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "avoided_kills_total 1",
            "avoided_evictions_total 2",
            "avoided_restarts_total 3",
            "avoided_throttled_seconds_total 2.5",
            r#"requested_cores{when="before"} 2.5"#,
            r#"requested_cores{when="now"} 1.5"#,
            r#"requested_bytes{when="before"} 2147483648"#,
            r#"requested_bytes{when="now"} 1073741824"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
    }

    #[test]
    fn a_workload_has_series_from_zero() {
        let pod = Arc::clone(&parse_manifests("test", POD).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        state.desired.before = Some(ResourceList::default());
        let mut registry = Registry::default();
        let mut savings = Savings::register(&mut registry);
        let shown = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("workload_"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let kills = r#"workload_avoided_kills_total{namespace="default",workload="Pod/web"}"#;
        let (now, ago) = (Timestamp::now(), |hours| {
            Timestamp::now() - SignedDuration::from_hours(hours)
        });
        // What is counted at once was zero before, for every scraper.
        savings.show(std::iter::once(&state), now);
        savings.count(&state, Avoided::Kill, now);
        assert!(shown().contains(&format!("{kills} 0")), "{:?}", shown());
        savings.show(std::iter::empty(), ago(-3));
        assert_eq!(shown(), <[String; 0]>::default());

        savings.show(std::iter::once(&state), ago(2));
        savings.count(&state, Avoided::Kill, ago(2));
        savings.show(std::iter::empty(), ago(1));
        age(&savings);
        assert!(shown().contains(&format!("{kills} 1")), "{:?}", shown());
        let requested = r#"workload_requested_cores{namespace="default",workload="Pod/web",when="now"} 0.0"#;
        assert!(shown().contains(&requested.to_owned()), "{:?}", shown());
        // Whoever makes workloads without an end does not fill the scrape.
        for number in 0..2000 {
            state.decision.workload.name = number.to_string();
            savings.count(&state, Avoided::Kill, now);
        }
        assert_eq!(shown().len(), 8 * 1024);
    }

    #[test]
    fn a_clock_that_is_set_back_hides_no_count() {
        let pod = Arc::clone(&parse_manifests("test", POD).unwrap().view.pods[0]);
        let state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let mut registry = Registry::default();
        let mut savings = Savings::register(&mut registry);
        savings.count(&state, Avoided::Kill, Timestamp::now());
        age(&savings);
        savings.count(&state, Avoided::Kill, Timestamp::now() + SignedDuration::from_hours(5));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let kills = r#"workload_avoided_kills_total{namespace="default",workload="Pod/web"} 2"#;
        assert!(text.lines().any(|shown| shown == kills), "{text}");
        for (hours, series) in [(0, 1), (3, 0)] {
            savings.show(std::iter::empty(), Timestamp::now() + SignedDuration::from_hours(hours));
            assert_eq!(savings.metrics.0.lock().workloads.len(), series, "after {hours} hours");
        }
    }

    #[test]
    fn only_pods_at_rest_count_their_requests() {
        let pod = POD.replace(
            "{name: app}",
            "{name: app, resources: {requests: {cpu: 300m}, limits: {cpu: 300m}}}",
        );
        let pod = Arc::clone(&parse_manifests("test", &pod).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let savings = Savings::register(&mut Registry::default());
        let total = |state: &PodState| savings.report(std::iter::once(state), None, at(0, 0)).total();
        assert_eq!(
            total(&state),
            WorkloadSavings::default(),
            "it follows no recommendation"
        );
        let before = requests(&pod.requirements());
        state.desired.before = Some(before);
        // The request follows the temporary limit, and is not recommended.
        let (app, why) = ("app".to_owned(), String::new());
        let given = TemporaryLimit::given(app, Resource::Cpu, (300, 600), why, at(0, 0));
        state.desired.grow(given);
        let expected = WorkloadSavings {
            pods: 1,
            before,
            now: before,
            ..WorkloadSavings::default()
        };
        assert_eq!(total(&state), expected);
        state.resize.ended(Outcome::Refused(String::new()), true);
        assert_eq!(total(&state), WorkloadSavings::default(), "it waits for room");
    }
}
