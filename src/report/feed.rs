//! What a destination gets its reports through, and says how it fares.

use jiff::Timestamp;
use tokio::sync::{oneshot, watch};

use super::destination::Destination;
use super::keeper::{Command, KeeperLink};
use super::spool::Owed;
use super::status::Link;
use crate::observe::metrics::{LinkOutcome, ReportMetrics, ReportOutcome};

/// The agent is ending: there are no reports any more, and those that are left are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reporting has ended")]
pub struct Ended;

/// A destination's reports, in order, each until it is acknowledged.
#[derive(Debug)]
pub struct Feed {
    destination: Destination,
    keeper: KeeperLink,
    state: watch::Sender<(Link, usize)>,
    metrics: ReportMetrics,
    /// The highest number that was sent since the agent started.
    highest: u64,
}

impl Feed {
    /// A feed, and where its state is seen.
    pub(super) fn new(
        destination: Destination,
        keeper: KeeperLink,
        metrics: ReportMetrics,
    ) -> (Self, watch::Receiver<(Link, usize)>) {
        let (state, seen) = watch::channel((Link::Starting, 0));
        metrics.selected(destination);
        let feed = Self {
            destination,
            keeper,
            state,
            metrics,
            highest: 0,
        };
        (feed, seen)
    }

    /// The next reports after that number, oldest first, at most so many; none if there are none now. From now on they
    /// count as possibly received. 0 is before all.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn take(&mut self, after: u64, most: usize) -> Result<Vec<Owed>, Ended> {
        // What is stored after this wakes `more`.
        self.keeper.news.mark_unchanged();
        let (reply, answer) = oneshot::channel();
        let command = Command::Take {
            destination: self.destination,
            after,
            most,
            reply,
        };
        self.keeper.commands.send(command).await.map_err(|_| Ended)?;
        answer.await.map_err(|_| Ended)
    }

    /// Waits until there may be more reports than [`Self::take`] found last. Cancel-safe.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn more(&mut self) -> Result<(), Ended> {
        self.keeper.news.changed().await.map_err(|_| Ended)
    }

    /// These were received, and are not needed again.
    ///
    /// # Errors
    /// [`Ended`]: they will be told again, under the same ids.
    pub async fn acknowledge(&self, numbers: Vec<u64>) -> Result<(), Ended> {
        let command = Command::Settle {
            destination: self.destination,
            numbers,
        };
        self.keeper.commands.send(command).await.map_err(|_| Ended)
    }

    /// A report was sent. Sending one with a number that was sent before counts as sending again.
    pub fn sent(&mut self, number: u64) {
        let outcome = if number > self.highest {
            ReportOutcome::Sent
        } else {
            ReportOutcome::SentAgain
        };
        self.highest = self.highest.max(number);
        self.metrics.told(self.destination, outcome, 1);
    }

    /// This became of so many reports.
    pub fn count(&self, outcome: ReportOutcome, reports: usize) {
        self.metrics.told(self.destination, outcome, reports);
    }

    /// So many reports are sent and not acknowledged.
    pub fn on_the_way(&self, count: usize) {
        self.state.send_modify(|(_, on_the_way)| *on_the_way = count);
    }

    /// The destination can be reached.
    pub fn connected(&self) {
        self.metrics.link(self.destination, LinkOutcome::Established);
        self.state.send_modify(|(link, _)| {
            *link = Link::Connected {
                since: Timestamp::now(),
            };
        });
    }

    /// The destination cannot be reached, and is tried again at that time.
    pub fn waiting(&self, error: String, until: Timestamp) {
        self.metrics.link(self.destination, LinkOutcome::Failed);
        self.state.send_replace((Link::Waiting { error, until }, 0));
    }
}
