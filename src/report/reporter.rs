//! The log and the tasks around it, started and stopped as one.
//!
//! The log blocks, so all work with it happens on threads for blocking calls, one piece at a time. A task waits for the disk after
//! the first new report and then at most every [`SYNC_EVERY`]: a burst of kills costs one or two waits, and a power cut can
//! take the reports since the last one. The task tries a disk that refuses again every [`RETRY_EVERY`].
//!
//! Each destination has a [`ReportQueue`] ([`Reporter::queue`]): the next reports come out of the log, and their acknowledgements go into it.

use std::convert::Infallible;
use std::mem::take;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::content::Report;
use super::destination::Destination;
use super::log::{KillLog, LogStatus, Pending};
use super::metrics::{LinkOutcome, ReportMetrics, ReportOutcome};
use crate::rate_limiter::{REPEATED_LINES, RateLimiter};

/// The shortest time between two waits for the disk.
const SYNC_EVERY: Duration = Duration::from_millis(500);
/// The time between two attempts to write to a disk that refuses.
const RETRY_EVERY: Duration = Duration::from_secs(5);

/// The running tasks of reporting: store kills, and publish the state of each destination. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reporter {
    log: Arc<Mutex<KillLog>>,
    status: watch::Sender<LogStatus>,
    metrics: ReportMetrics,
    /// Another event loop may wait for the log: its own threads for blocking calls would keep it from ending.
    runtime: Handle,
    /// Ends the deliveries.
    stop: CancellationToken,
    deliveries: TaskTracker,
    /// Ends the task that waits for the disk.
    is_finished: CancellationToken,
}

impl Reporter {
    /// Starts the task that waits for the disk. Deliveries end with `stop`; the log takes commits until [`Self::finish`].
    pub fn start(log: KillLog, metrics: &ReportMetrics, stop: &CancellationToken) -> Self {
        let reporter = Self {
            status: watch::Sender::new(log.status()),
            log: Arc::new(Mutex::new(log)),
            metrics: metrics.clone(),
            runtime: Handle::current(),
            stop: stop.child_token(),
            deliveries: TaskTracker::new(),
            is_finished: CancellationToken::new(),
        };
        reporter.metrics.show_log_status(&reporter.status.borrow());
        let saving = reporter.clone().keep_saved();
        tokio::spawn(reporter.is_finished.clone().run_until_cancelled_owned(saving));
        reporter
    }

    /// The reports of one of the destinations that the log was opened for. Each destination has one queue.
    pub fn queue(&self, destination: Destination) -> ReportQueue {
        self.metrics.selected(destination);
        ReportQueue {
            destination,
            reporter: self.clone(),
            highest: 0,
            seen: 0,
            logged: RateLimiter::new(REPEATED_LINES, Instant::now()),
        }
    }

    /// Runs a delivery until the reporter ends, which drops it at any await: the next agent delivers what is not acknowledged
    /// then, under the same ids. Each runs in a task of its own: one that hangs delays no other.
    pub fn spawn(&self, delivery: impl Future<Output = Infallible> + Send + 'static) {
        self.deliveries
            .spawn(self.stop.clone().run_until_cancelled_owned(delivery));
    }

    /// Stops the deliveries and waits until the disk has everything, at most for so long. The caller commits nothing after this.
    pub async fn finish(self, patience: Duration) {
        self.stop.cancel();
        self.deliveries.close();
        self.deliveries.wait().await;
        self.is_finished.cancel();
        if timeout(patience, self.call(KillLog::sync)).await.is_err() {
            tracing::warn!("the kill log may lack its last entries: the disk is too slow");
        }
    }

    /// Stores these kills and the position of the watcher after them, together or not at all, and returns once they
    /// survive the end of this process, as long as the disk takes them. Cancelling it does not take the kills back.
    pub async fn commit(&self, reports: Vec<Report>, checkpoint: Option<Vec<u8>>) {
        self.call(|log| log.commit(reports, checkpoint)).await;
    }

    /// The state of the log and of the ways to the destinations, now and whenever it changes.
    pub fn status(&self) -> watch::Receiver<LogStatus> {
        self.status.subscribe()
    }

    /// Does this work on the log, and publishes the status after it. Cancelling the call does not take the work back.
    async fn call<T: Send + 'static>(&self, work: impl FnOnce(&mut KillLog) -> T + Send + 'static) -> T {
        let shared = self.clone();
        let call = move || {
            let mut log = shared.log.lock();
            let result = work(&mut log);
            let mut now = log.status();
            shared.metrics.show_log_status(&now);
            shared.status.send_modify(|status| {
                now.links = take(&mut status.links);
                *status = now;
            });
            result
        };
        match self.runtime.spawn_blocking(call).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime is ending, and drops the caller.
            Err(_) => std::future::pending().await,
        }
    }

    /// Writes missing entries to the disk.
    async fn keep_saved(self) {
        let mut status = self.status.subscribe();
        // No error: the sender is in this value.
        while status.wait_for(|status| status.is_unsaved).await.is_ok() {
            let is_saved = self.call(KillLog::sync).await;
            tokio::time::sleep(if is_saved { SYNC_EVERY } else { RETRY_EVERY }).await;
        }
    }
}

