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
        let usage = match usage() {
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
        let Usage {
            cpu,
            resident,
            fds,
            start,
        } = usage;
        let gauge = ConstGauge::new;
        let (seconds, bytes) = (Some(Unit::Seconds), Some(Unit::Bytes));
        let used = ConstCounter::new(cpu);
        show(
            "process_cpu",
            "Processor time the agent has used",
            seconds.clone(),
            &used,
        )?;
        show(
            "process_resident_memory",
            "Memory the agent occupies",
            bytes,
            &gauge(resident),
        )?;
        show(
            "process_open_fds",
            "File descriptors the agent holds open",
            None,
            &gauge(fds),
        )?;
        show(
            "process_start_time",
            "When the agent was started, since 1970",
            seconds,
            &gauge(start),
        )
    }
}

/// Seconds, bytes and numbers.
struct Usage {
    cpu: f64,
    resident: f64,
    fds: f64,
    start: f64,
}

fn usage() -> ProcResult<Usage> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks = procfs::ticks_per_second() as f64;
    Ok(Usage {
        cpu: (stat.utime + stat.stime) as f64 / ticks,
        resident: (stat.rss * procfs::page_size()) as f64,
        fds: process.fd_count()? as f64,
        start: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
    })
}
