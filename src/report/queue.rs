//! The reports of one destination: the next ones out of the log, and their acknowledgements into it.

use jiff::Timestamp;
use tokio::sync::watch;

use super::destination::Destination;
use super::log::Pending;
use super::log::task::{LogLink, LogTask};
use super::status::Link;
use crate::report::metrics::{LinkOutcome, ReportMetrics, ReportOutcome};

/// The agent is ending; the reports that are left are in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reporting has ended")]
pub struct Ended;

/// The reports of one destination in order, each until it is acknowledged.
#[derive(Debug)]
pub struct ReportQueue {
    destination: Destination,
    log: LogLink,
    link: watch::Sender<Link>,
    metrics: ReportMetrics,
    /// The highest number that was sent since the agent started.
    highest: u64,
    /// The number of the last report when [`Self::next`] was called last.
    known: u64,
}

impl ReportQueue {
    /// A queue, and the state of its link for others.
    pub(super) fn new(destination: Destination, log: LogLink, metrics: ReportMetrics) -> (Self, watch::Receiver<Link>) {
        let (link, seen) = watch::channel(Link::Starting);
        metrics.selected(destination);
        let queue = Self {
            destination,
            log,
            link,
            metrics,
            highest: 0,
            known: 0,
        };
        (queue, seen)
    }

    /// The next reports after that number, oldest first, at most so many; none if there are none now. From now on they
    /// count as possibly received. 0 is before all.
    pub async fn next(&mut self, after: u64, most: usize) -> Result<Vec<Pending>, Ended> {
        // What is stored after this wakes `more`.
        self.known = self.log.status.borrow().last_number;
        let destination = self.destination;
        let next = move |task: &mut LogTask| task.log.next_for(destination, after, most);
        self.log.call(next).await
    }

    /// Waits until there may be more reports than [`Self::next`] found last. Cancel-safe.
    pub async fn more(&mut self) -> Result<(), Ended> {
        let known = self.known;
        let more = self.log.status.wait_for(|status| status.last_number > known).await;
        more.map(drop).map_err(|_| Ended)
    }

    /// These were received, and are not needed again.
    ///
    /// Errors: [`Ended`]: they will be delivered again, under the same ids.
    pub async fn acknowledge(&self, numbers: Vec<u64>) -> Result<(), Ended> {
        let destination = self.destination;
        self.log.send(move |task| task.acknowledge(destination, &numbers)).await
    }

    /// Counts a report that was sent. A number that was sent before counts as sent again.
    pub fn sent(&mut self, number: u64) {
        let outcome = if number > self.highest {
            ReportOutcome::Sent
        } else {
            ReportOutcome::SentAgain
        };
        self.highest = self.highest.max(number);
        self.metrics.told(self.destination, outcome, 1);
    }

    /// Counts so many reports with this outcome.
    pub fn count(&self, outcome: ReportOutcome, reports: usize) {
        self.metrics.told(self.destination, outcome, reports);
    }

    /// Records that the destination can be reached.
    pub fn connected(&self) {
        self.metrics.link(self.destination, LinkOutcome::Established);
        self.link.send_replace(Link::Connected);
    }

    /// Records that the destination cannot be reached, and is tried again at that time.
    pub fn waiting(&self, error: String, until: Timestamp) {
        self.metrics.link(self.destination, LinkOutcome::Failed);
        self.link.send_replace(Link::Waiting { error, until });
    }
}
