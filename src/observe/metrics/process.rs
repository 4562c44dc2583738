//! Metrics of the process, read from `/proc/self` at each scrape.

use std::fmt;

use procfs::ProcResult;
use procfs::process::Process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (cpu_seconds, gauges) = match usage() {
            Ok(usage) => usage,
            // The other metrics are worth having without these.
            Err(error) => {
                tracing::warn!(%error, "the agent's own use cannot be read");
                return Ok(());
            }
        };
        let mut show = |name, help, unit: Option<Unit>, value: &dyn EncodeMetric| {
            value.encode(encoder.encode_descriptor(name, help, unit.as_ref(), value.metric_type())?)
        };
        let help = "Processor time the agent has used";
        show(
            "process_cpu",
            help,
            Some(Unit::Seconds),
            &ConstCounter::new(cpu_seconds),
        )?;
        for (name, help, unit, value) in gauges {
            show(name, help, unit, &ConstGauge::new(value))?;
        }
        Ok(())
    }
}

type Shown = (&'static str, &'static str, Option<Unit>, f64);

/// Seconds of processor time, and what else is shown.
fn usage() -> ProcResult<(f64, [Shown; 3])> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks = procfs::ticks_per_second() as f64;
    let resident = (stat.rss * procfs::page_size()) as f64;
    let start = procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks;
    let gauges = [
        (
            "process_resident_memory",
            "Memory the agent occupies",
            Some(Unit::Bytes),
            resident,
        ),
        (
            "process_open_fds",
            "File descriptors the agent holds open",
            None,
            process.fd_count()? as f64,
        ),
        (
            "process_start_time",
            "When the agent was started, since 1970",
            Some(Unit::Seconds),
            start,
        ),
    ];
    Ok(((stat.utime + stat.stime) as f64 / ticks, gauges))
}
