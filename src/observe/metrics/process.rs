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

struct Usage {
    cpu_seconds: f64,
    resident_bytes: u64,
    open_descriptors: usize,
    start_seconds: f64,
}

impl Usage {
    fn now() -> ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second() as f64;
        Ok(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
            resident_bytes: stat.rss * procfs::page_size(),
            open_descriptors: process.fd_count()?,
            start_seconds: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
        })
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let usage = match Usage::now() {
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
        let cpu = ConstCounter::new(usage.cpu_seconds);
        show(
            "process_cpu",
            "Processor time the agent has used",
            Some(Unit::Seconds),
            &cpu,
        )?;
        let memory = ConstGauge::new(usage.resident_bytes);
        show(
            "process_resident_memory",
            "Memory the agent occupies",
            Some(Unit::Bytes),
            &memory,
        )?;
        let descriptors = ConstGauge::new(usage.open_descriptors);
        show(
            "process_open_fds",
            "File descriptors the agent holds open",
            None,
            &descriptors,
        )?;
        let start = ConstGauge::new(usage.start_seconds);
        show(
            "process_start_time",
            "When the agent was started, since 1970",
            Some(Unit::Seconds),
            &start,
        )
    }
}
