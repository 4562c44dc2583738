//! The task that owns the log: what commits, acknowledges and asks comes in as work; answers go out.
//!
//! The log blocks, so it works on a thread for blocking calls, on as many pieces of work at once as wait. The disk is waited
//! for after the first new report and then at most every [`SYNC_EVERY`]: a burst of kills costs one or two waits, and a power
//! cut can take what was stored since. A disk that refuses is tried again every [`RETRY_EVERY`].

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::{Commit, Committed, KillLog, LogStatus};
use crate::report::destination::Destination;
use crate::report::metrics::{ReportMetrics, ReportOutcome};
use crate::report::reporter::Ended;

/// The shortest time between two waits for the disk.
const SYNC_EVERY: Duration = Duration::from_millis(500);
/// The time between two attempts to write what the disk did not take.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Pieces of work that may wait; senders of more wait themselves.
const WAITING: usize = 1024;
const BATCH: usize = 512;

type Work = Box<dyn FnOnce(&mut LogTask) -> Answer + Send>;
/// Gives a caller what its work returned.
type Answer = Box<dyn FnOnce()>;

/// The way to the task.
#[derive(Debug, Clone)]
pub(in crate::report) struct LogLink {
    work: mpsc::Sender<Work>,
    pub(in crate::report) status: watch::Receiver<LogStatus>,
}

#[derive(Debug)]
pub(in crate::report) struct LogTask {
    pub(in crate::report) log: KillLog,
    metrics: ReportMetrics,
    status: watch::Sender<LogStatus>,
    /// New reports were stored since the last wait for the disk.
    unsynced: bool,
    last_sync: Option<Instant>,
    last_retry: Instant,
    /// Whether the task ends once the disk has everything.
    pub(in crate::report) finishing: bool,
}

impl LogLink {
    /// Has the task do this, and waits for what it returns. Cancelling it does not take the work back.
    pub(in crate::report) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut LogTask) -> T + Send + 'static,
    ) -> Result<T, Ended> {
        let (reply, answer) = oneshot::channel();
        let work = move |task: &mut LogTask| -> Answer {
            let result = work(task);
            // A caller that does not wait for the answer does not need it.
            Box::new(move || drop(reply.send(result)))
        };
        self.work.send(Box::new(work)).await.map_err(|_| Ended)?;
        answer.await.map_err(|_| Ended)
    }

    /// Has the task do this, and does not wait until it is done.
    pub(in crate::report) async fn send(&self, work: impl FnOnce(&mut LogTask) + Send + 'static) -> Result<(), Ended> {
        let work = move |task: &mut LogTask| -> Answer {
            work(task);
            Box::new(|| ())
        };
        self.work.send(Box::new(work)).await.map_err(|_| Ended)
    }
}

/// The task; it ends once it is [`LogTask::finishing`], or when every link to it is gone.
pub(in crate::report) fn start(log: KillLog, metrics: ReportMetrics) -> (LogLink, impl Future<Output = ()>) {
    let (work, inbox) = mpsc::channel(WAITING);
    let (status, status_seen) = watch::channel(log.status());
    let link = LogLink {
        work,
        status: status_seen,
    };
    let task = LogTask {
        log,
        metrics,
        status,
        unsynced: false,
        last_sync: None,
        last_retry: Instant::now(),
        finishing: false,
    };
    task.publish_status();
    (link, task.run(inbox))
}

impl LogTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<Work>) {
        while !self.finishing {
            let mut batch = Vec::new();
            let deadline = self.deadline();
            // Cancel-safe: work that was not received is still in the channel.
            tokio::select! {
                received = inbox.recv_many(&mut batch, BATCH) => self.finishing = received == 0,
                () = until(deadline) => {}
            }
            self = match tokio::task::spawn_blocking(move || self.execute(batch)).await {
                Ok(task) => task,
                Err(error) => {
                    tracing::error!(%error, "the log of OOM kills ended early");
                    return;
                }
            };
        }
    }

    /// Does this work and whatever else is due. Blocks.
    fn execute(mut self, batch: Vec<Work>) -> Self {
        let answers: Vec<Answer> = batch.into_iter().map(|work| work(&mut self)).collect();
        // A caller that has the answer sees it in the status, too. The status is counted anew: once for all of them.
        self.publish_status();
        answers.into_iter().for_each(|answer| answer());
        let now = Instant::now();
        if self.log.is_in_memory_only() && (self.finishing || now >= self.last_retry + RETRY_EVERY) {
            self.last_retry = now;
            if self.log.restore() {
                tracing::info!("OOM reports are kept on disk again");
            }
            self.publish_status();
        }
        if self.sync_due().is_some_and(|due| self.finishing || now >= due) {
            self.log.sync();
            self.unsynced = false;
            self.last_sync = Some(Instant::now());
            self.publish_status();
        }
        self
    }

    /// See [`KillLog::commit`].
    pub(in crate::report) fn commit(&mut self, commit: Commit) -> Committed {
        let committed = self.log.commit(commit);
        self.unsynced |= committed.stored > 0;
        committed
    }

    /// See [`KillLog::acknowledge`].
    pub(in crate::report) fn acknowledge(&mut self, destination: Destination, numbers: &[u64]) {
        let count = self.log.acknowledge(destination, numbers);
        self.metrics.told(destination, ReportOutcome::Acknowledged, count);
    }

    fn publish_status(&self) {
        let status = self.log.status();
        self.metrics.spool(&status);
        self.status.send_replace(status);
    }

    fn sync_due(&self) -> Option<Instant> {
        let waiting = self.unsynced && self.log.is_dirty();
        waiting.then(|| self.last_sync.map_or_else(Instant::now, |last| last + SYNC_EVERY))
    }

    /// When there is something to do without a command.
    fn deadline(&self) -> Option<Instant> {
        let retry = self.log.is_in_memory_only().then(|| self.last_retry + RETRY_EVERY);
        [self.sync_due(), retry].into_iter().flatten().min()
    }
}

/// Waits until then, or for ever.
pub(in crate::report) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
