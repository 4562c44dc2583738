//! What a family of metrics is: declared once, with its name, labels and meaning; registered by whoever counts.
//!
//! Values of labels are all that code which counts has to give, as many as were declared. A family without a series yet
//! still shows its name and type, so that nobody asks a dashboard for a name that might not exist.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

/// 50 µs to 60 s: a pass over one pod through files takes a fraction of a millisecond, one that waits for a runtime or
/// for the kernel to reclaim memory takes seconds.
const BUCKETS: [f64; 19] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// The first word of every name.
pub(super) const PREFIX: &str = "vscaled";

/// One family: `N` labels, and in each series a metric `M`.
///
/// The name has neither the prefix nor a counter's `_total`; its unit, if it has one, comes last: `_seconds` or `_bytes`.
#[derive(Debug)]
pub struct Declaration<M, const N: usize> {
    name: &'static str,
    labels: [&'static str; N],
    help: &'static str,
    new: fn() -> M,
}

impl<M, const N: usize> Declaration<M, N> {
    /// The name without its unit, and the unit: what is exposed says both.
    fn name_and_unit(&self) -> (&'static str, Option<Unit>) {
        match self.name.rsplit_once('_') {
            Some((name, "seconds")) => (name, Some(Unit::Seconds)),
            Some((name, "bytes")) => (name, Some(Unit::Bytes)),
            _ => (self.name, None),
        }
    }
}

impl<M, const N: usize> Declaration<M, N>
where
    M: EncodeMetric + TypedMetric + Clone + fmt::Debug + Send + Sync + 'static,
{
    /// Shows the family in every scrape from now on. For whoever counts, once for each registry.
    pub fn register(&self, registry: &mut Registry) -> Series<M, N> {
        let series = Series {
            family: Family::new_with_constructor(self.new),
            labels: self.labels,
        };
        match self.name_and_unit() {
            (name, Some(unit)) => registry.register_with_unit(name, self.help, unit, series.clone()),
            (name, None) => registry.register(name, self.help, series.clone()),
        }
        series
    }
}

impl<M> Declaration<M, 0> {
    /// Shows one value that was read just now, for what is not counted but looked up at each scrape.
    pub(super) fn show(&self, encoder: &mut DescriptorEncoder<'_>, value: &impl EncodeMetric) -> fmt::Result {
        let (name, unit) = self.name_and_unit();
        value.encode(encoder.encode_descriptor(name, self.help, unit.as_ref(), value.metric_type())?)
    }
}

impl<const N: usize> Declaration<Counter, N> {
    /// Only goes up.
    pub(super) const fn counter(name: &'static str, labels: [&'static str; N], help: &'static str) -> Self {
        let new = Counter::default;
        Self {
            name,
            labels,
            help,
            new,
        }
    }
}

impl<const N: usize> Declaration<Gauge, N> {
    /// How much there is now.
    pub(super) const fn gauge(name: &'static str, labels: [&'static str; N], help: &'static str) -> Self {
        let new = Gauge::default;
        Self {
            name,
            labels,
            help,
            new,
        }
    }
}

impl<const N: usize> Declaration<Histogram, N> {
    /// How long things take, in seconds, with the same buckets everywhere so that stages can be compared.
    pub(super) const fn histogram(name: &'static str, labels: [&'static str; N], help: &'static str) -> Self {
        let new = || Histogram::new(BUCKETS);
        Self {
            name,
            labels,
            help,
            new,
        }
    }
}

type LabelSet<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// The series of one family. Clones are the same series.
#[derive(Debug, Clone)]
pub struct Series<M, const N: usize> {
    family: Family<LabelSet<N>, M, fn() -> M>,
    labels: [&'static str; N],
}

impl<M: Clone, const N: usize> Series<M, N> {
    /// The series with these values, in the order in which the labels were declared. Begins it if it is new: a value that
    /// comes from outside (a pod's name) begins one for each, and whoever counts must [`Self::remove`] it again.
    pub fn with<V: Into<Cow<'static, str>>>(&self, values: [V; N]) -> M {
        self.family.get_or_create_owned(&self.set(values))
    }

    /// Begins these series, so that a first event is a difference from zero, which a rate shows, and not from nothing.
    #[must_use]
    pub fn at_zero<V: Into<Cow<'static, str>>>(self, series: impl IntoIterator<Item = [V; N]>) -> Self {
        for values in series {
            self.with(values);
        }
        self
    }

    /// Ends the series with these values; what was counted there is gone.
    pub fn remove<V: Into<Cow<'static, str>>>(&self, values: [V; N]) {
        self.family.remove(&self.set(values));
    }

    fn set<V: Into<Cow<'static, str>>>(&self, values: [V; N]) -> LabelSet<N> {
        let mut set = self.labels.map(|name| (name, Cow::Borrowed("")));
        for ((_, label), value) in set.iter_mut().zip(values) {
            *label = value.into();
        }
        set
    }
}

impl<M: Clone> Series<M, 0> {
    /// The one series of a family without labels.
    pub fn only(&self) -> M {
        self.with::<&'static str>([])
    }
}

impl<M: EncodeMetric + TypedMetric, const N: usize> EncodeMetric for Series<M, N> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        if N > 0 {
            return self.family.encode(encoder);
        }
        // The only series there can be, without the empty braces that a family would put behind its name.
        let only = self.family.get(&self.labels.map(|name| (name, Cow::Borrowed(""))));
        only.map_or(Ok(()), |metric| metric.encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// A declaration, whatever it declares.
pub trait Described: fmt::Debug + Sync {
    /// The name of its samples: with the prefix, and with the ending of its kind (a histogram's samples have further
    /// ones).
    fn name(&self) -> String;
    /// `counter`, `gauge` or `histogram`.
    fn kind(&self) -> &'static str;
    /// The names of its labels.
    fn labels(&self) -> &[&'static str];
    /// Its meaning.
    fn help(&self) -> &'static str;
}

impl<M: TypedMetric + fmt::Debug, const N: usize> Described for Declaration<M, N> {
    fn name(&self) -> String {
        let ending = if self.kind() == "counter" { "_total" } else { "" };
        format!("{PREFIX}_{}{ending}", self.name)
    }

    fn kind(&self) -> &'static str {
        match M::TYPE {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info => "info",
            MetricType::Unknown => "unknown",
        }
    }

    fn labels(&self) -> &[&'static str] {
        &self.labels
    }

    fn help(&self) -> &'static str {
        self.help
    }
}
