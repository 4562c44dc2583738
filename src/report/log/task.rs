//! The task that owns the log: commits, acknowledgements and requests in; answers out.
//!
//! The log blocks, so it works on a thread for blocking calls, on as many commands at once as wait. The disk is waited for
//! after the first new report and then at most every [`SYNC_EVERY`]: a burst of kills costs one or two waits, and a power
//! cut can take what was stored since. A disk that refuses is tried again every [`RETRY_EVERY`].

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::{Commit, Committed, KillLog, Pending};
use crate::report::destination::Destination;
use crate::report::metrics::{ReportMetrics, ReportOutcome};
use crate::report::status::LogStatus;

/// The shortest time between two waits for the disk.
const SYNC_EVERY: Duration = Duration::from_millis(500);
/// The time between two attempts to write what the disk did not take.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Commands that may wait; senders of more wait themselves.
const COMMANDS: usize = 1024;
const BATCH: usize = 512;

#[derive(Debug)]
pub(in crate::report) enum Command {
    Commit(Commit, oneshot::Sender<Committed>),
    /// Asks for the next reports for a destination.
    Next {
        destination: Destination,
        after: u64,
        most: usize,
        reply: oneshot::Sender<Vec<Pending>>,
    },
    Acknowledge {
        destination: Destination,
        numbers: Vec<u64>,
    },
    /// Waits for the disk and ends the task.
    Finish(oneshot::Sender<()>),
}

/// The way to the task.
#[derive(Debug, Clone)]
pub(in crate::report) struct LogLink {
    pub(in crate::report) commands: mpsc::Sender<Command>,
    /// Changes whenever there are new reports.
    pub(in crate::report) stored: watch::Receiver<u64>,
    pub(in crate::report) status: watch::Receiver<LogStatus>,
}

#[derive(Debug)]
struct LogTask {
    log: KillLog,
    metrics: ReportMetrics,
    stored: watch::Sender<u64>,
    status: watch::Sender<LogStatus>,
    /// New reports were stored since the last wait for the disk.
    unsynced: bool,
    last_sync: Option<Instant>,
    last_retry: Instant,
    finished: Vec<oneshot::Sender<()>>,
}

/// The task; it ends after [`Command::Finish`], or when every link to it is gone.
pub(in crate::report) fn start(log: KillLog, metrics: ReportMetrics) -> (LogLink, impl Future<Output = ()>) {
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let (stored, stored_seen) = watch::channel(0);
    let (status, status_seen) = watch::channel(LogStatus::of(&log));
    let link = LogLink {
        commands,
        stored: stored_seen,
        status: status_seen,
    };
    let task = LogTask {
        log,
        metrics,
        stored,
        status,
        unsynced: false,
        last_sync: None,
        last_retry: Instant::now(),
        finished: Vec::new(),
    };
    task.publish_status();
    (link, task.run(inbox))
}

impl LogTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        loop {
            let mut batch = Vec::new();
            let deadline = self.deadline();
            // Cancel-safe: a command that was not received is still in the channel.
            tokio::select! {
                received = inbox.recv_many(&mut batch, BATCH) => if received == 0 {
                    batch.push(Command::Finish(oneshot::channel().0));
                },
                () = until(deadline) => {}
            }
            self = match tokio::task::spawn_blocking(move || self.execute(batch)).await {
                Ok(task) => task,
                Err(error) => {
                    tracing::error!(%error, "the log of OOM kills ended early");
                    return;
                }
            };
            if !self.finished.is_empty() {
                for finished in self.finished {
                    // The caller may have gone.
                    finished.send(()).ok();
                }
                return;
            }
        }
    }

    /// Executes commands and whatever else is due. Blocks.
    fn execute(mut self, batch: Vec<Command>) -> Self {
        let (mut commits, mut replies) = (Vec::new(), Vec::new());
        let mut others = Vec::new();
        for command in batch {
            match command {
                Command::Commit(commit, reply) => {
                    commits.push(commit);
                    replies.push(reply);
                }
                other => others.push(other),
            }
        }
        self.commit(commits, replies);
        for command in others {
            match command {
                Command::Next {
                    destination,
                    after,
                    most,
                    reply,
                } => {
                    // A caller that has gone asks again when it comes back.
                    reply.send(self.log.next_for(destination, after, most)).ok();
                }
                Command::Acknowledge { destination, numbers } => {
                    let count = self.log.acknowledge(destination, &numbers);
                    self.metrics.told(destination, ReportOutcome::Acknowledged, count);
                }
                Command::Finish(reply) => self.finished.push(reply),
                Command::Commit(commit, reply) => self.commit(vec![commit], vec![reply]),
            }
        }
        self.maintain();
        self.publish_status();
        self
    }

    fn publish_status(&self) {
        let status = LogStatus::of(&self.log);
        self.metrics.spool(&status);
        self.status.send_replace(status);
    }

    fn commit(&mut self, commits: Vec<Commit>, replies: Vec<oneshot::Sender<Committed>>) {
        if commits.is_empty() {
            return;
        }
        let done = self.log.commit(commits);
        // A caller that has the answer sees it in the status, too.
        self.publish_status();
        if done.iter().any(|committed| committed.stored > 0) {
            self.unsynced = true;
            self.stored.send_modify(|stored| *stored += 1);
        }
        for (reply, committed) in replies.into_iter().zip(done) {
            // A caller that does not wait for the answer does not need it.
            reply.send(committed).ok();
        }
    }

    fn maintain(&mut self) {
        let now = Instant::now();
        let finishing = !self.finished.is_empty();
        if self.log.is_in_memory_only() && (finishing || now >= self.last_retry + RETRY_EVERY) {
            self.last_retry = now;
            if self.log.restore() {
                tracing::info!("OOM reports are kept on disk again");
            }
        }
        if self.sync_due().is_some_and(|due| finishing || now >= due) {
            self.log.sync();
            self.unsynced = false;
            self.last_sync = Some(Instant::now());
        }
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
