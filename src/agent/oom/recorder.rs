//! Stores kills in the log, then publishes them.
//!
//! The recorder publishes a kill when the log has it, or when the disk takes longer than [`PATIENCE`]: a disk that hangs delays
//! what operators see by a second at most. The log itself bounds what it keeps in memory while the disk refuses.

use std::mem::take;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep};

use super::BATCHES;
use super::published::Published;
use crate::oom::watch::{Batch, NodePods};
use crate::report::Report;
use crate::report::log::aggregate;

/// How long a disk may take before the recorder publishes kills that are not stored.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two searches for metric series of pods that are gone.
const TIDY: Duration = Duration::from_secs(60);
/// At most so many reports wait for a disk that hangs. Beyond that the oldest kills, which are published, become counts.
const MOST_WAITING: usize = 4096;

/// Commits kills with the checkpoint after them.
pub(super) type Commit = BoxFuture<'static, ()>;

/// Stores and publishes the batches of the watcher. `S` begins a commit.
pub(super) struct Recorder<S> {
    pub(super) store: S,
    pub(super) patience: Duration,
    pub(super) published: Published,
    pub(super) node_pods: watch::Receiver<Arc<NodePods>>,
    pub(super) problem: watch::Sender<Vec<String>>,
}

#[derive(Default)]
struct Waiting {
    reports: Vec<Report>,
    /// How many of the reports, from the first on, are published already.
    published: usize,
    checkpoint: Option<Vec<u8>>,
}

impl Waiting {
    fn add(&mut self, batch: Batch) {
        self.reports.extend(batch.reports.into_iter().map(Report::from));
        self.checkpoint = Some(batch.checkpoint);
    }
}

impl<S: Fn(Vec<Report>, Vec<u8>) -> Commit> Recorder<S> {
    /// Runs until the watcher has ended and everything is stored, or the disk takes too long.
    pub(super) async fn run(mut self, mut batches: mpsc::Receiver<Batch>) {
        let mut tidy = interval(TIDY);
        let (mut waiting, mut taken) = (Waiting::default(), Vec::new());
        loop {
            // Cancel-safe: both branches take a value only when they return.
            tokio::select! {
                _ = tidy.tick() => {
                    let now = Instant::now().into_std();
                    self.published.metrics.end_old_series(&self.node_pods.borrow().pods, now);
                }
                count = batches.recv_many(&mut taken, BATCHES) => if count == 0 { return },
            }
            taken.drain(..).for_each(|batch| waiting.add(batch));
            while let Some(checkpoint) = waiting.checkpoint.take() {
                if !self.store(checkpoint, &mut waiting, &mut batches).await {
                    return tracing::error!("not all kills are stored: the next agent reports the others again");
                }
            }
        }
    }

    /// Stores and publishes the waiting kills. While the disk hangs, publishes the kills that come meanwhile. Returns
    /// false if the watcher has ended before the disk had the waiting kills.
    async fn store(&mut self, checkpoint: Vec<u8>, waiting: &mut Waiting, batches: &mut mpsc::Receiver<Batch>) -> bool {
        let Waiting { reports, published, .. } = take(waiting);
        tracing::debug!(reports = reports.len(), published, "the kill log stores a batch");
        let mut commit = (self.store)(reports.clone(), checkpoint);
        let mut patience = pin!(sleep(self.patience));
        let mut hangs = false;
        loop {
            // Cancel-safe: `recv` takes nothing unless it returns, and the commit stays where it is.
            tokio::select! {
                // The commit first: the recorder must notice that it is done before the end of the batches.
                biased;
                () = &mut commit => break,
                () = &mut patience, if !hangs => {
                    hangs = true;
                    self.set_problem(Some(format!(
                        "{} reports of kills are not stored: the disk took longer than {:?}; check that stateDir is writable and \
                         has free space",
                        reports.len(),
                        self.patience
                    )));
                    self.publish(&reports[published..]);
                }
                batch = batches.recv(), if hangs => {
                    let Some(batch) = batch else { return false };
                    waiting.add(batch);
                    self.publish(&waiting.reports[waiting.published..]);
                    if waiting.reports.len() > MOST_WAITING {
                        tracing::warn!("too many kills wait for the disk: the oldest are only counted from now on");
                        waiting.reports = aggregate(take(&mut waiting.reports), MOST_WAITING);
                    }
                    waiting.published = waiting.reports.len();
                }
            }
        }
        tracing::debug!(hangs, "the kill log has stored the batch");
        if !hangs {
            self.publish(&reports[published..]);
        }
        self.set_problem(None);
        true
    }

    fn publish(&mut self, reports: &[Report]) {
        let now = Instant::now().into_std();
        let kills = reports.iter().filter_map(Report::kill).cloned();
        kills.for_each(|kill| self.published.publish(kill, now));
    }

