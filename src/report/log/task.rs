//! The task that owns the log. In comes work: commits, acknowledgements, questions; out go answers and the log's status.
//!
//! The log blocks, so the task does all work that waits at once on a thread for blocking calls. It waits for the disk after
//! the first new report and then at most every [`SYNC_EVERY`]: a burst of kills costs one or two waits, and a power cut can
//! take the reports since the last one. It tries a disk that refuses again every [`RETRY_EVERY`].

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::{KillLog, LogStatus};
use crate::report::metrics::ReportMetrics;
use crate::report::reporter::Ended;

/// The shortest time between two waits for the disk.
const SYNC_EVERY: Duration = Duration::from_millis(500);
/// The time between two attempts to write to a disk that refuses.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Pieces of work that may wait; senders of more wait themselves.
const WAITING: usize = 1024;
const BATCH: usize = 512;

type Work = Box<dyn FnOnce(&mut LogTask) + Send>;
/// Gives a caller the result of its work.
type Answer = Box<dyn FnOnce() + Send>;

/// The way to the task.
#[derive(Debug, Clone)]
pub(in crate::report) struct LogLink {
    work: mpsc::Sender<Work>,
    pub(in crate::report) status: watch::Receiver<LogStatus>,
}

pub(in crate::report) struct LogTask {
    pub(in crate::report) log: KillLog,
    metrics: ReportMetrics,
    status: watch::Sender<LogStatus>,
    /// The answers to callers, which go out once the status shows their work.
    answers: Vec<Answer>,
    next_sync: Instant,
    next_retry: Instant,
    /// Whether the task ends once the disk has everything.
    finishing: bool,
}

impl LogLink {
    /// Has the task do this work, and waits for its result. Cancelling the call does not take the work back.
    pub(in crate::report) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut LogTask) -> T + Send + 'static,
    ) -> Result<T, Ended> {
        let (reply, answer) = oneshot::channel();
        let work = move |task: &mut LogTask| {
            let result = work(task);
            // An error: the caller has stopped waiting for the answer.
            task.answers.push(Box::new(move || drop(reply.send(result))));
        };
        self.send(work).await?;
        answer.await.map_err(|_| Ended)
    }

    /// Has the task do this work, and does not wait for it.
    pub(in crate::report) async fn send(&self, work: impl FnOnce(&mut LogTask) + Send + 'static) -> Result<(), Ended> {
        self.work.send(Box::new(work)).await.map_err(|_| Ended)
    }

    /// Ends the task, and waits until the disk has everything.
    pub(in crate::report) async fn finish(&self) {
        // An error: the task has ended already.
        self.send(|task| task.finishing = true).await.unwrap_or(());
        self.work.closed().await;
    }
}

/// Starts the task. It ends after [`LogLink::finish`], or when every link to it is gone.
pub(in crate::report) fn start(log: KillLog, metrics: ReportMetrics) -> LogLink {
    let (work, inbox) = mpsc::channel(WAITING);
    let (status, status_seen) = watch::channel(LogStatus::default());
    let task = LogTask {
        log,
        metrics,
        status,
        answers: Vec::new(),
        next_sync: Instant::now(),
        next_retry: Instant::now() + RETRY_EVERY,
        finishing: false,
    };
    task.publish_status();
    tokio::spawn(task.run(inbox));
    LogLink {
        work,
        status: status_seen,
    }
}

impl LogTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<Work>) {
        while !self.finishing {
            let mut batch = Vec::new();
            let next = [self.sync_due(), self.retry_due()].into_iter().flatten().min();
            // Cancel-safe: work that was not received is still in the channel.
            tokio::select! {
                received = inbox.recv_many(&mut batch, BATCH) => self.finishing = received == 0,
                () = until(next) => {}
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
        batch.into_iter().for_each(|work| work(&mut self));
        // To count the status takes a while: once for all of the work.
        self.publish_status();
        self.answers.drain(..).for_each(|answer| answer());
        if self.is_time(self.retry_due()) {
            self.next_retry = Instant::now() + RETRY_EVERY;
            if self.log.restore() {
                tracing::info!("OOM reports are kept on disk again");
            }
            self.publish_status();
        }
        if self.is_time(self.sync_due()) {
            self.log.sync();
            self.next_sync = Instant::now() + SYNC_EVERY;
            self.publish_status();
        }
        self
    }

    fn publish_status(&self) {
        let status = self.log.status();
        self.metrics.spool(&status);
        self.status.send_replace(status);
    }

    fn retry_due(&self) -> Option<Instant> {
        self.log.is_in_memory_only().then_some(self.next_retry)
    }

    fn sync_due(&self) -> Option<Instant> {
        self.log.is_dirty().then_some(self.next_sync)
    }

    fn is_time(&self, due: Option<Instant>) -> bool {
        due.is_some_and(|due| self.finishing || Instant::now() >= due)
    }
}

/// Waits until then, or for ever.
pub(in crate::report) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
