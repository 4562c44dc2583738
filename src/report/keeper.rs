//! The owner of the spool: commits, acknowledgements and questions in; answers out.
//!
//! One task. The spool's work blocks, so it is done on a thread for what blocks, as much of it at once as is waiting. The
//! disk is waited for after the first new report and then at most every [`SYNC_EVERY`]: a burst of kills costs one or two
//! waits, and what a power cut can take is what was stored since. A disk that refuses is tried again every [`RETRY_EVERY`].

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::destination::Destination;
use super::spool::{Commit, Committed, Owed, Spool};
use super::status::SpoolStatus;
use crate::observe::metrics::{ReportMetrics, ReportOutcome};

/// The shortest time between two waits for the disk.
const SYNC_EVERY: Duration = Duration::from_millis(500);
/// The time between two attempts to write what the disk did not take.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Commands that may wait for the keeper; who sends more waits.
const COMMANDS: usize = 1024;
/// Commands done at once.
const BATCH: usize = 512;

/// What the keeper is told.
#[derive(Debug)]
pub(super) enum Command {
    /// Store this.
    Commit(Commit, oneshot::Sender<Committed>),
    /// Say what is next for a destination.
    Take {
        /// Whose.
        destination: Destination,
        /// After which number.
        after: u64,
        /// How many at most.
        most: usize,
        /// To whom to say it.
        reply: oneshot::Sender<Vec<Owed>>,
    },
    /// A destination has these.
    Settle {
        /// Which.
        destination: Destination,
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// Make everything safe and end.
    Finish(oneshot::Sender<()>),
}

/// How to reach the keeper.
#[derive(Debug, Clone)]
pub(super) struct KeeperLink {
    /// Commands to it.
    pub(super) commands: mpsc::Sender<Command>,
    /// Changes whenever there are new reports.
    pub(super) news: watch::Receiver<u64>,
    /// How the spool fares.
    pub(super) status: watch::Receiver<SpoolStatus>,
}

/// The spool with what belongs to it.
#[derive(Debug)]
struct Keeper {
    spool: Spool,
    metrics: ReportMetrics,
    news: watch::Sender<u64>,
    status: watch::Sender<SpoolStatus>,
    /// New reports were stored since the disk was last waited for.
    unsynced: bool,
    last_sync: Option<Instant>,
    last_retry: Instant,
    finished: Vec<oneshot::Sender<()>>,
}

/// Starts the keeper; it ends when it is told to finish, or nobody is left to tell it anything.
pub(super) fn start(spool: Spool, metrics: ReportMetrics) -> (KeeperLink, impl Future<Output = ()>) {
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let (news, heard) = watch::channel(0);
    let first = SpoolStatus::of(&spool);
    metrics.spool(&first);
    let (status, seen) = watch::channel(first);
    let link = KeeperLink {
        commands,
        news: heard,
        status: seen,
    };
    let keeper = Keeper {
        spool,
        metrics,
        news,
        status,
        unsynced: false,
        last_sync: None,
        last_retry: Instant::now(),
        finished: Vec::new(),
    };
    (link, keeper.run(inbox))
}

impl Keeper {
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
            self = match tokio::task::spawn_blocking(move || self.work(batch)).await {
                Ok(keeper) => keeper,
                Err(error) => {
                    tracing::error!(%error, "the spool of OOM reports ended early");
                    return;
                }
            };
            if !self.finished.is_empty() {
                for finished in self.finished {
                    // Who asked may have gone meanwhile.
                    finished.send(()).ok();
                }
                return;
            }
        }
    }

    /// Does everything that is asked, and what is due. Blocks.
    fn work(mut self, batch: Vec<Command>) -> Self {
        let (mut commits, mut committers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for command in batch {
            match command {
                Command::Commit(commit, reply) => {
                    commits.push(commit);
                    committers.push(reply);
                }
                other => others.push(other),
            }
        }
        self.commit(commits, committers);
        for command in others {
            self.obey(command);
        }
        self.maintain();
        self.publish();
        self
    }

    fn publish(&self) {
        let status = SpoolStatus::of(&self.spool);
        self.metrics.spool(&status);
        self.status.send_replace(status);
    }

    fn commit(&mut self, commits: Vec<Commit>, committers: Vec<oneshot::Sender<Committed>>) {
        if commits.is_empty() {
            return;
        }
        let done = self.spool.commit(commits);
        let stored = done.iter().any(|committed| committed.stored > 0);
        // Who has the answer sees it in the status, too.
        self.publish();
        for (reply, committed) in committers.into_iter().zip(done) {
            // Who does not wait for the answer does not need it.
            reply.send(committed).ok();
        }
        if stored {
            self.unsynced = true;
            self.news.send_modify(|news| *news += 1);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Take {
                destination,
                after,
                most,
                reply,
            } => {
                // Who has gone asks again when it comes back.
                reply.send(self.spool.take(destination, after, most)).ok();
            }
            Command::Settle { destination, numbers } => {
                let settled = self.spool.settle(destination, &numbers);
                self.metrics.told(destination, ReportOutcome::Acknowledged, settled);
            }
            Command::Finish(reply) => self.finished.push(reply),
            Command::Commit(commit, reply) => self.commit(vec![commit], vec![reply]),
        }
    }

    fn maintain(&mut self) {
        let now = Instant::now();
        let finishing = !self.finished.is_empty();
        if self.spool.is_in_memory_only() && (finishing || now >= self.last_retry + RETRY_EVERY) {
            self.last_retry = now;
            if self.spool.restore() {
                tracing::info!("OOM reports are kept on disk again");
            }
        }
        if self.sync_due().is_some_and(|due| finishing || now >= due) {
            self.spool.sync();
            self.unsynced = false;
            self.last_sync = Some(Instant::now());
        }
    }

    /// When the disk is to be waited for next, if it is.
    fn sync_due(&self) -> Option<Instant> {
        let waiting = self.unsynced && self.spool.is_dirty();
        waiting.then(|| self.last_sync.map_or_else(Instant::now, |last| last + SYNC_EVERY))
    }

    /// When there is something to do even if nobody asks.
    fn deadline(&self) -> Option<Instant> {
        let retry = self.spool.is_in_memory_only().then(|| self.last_retry + RETRY_EVERY);
        [self.sync_due(), retry].into_iter().flatten().min()
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