    fn set_problem(&self, problem: Option<String>) {
        if let Some(problem) = &problem {
            tracing::error!("{problem}");
        }
        self.problem.send_replace(problem.into_iter().collect());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::future::FutureExt;
    use tokio::sync::Notify;

    use super::super::published::tests::{ids, report};
    use super::*;
    use crate::agent::oom::published::{KillMetrics, ToController};
    use crate::control::ChangeFeed;
    use crate::observe::audit::Audit;
    use crate::observe::metrics::registry;

    /// A log on a disk that may hang.
    #[derive(Clone, Default)]
    struct Disk {
        stored: Arc<Mutex<Vec<String>>>,
        /// How many kills it has.
        kills: Arc<Mutex<u64>>,
        hangs: Arc<Mutex<bool>>,
        goes_on: Arc<Notify>,
    }

    impl Disk {
        fn store(&self, reports: &[Report], checkpoint: Vec<u8>) -> Commit {
            let disk = self.clone();
            let ids: Vec<String> = reports.iter().map(|report| report.id().into_owned()).collect();
            let kills: u64 = reports.iter().map(Report::count).sum();
            let checkpoint = String::from_utf8(checkpoint).unwrap();
            async move {
                while *disk.hangs.lock().unwrap() {
                    disk.goes_on.notified().await;
                }
                disk.stored.lock().unwrap().extend(ids.into_iter().chain([checkpoint]));
                *disk.kills.lock().unwrap() += kills;
            }
            .boxed()
        }
    }

    /// A recorder that stores on this disk, for a node without pods.
    fn recorder(disk: Disk, changes: ChangeFeed) -> Recorder<impl Fn(Vec<Report>, Vec<u8>) -> Commit> {
        Recorder {
            store: move |reports: Vec<Report>, checkpoint| disk.store(&reports, checkpoint),
            patience: Duration::from_millis(20),
            published: Published {
                kills: watch::Sender::default(),
                changes,
                controller: ToController::new(mpsc::channel(1).0),
                metrics: KillMetrics::register(&mut registry()),
                audit: Audit::default(),
            },
            node_pods: watch::channel(Arc::new(NodePods::default())).1,
            problem: watch::Sender::default(),
        }
    }

    fn batch(ids: impl IntoIterator<Item = String>, checkpoint: &str) -> Batch {
        Batch {
            reports: ids.into_iter().map(|id| report(&id)).collect(),
            checkpoint: checkpoint.as_bytes().to_vec(),
        }
    }

    #[tokio::test]
    async fn a_kill_is_stored_before_it_is_published() {
        let disk = Disk::default();
        let changes = ChangeFeed::default();
        let mut told = changes.watch();
        let recorder = recorder(disk.clone(), changes);
        let kills = recorder.published.kills.subscribe();
        let problems = recorder.problem.subscribe();
        let (batches, taken) = mpsc::channel(1);
        let recorder = tokio::spawn(recorder.run(taken));
        let mut next = async |id: &str| {
            let batch = batch([id.to_owned()], &format!("after {id}"));
            batches.send(batch).await.unwrap();
            told.next().await.unwrap().0.kill.unwrap().id
        };
        assert_eq!(next("a").await, "a");
        assert_eq!(*disk.stored.lock().unwrap(), ["a", "after a"]);

        *disk.hangs.lock().unwrap() = true;
        assert_eq!(next("b").await, "b");
        assert!(problems.borrow()[0].contains("took longer") && problems.borrow()[0].contains("stateDir"));
        assert_eq!(next("c").await, "c");
        assert_eq!(next("d").await, "d");
        *disk.hangs.lock().unwrap() = false;
        disk.goes_on.notify_waiters();
        drop(batches);
        recorder.await.unwrap();
        assert!(problems.borrow().is_empty());
        let stored = disk.stored.lock().unwrap();
        assert_eq!(stored[2..], ["b", "after b", "c", "d", "after d"]);
        assert_eq!(ids(&kills), ["a", "b", "c", "d"]);
    }

    #[tokio::test]
    async fn a_flood_amid_a_hanging_disk_loses_detail() {
        let disk = Disk::default();
        *disk.hangs.lock().unwrap() = true;
        let recorder = recorder(disk.clone(), ChangeFeed::default());
        let mut problems = recorder.problem.subscribe();
        let (batches, taken) = mpsc::channel(1);
        let recorder = tokio::spawn(recorder.run(taken));
        batches.send(batch(["first".to_owned()], "1")).await.unwrap();
        problems.changed().await.unwrap();
        let flood = 0..MOST_WAITING + 1000;
        batches
            .send(batch(flood.clone().map(|number| number.to_string()), "2"))
            .await
            .unwrap();
        batches.send(batch(["last".to_owned()], "3")).await.unwrap();
        // The recorder has taken the flood when the channel has room again.
        drop(batches.reserve().await.unwrap());
        *disk.hangs.lock().unwrap() = false;
        disk.goes_on.notify_waiters();
        drop(batches);
        recorder.await.unwrap();
        assert_eq!(*disk.kills.lock().unwrap(), flood.len() as u64 + 2);
        let stored = disk.stored.lock().unwrap();
        assert!(stored.len() <= MOST_WAITING, "{} entries", stored.len());
        let youngest = (flood.end - 1).to_string();
        assert_eq!(stored[stored.len() - 3..], [youngest.as_str(), "last", "3"]);
    }
}
