//! What reporting counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::agent::gauge;
use super::declare::Series;
use super::families;
use super::labels::{LinkOutcome, ReportOutcome};
use crate::report::{Destination, LogStatus};

/// How reports of OOM kills fare on their way.
#[derive(Debug, Clone)]
pub struct ReportMetrics {
    reports: Series<Counter, 2>,
    links: Series<Counter, 2>,
    connected: Series<Gauge, 1>,
    pending: Gauge,
    bytes: Gauge,
    folded: Counter,
    lost: Counter,
    syncs: Counter,
}

impl ReportMetrics {
    /// Registers them, at zero. A destination has series from when it is [`Self::selected`].
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            reports: families::REPORTS.register(registry),
            links: families::REPORT_CONNECTIONS.register(registry),
            connected: families::REPORT_CONNECTED.register(registry),
            pending: families::SPOOL_REPORTS.register(registry).only(),
            bytes: families::SPOOL_BYTES.register(registry).only(),
            folded: families::SPOOL_FOLDED.register(registry).only(),
            lost: families::SPOOL_LOST.register(registry).only(),
            syncs: families::SPOOL_SYNCS.register(registry).only(),
        }
    }

    /// Reports go to this destination.
    pub fn selected(&self, destination: Destination) {
        for outcome in ReportOutcome::ALL {
            self.told(destination, *outcome, 0);
        }
        for outcome in LinkOutcome::ALL {
            self.links.with([destination.as_str(), outcome.as_str()]);
        }
        self.connected.with([destination.as_str()]);
    }

    /// This became of so many reports for that destination.
    pub fn told(&self, destination: Destination, outcome: ReportOutcome, count: usize) {
        self.reports
            .with([destination.as_str(), outcome.as_str()])
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// The destination was reached, or not.
    pub fn link(&self, destination: Destination, outcome: LinkOutcome) {
        self.links.with([destination.as_str(), outcome.as_str()]).inc();
        let connected = outcome == LinkOutcome::Established;
        self.connected.with([destination.as_str()]).set(connected.into());
    }

    /// The spool is like this now.
    pub fn spool(&self, status: &LogStatus) {
        self.pending.set(gauge(status.reports));
        self.bytes.set(i64::try_from(status.bytes).unwrap_or(i64::MAX));
        let totals = status.totals;
        for (counter, total) in [
            (&self.folded, totals.folded),
            (&self.lost, totals.lost),
            (&self.syncs, totals.syncs),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }
}
