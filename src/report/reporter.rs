//! The task of the log and those of the destinations, started and stopped as one.
//!
//! Each destination has a [`ReportQueue`]: the next reports come out of the log, and their acknowledgements go into it.

use std::fmt;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::destination::Destination;
use super::log::task::{self, LogLink, LogTask};
use super::log::{Commit, Committed, KillLog, LogStatus, Pending};
use super::metrics::{LinkOutcome, ReportMetrics, ReportOutcome};
use crate::oom::OomReport;

/// A way to a destination. Each runs in a task of its own: one that hangs delays no other.
pub trait Deliver: fmt::Debug + Send + 'static {
    /// One of the destinations the log was opened for.
    fn destination(&self) -> Destination;

    /// Delivers everything in the queue, in order, until the queue has [`Ended`]. Retries failures itself. At the end of the
    /// agent the reporter drops it at any await: the next agent delivers what is not acknowledged then.
    fn run(self: Box<Self>, queue: ReportQueue) -> BoxFuture<'static, ()>;
}

/// The running tasks of reporting: stores kills, and knows how the destinations are doing. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reporter {
    log: LogLink,
    links: Vec<(Destination, watch::Receiver<Link>)>,
    stop: CancellationToken,
    deliveries: TaskTracker,
}

impl Reporter {
    /// Starts the task of the log and a task for each destination. Deliveries end with `stop`; the
    /// log takes commits until [`Self::finish`].
    pub fn start(
        log: KillLog,
        destinations: Vec<Box<dyn Deliver>>,
        metrics: &ReportMetrics,
        stop: &CancellationToken,
    ) -> Self {
        let stop = stop.child_token();
        let log = task::start(log, metrics.clone());
        let (mut links, deliveries) = (Vec::new(), TaskTracker::new());
        for deliver in destinations {
            let destination = deliver.destination();
            metrics.selected(destination);
            let queue = ReportQueue {
                destination,
                log: log.clone(),
                link: watch::Sender::new(Link::Starting),
                metrics: metrics.clone(),
                highest: 0,
                after: 0,
                known: None,
            };
            links.push((destination, queue.link.subscribe()));
            deliveries.spawn(stop.clone().run_until_cancelled_owned(deliver.run(queue)));
        }
        Self {
            log,
            links,
            stop,
            deliveries,
        }
    }

    /// Stops the deliveries and waits until the disk has everything; commits after this fail.
    pub async fn finish(self) {
        self.stop.cancel();
        self.deliveries.close();
        self.deliveries.wait().await;
        self.log.finish().await;
    }

    /// Stores these kills and the position of the watcher after them, together or not at all, and returns once they
    /// survive the end of this process ([`Committed::on_disk`]). Drops a kill with the id of a stored one. Cancelling
    /// it does not take the kills back.
    ///
    /// Errors: [`Ended`] after [`Reporter::finish`]: nothing was stored.
    pub async fn commit(&self, reports: Vec<Arc<OomReport>>, checkpoint: Option<Vec<u8>>) -> Result<Committed, Ended> {
        let commit = Commit { reports, checkpoint };
        self.log.call(|task| task.log.commit(commit)).await
    }

    /// The state of the log now.
    pub fn log(&self) -> LogStatus {
        self.log.status.borrow().clone()
    }

    /// Whether each destination can be reached now.
    pub fn links(&self) -> impl Iterator<Item = (Destination, Link)> {
        self.links.iter().map(|(to, link)| (*to, link.borrow().clone()))
    }

    /// Present problems, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        let log = self.log();
        let mut problems = Vec::from_iter(log.problem.clone());
        for (to, link) in self.links() {
            if let Link::Waiting { error, until } = link {
                let (name, pending) = (to.as_str(), log.pending_for(to));
                problems.push(format!(
                    "{name}: {error}; {pending} reports wait, the next attempt is at {until:.0}"
                ));
            }
        }
        problems
    }

    /// Waits until [`Self::problems`] may have changed. Cancel-safe: the next call notices changes in between.
    ///
    /// Errors: [`Ended`] once nothing changes any more.
    pub async fn changed(&mut self) -> Result<(), Ended> {
        let links = self.links.iter_mut().map(|(_, state)| state.changed().boxed());
        let changes = links.chain([self.log.status.changed().boxed()]);
        let (changed, _, _) = futures::future::select_all(changes).await;
        changed.map_err(|_| Ended)
    }
}

