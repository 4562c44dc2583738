//! Metrics of reporting.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use strum::VariantArray;

use super::Destination;
use super::log::{LogStatus, Totals};
use crate::observe::metrics::{Counters, Gauges, Labels, gauge, register};

/// The outcome of a report for one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ReportOutcome {
    Sent,
    SentAgain,
    Acknowledged,
    Withheld,
    Refused,
}

/// The outcome of an attempt to reach a destination of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum LinkOutcome {
    Established,
    Failed,
}

/// The metrics of the log and of the deliveries.
#[derive(Debug, Clone)]
pub struct ReportMetrics {
    reports: Counters<2>,
    links: Counters<2>,
    connected: Gauges<1>,
    pending: Gauge,
    bytes: Gauge,
}

impl ReportMetrics {
    /// Registers the families, and the totals of a log. A destination has series after [`Self::selected`].
    pub fn register(registry: &mut Registry, totals: &Totals) -> Self {
        let mut total = |name, help, total: &Counter| drop(register(registry, name, help, total.clone()));
        let folded = "OOM kills that were only counted because the kill log was full";
        let lost = "Kill logs that were found damaged at a start";
        total("spool_folded", folded, &totals.folded);
        total("spool_lost", lost, &totals.lost);
        total("spool_syncs", "Times the kill log waited for the disk", &totals.syncs);
        let reports = "Reports of OOM kills, by outcome";
        let connected = "Whether a receiver of reports can be reached now (1) or not (0)";
        let pending = "Reports that some receiver has not acknowledged";
        let bytes = "Size of those reports";
        let links = "Attempts to reach a receiver of reports";
        Self {
            reports: register(registry, "reports", reports, Family::default()),
            links: register(registry, "report_connections", links, Family::default()),
            connected: register(registry, "report_connected", connected, Family::default()),
            pending: register(registry, "spool_reports", pending, Gauge::default()),
            bytes: register(registry, "spool_report_bytes", bytes, Gauge::default()),
        }
    }

    /// Begins the series of a destination, except whether it can be reached: that is unknown before the first attempt.
    pub fn selected(&self, destination: Destination) {
        for outcome in ReportOutcome::VARIANTS {
            self.count(destination, *outcome, 0);
        }
        for outcome in LinkOutcome::VARIANTS {
            drop(self.links.get_or_create(&outcome_of(destination, *outcome)));
        }
    }

    /// Counts reports for a destination with this outcome.
    pub fn count(&self, destination: Destination, outcome: ReportOutcome, count: usize) {
        let reports = self.reports.get_or_create_owned(&outcome_of(destination, outcome));
        reports.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Counts an attempt to reach the destination, and shows its outcome.
    pub fn link(&self, destination: Destination, outcome: LinkOutcome) {
        self.links.get_or_create(&outcome_of(destination, outcome)).inc();
        self.connected(destination)
            .set((outcome == LinkOutcome::Established).into());
    }

    fn connected(&self, destination: Destination) -> Gauge {
        self.connected
            .get_or_create_owned(&[("destination", destination.as_str())])
    }

    /// Shows the state of the log.
    pub fn show_log_status(&self, status: &LogStatus) {
        self.pending.set(gauge(status.reports));
        self.bytes.set(i64::try_from(status.bytes).unwrap_or(i64::MAX));
    }
}

fn outcome_of(destination: Destination, outcome: impl Into<&'static str>) -> Labels<2> {
    [("destination", destination.as_str()), ("outcome", outcome.into())]
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn a_receiver_that_is_lost_is_shown() {
        let metrics = ReportMetrics::register(&mut Registry::default(), &Totals::default());
        for (outcome, connected) in [(LinkOutcome::Established, 1), (LinkOutcome::Failed, 0)] {
            metrics.link(Destination::Grpc, outcome);
            assert_eq!(metrics.connected(Destination::Grpc).get(), connected);
            assert_eq!(metrics.connected(Destination::VpaEvents).get(), 0);
        }
    }

    #[test]
    fn each_outcome_is_counted_apart() {
        let mut registry = Registry::default();
        let metrics = ReportMetrics::register(&mut registry, &Totals::default());
        metrics.selected(Destination::Grpc);
        for (outcome, count) in ReportOutcome::VARIANTS.iter().zip(1..) {
            metrics.count(Destination::Grpc, *outcome, count);
        }
        metrics.show_log_status(&LogStatus {
            reports: 7,
            bytes: 9,
            ..LogStatus::default()
        });
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "reports_total{destination=\"grpc\",outcome=\"sent\"} 1",
            "reports_total{destination=\"grpc\",outcome=\"sent_again\"} 2",
            "reports_total{destination=\"grpc\",outcome=\"acknowledged\"} 3",
            "reports_total{destination=\"grpc\",outcome=\"withheld\"} 4",
            "reports_total{destination=\"grpc\",outcome=\"refused\"} 5",
            "report_connections_total{destination=\"grpc\",outcome=\"failed\"} 0",
            "spool_reports 7",
            "spool_report_bytes 9",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("report_connected{"), "no attempt was made yet");
    }
}
