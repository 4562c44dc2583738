//! What the agent itself uses, read from `/proc/self` at each scrape.

use std::fmt;

use procfs::ProcResult;
use procfs::process::Process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::families;

/// Reads `/proc/self` when asked.
#[derive(Debug)]
pub(super) struct ProcessCollector;

struct Usage {
    cpu_seconds: f64,
    resident_bytes: u64,
    open_descriptors: usize,
    /// Since 1970.
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
        families::PROCESS_CPU.show(&mut encoder, &ConstCounter::new(usage.cpu_seconds))?;
        families::PROCESS_MEMORY.show(&mut encoder, &ConstGauge::new(usage.resident_bytes))?;
        families::PROCESS_FDS.show(&mut encoder, &ConstGauge::new(usage.open_descriptors))?;
        families::PROCESS_START.show(&mut encoder, &ConstGauge::new(usage.start_seconds))
    }
}
