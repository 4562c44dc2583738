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
        let [cpu, resident, fds, start] = match usage() {
            Ok(usage) => usage,
            // The other metrics are worth having without these.
            Err(error) => {
                tracing::warn!(%error, "the agent's own use cannot be read");
                return Ok(());
            }
        };
        let (seconds, bytes) = (Some(Unit::Seconds), Some(Unit::Bytes));
        let mut show = |name, help, unit: &Option<Unit>, value: &dyn EncodeMetric| {
            value.encode(encoder.encode_descriptor(name, help, unit.as_ref(), value.metric_type())?)
        };
        let cpu = ConstCounter::new(cpu);
        show("process_cpu", "Processor time the agent has used", &seconds, &cpu)?;
        let gauges = [
            ("process_resident_memory", "Memory the agent occupies", &bytes, resident),
            ("process_open_fds", "File descriptors the agent holds open", &None, fds),
            (
                "process_start_time",
                "When the agent was started, since 1970",
                &seconds,
                start,
            ),
        ];
        let mut gauges = gauges.into_iter();
        gauges.try_for_each(|(name, help, unit, value)| show(name, help, unit, &ConstGauge::new(value)))
    }
}

/// Seconds of processor time, bytes of memory, descriptors, and the second of the start.
fn usage() -> ProcResult<[f64; 4]> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks = procfs::ticks_per_second() as f64;
    let cpu = (stat.utime + stat.stime) as f64 / ticks;
    let resident = (stat.rss * procfs::page_size()) as f64;
    let start = procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks;
    Ok([cpu, resident, process.fd_count()? as f64, start])
}
