//! Shared code for metrics. Each component registers its families with prometheus-client when the agent starts, for any
//! configuration, and counts through methods of its own (`metrics` in `agent`, `kubernetes` and `report`). docs/metrics.md
//! lists every family, and tests compare the list with the served families.
//!
//! The values of labels are known in advance, so the number of series is bounded. Only the families of kills
//! and of workloads have external names in their labels, and they drop series again. Each scrape reads the metrics of the
//! process from `/proc/self`.

#[cfg(test)]
mod tests;

use std::fmt;

use procfs::ProcResult;
use procfs::process::Process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};
use strum::VariantArray;
use tokio::runtime::Handle;

/// 50 µs to 60 s. A pass over one pod takes a fraction of a millisecond through files, and seconds when it waits for a
/// runtime or for the kernel's reclaim.
const BUCKETS: [f64; 19] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// The labels of one series: names and values.
pub type Labels<const N: usize> = [(&'static str, &'static str); N];

/// A family of counters with `N` labels.
pub type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// A family of gauges with `N` labels.
pub type Gauges<const N: usize> = Family<Labels<N>, Gauge>;

/// A family of histograms of [`seconds`] with `N` labels.
pub type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// A histogram of durations. All have the same buckets, so that stages can be compared.
pub fn seconds() -> Histogram {
    Histogram::new(BUCKETS)
}

/// Registers a metric or a family and returns its handle. A name ends with its unit: `_seconds` or `_bytes`.
pub fn register<M>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M
where
    M: EncodeMetric + Clone + fmt::Debug + Send + Sync + 'static,
{
    let shown = Shown(metric.clone());
    match name.rsplit_once('_') {
        Some((name, "seconds")) => registry.register_with_unit(name, help, Unit::Seconds, shown),
        Some((name, "bytes")) => registry.register_with_unit(name, help, Unit::Bytes, shown),
        _ => registry.register(name, help, shown),
    }
    metric
}

/// Registers a family and begins these series at zero, so that a rate counts the first event.
pub fn family<M, const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = Labels<N>>,
) -> Family<Labels<N>, M>
where
    M: EncodeMetric + TypedMetric + Default + Clone + fmt::Debug + Send + Sync + 'static,
{
    let family = register(registry, name, help, Family::default());
    for labels in series {
        drop(family.get_or_create_owned(&labels));
    }
    family
}

/// Serves name and type of a metric also while it has no series, so that no query meets an unknown name.
#[derive(Debug)]
struct Shown<M>(M);

impl<M: EncodeMetric> EncodeMetric for Shown<M> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }
}

/// The series of a family whose only label has the values of an enumeration. docs/metrics.md gives the meaning of each value.
pub fn series<E: VariantArray + Into<&'static str> + Copy>(label: &'static str) -> impl Iterator<Item = Labels<1>> {
    E::VARIANTS.iter().map(move |value| [(label, (*value).into())])
}

/// A count as the value of a gauge.
pub fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A registry with the prefix `vscaled_` and the metrics of the process, with the tasks of the tokio runtime that calls this.
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("vscaled");
    let build = register(
        &mut registry,
        "build_info",
        "Always 1; the label says what runs here",
        Gauges::<1>::default(),
    );
    build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
    // Scrapes run in a runtime of their own. Some unit tests have none.
    let tasks = Handle::try_current().ok();
    registry.register_collector(Box::new(ProcessCollector { tasks }));
    registry
}

#[derive(Debug)]
struct ProcessCollector {
    tasks: Option<Handle>,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let [cpu, resident, fds, start] = match usage() {
            Ok(usage) => usage,
            // The other metrics are useful without these.
            Err(error) => {
                tracing::warn!(%error, "the agent's own use cannot be read");
                return Ok(());
            }
        };
        let runtime = self.tasks.as_ref();
        let tasks = runtime.map_or(0, |runtime| runtime.metrics().num_alive_tasks());
        let (seconds, bytes) = (Some(&Unit::Seconds), Some(&Unit::Bytes));
        let mut show = |name, unit, value: &dyn EncodeMetric, help| {
            value.encode(encoder.encode_descriptor(name, help, unit, value.metric_type())?)
        };
        let (cpu, [resident, fds, tasks, start]) = (
            ConstCounter::new(cpu),
            [resident, fds, tasks as f64, start].map(ConstGauge::new),
        );
        show("process_cpu", seconds, &cpu, "Processor time the agent has used")?;
        show("process_resident_memory", bytes, &resident, "Memory the agent occupies")?;
        show("process_open_fds", None, &fds, "File descriptors the agent holds open")?;
        show(
            "process_tasks",
            None,
            &tasks,
            "Asynchronous tasks of the agent that have not ended",
        )?;
        show(
            "process_start_time",
            seconds,
            &start,
            "Start time of the agent in seconds since 1970",
        )
    }
}

/// Processor time in seconds, memory in bytes, descriptors, and the start in seconds since 1970.
fn usage() -> ProcResult<[f64; 4]> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks = procfs::ticks_per_second() as f64;
    let cpu = (stat.utime + stat.stime) as f64 / ticks;
    let resident = (stat.rss * procfs::page_size()) as f64;
    let start = procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks;
    Ok([cpu, resident, process.fd_count()? as f64, start])
}