/// Whether a destination can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
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
    pub(super) destination: Destination,
    reporter: Reporter,
    /// The highest number that was sent since the agent started.
    highest: u64,
    /// [`Self::next`] has returned the reports up to this number, apart from those left out.
    seen: u64,
    /// The log lines about failed attempts: each namespace may have its own.
    logged: RateLimiter,
}

impl ReportQueue {
    /// The next reports that `admits` takes, oldest first, at most so many; none if there are none now. From now on the
    /// destination may have received them. Those left out come again after [`Self::start_over`].
    pub async fn next(
        &mut self,
        most: usize,
        admits: impl FnMut(u64, &Report) -> bool + Send + 'static,
    ) -> Vec<Pending> {
        // A report that the log stores after this wakes `more`.
        let last = self.reporter.status.borrow().last_number;
        let (destination, seen) = (self.destination, self.seen);
        if most == 0 || last <= seen {
            return Vec::new();
        }
        let next = move |log: &mut KillLog| log.next_for(destination, seen, most, admits);
        let pending = self.reporter.call(next).await;
        let returned = pending.last().map_or(seen, |last| last.number);
        self.seen = if pending.len() < most {
            returned.max(last)
        } else {
            returned
        };
        for Pending { number, report } in &pending {
            let to = destination.as_str();
            tracing::debug!(number, id = &*report.id(), to, "a report is due at its receiver");
        }
        pending
    }

    /// Begins again with the oldest report that is not acknowledged.
    pub const fn start_over(&mut self) {
        self.seen = 0;
    }

    /// Waits until there may be more reports than [`Self::next`] has returned. Cancel-safe.
    pub async fn more(&self) {
        let mut status = self.reporter.status.subscribe();
        // No error: the sender is in this queue.
        drop(status.wait_for(|status| status.last_number > self.seen).await);
    }

    /// The destination has received the reports with these numbers.
    pub async fn acknowledge(&mut self, numbers: Vec<u64>) {
        let destination = self.destination;
        let to = destination.as_str();
        tracing::debug!(?numbers, to, "reports need nothing more from their receiver");
        let acknowledge = move |log: &mut KillLog| log.acknowledge(destination, &numbers);
        self.count(ReportOutcome::Acknowledged, self.reporter.call(acknowledge).await);
    }

    /// Counts a report that was sent. A number that was sent before counts as sent again.
    pub fn sent(&mut self, number: u64) {
        let outcome = if number > self.highest {
            ReportOutcome::Sent
        } else {
            ReportOutcome::SentAgain
        };
        self.highest = self.highest.max(number);
        self.count(outcome, 1);
    }

    /// Counts so many reports with this outcome.
    pub fn count(&self, outcome: ReportOutcome, reports: usize) {
        self.reporter.metrics.count(self.destination, outcome, reports);
    }

    /// Records that the destination can be reached.
    pub fn connected(&self) {
        if self.set_link(Link::Connected) {
            self.reporter.metrics.link(self.destination, LinkOutcome::Established);
        }
    }

    /// Publishes whether the destination can be reached. Returns whether that is new.
    fn set_link(&self, link: Link) -> bool {
        self.reporter.status.send_if_modified(|status| {
            let before = status.links.insert(self.destination, link);
            before.as_ref() != status.links.get(&self.destination)
        })
    }

    /// Records that reports cannot be delivered for so long.
    pub fn waits(&mut self, reports: &str, error: String, pause: Duration) {
        if self.logged.try_use(Instant::now()) {
            tracing::warn!(error, wait = ?pause, "{reports} are not delivered; they are kept");
        }
        self.reporter.metrics.link(self.destination, LinkOutcome::Failed);
        let until = Timestamp::now() + pause;
        self.set_link(Link::Waiting { error, until });
    }
}

/// Waits until then, or for ever.
pub(super) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tokio::sync::oneshot;

    use super::*;
    use crate::report::log::Bounds;

    #[tokio::test]
    async fn a_hanging_disk_does_not_hold_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let (log, _) = KillLog::open(directory.path(), Bounds::default(), Destination::Grpc.into());
        let metrics = ReportMetrics::register(&mut Registry::default(), log.totals());
        let reporter = Reporter::start(log, &metrics, &CancellationToken::new());
        let (hangs, disk_hangs) = oneshot::channel();
        let (goes_on, disk_goes_on) = std::sync::mpsc::channel::<()>();
        let shared = reporter.clone();
        let work = move |_: &mut KillLog| {
            hangs.send(()).unwrap();
            disk_goes_on.recv()
        };
        let hanging = tokio::spawn(async move { shared.call(work).await });
        disk_hangs.await.unwrap();
        reporter.finish(Duration::from_millis(10)).await;
        assert!(!hanging.is_finished());
        drop(goes_on);
        hanging.await.unwrap().unwrap_err();
    }
}