/// The agent is ending; the log has the reports that are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reporting has ended")]
pub struct Ended;

/// Whether a destination can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    Starting,
    Connected,
    Waiting {
        error: String,
        /// The time of the next attempt.
        until: Timestamp,
    },
}

/// The reports of one destination in order, each until it is acknowledged.
#[derive(Debug)]
pub struct ReportQueue {
    destination: Destination,
    log: LogLink,
    link: watch::Sender<Link>,
    metrics: ReportMetrics,
    /// The highest number that was sent since the agent started.
    highest: u64,
    /// The number of the last report that [`Self::next`] returned.
    after: u64,
    /// Once [`Self::next`] has returned all there were: the number of the last report of the log then.
    known: Option<u64>,
}

impl ReportQueue {
    /// The next reports, oldest first, at most so many; none if there are none now. From now on the
    /// destination may have received them.
    pub async fn next(&mut self, most: usize) -> Result<Vec<Pending>, Ended> {
        if most == 0 || self.known.is_some() {
            return Ok(Vec::new());
        }
        // A report that the log stores after this wakes `more`.
        let known = self.log.status.borrow().last_number;
        let (destination, after) = (self.destination, self.after);
        let next = move |task: &mut LogTask| task.log.next_for(destination, after, most);
        let pending = self.log.call(next).await?;
        self.after = pending.last().map_or(after, |last| last.number);
        self.known = (pending.len() < most).then_some(known);
        Ok(pending)
    }

    /// Begins again with the oldest report that is not acknowledged.
    pub const fn start_over(&mut self) {
        (self.after, self.known) = (0, None);
    }

    /// Waits until there may be more reports than [`Self::next`] found; for ever if it did not return all. Cancel-safe.
    pub async fn more(&mut self) -> Result<(), Ended> {
        let Some(known) = self.known else {
            return std::future::pending().await;
        };
        let more = self.log.status.wait_for(|status| status.last_number > known).await;
        more.map_err(|_| Ended)?;
        self.known = None;
        Ok(())
    }

    /// The destination has received the reports with these numbers.
    ///
    /// Errors: [`Ended`]: the next agent delivers them again, under the same ids.
    pub async fn acknowledge(&self, numbers: Vec<u64>) -> Result<(), Ended> {
        let (destination, metrics) = (self.destination, self.metrics.clone());
        let acknowledge = move |task: &mut LogTask| {
            let count = task.log.acknowledge(destination, &numbers);
            metrics.count(destination, ReportOutcome::Acknowledged, count);
        };
        self.log.send(acknowledge).await
    }

    /// Counts a report that was sent. A number that was sent before counts as sent again.
    pub fn sent(&mut self, number: u64) {
        let outcome = if number > self.highest {
            ReportOutcome::Sent
        } else {
            ReportOutcome::SentAgain
        };
        self.highest = self.highest.max(number);
        self.metrics.count(self.destination, outcome, 1);
    }

    /// Counts so many reports with this outcome.
    pub fn count(&self, outcome: ReportOutcome, reports: usize) {
        self.metrics.count(self.destination, outcome, reports);
    }

    /// Records that the destination can be reached.
    pub fn connected(&self) {
        let connect = |link: &mut Link| replace(link, Link::Connected) != Link::Connected;
        if self.link.send_if_modified(connect) {
            self.metrics.link(self.destination, LinkOutcome::Established);
        }
    }

    /// Records that the destination cannot be reached, and waits for so long.
    pub async fn wait(&self, error: String, pause: Duration) {
        self.metrics.link(self.destination, LinkOutcome::Failed);
        let until = Timestamp::now() + pause;
        self.link.send_replace(Link::Waiting { error, until });
        tokio::time::sleep(pause).await;
    }
}
