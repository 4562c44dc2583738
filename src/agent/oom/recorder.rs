//! Stores kills in the log, then publishes them.
//!
//! A kill is published when the log has it, or when the disk takes longer than [`PATIENCE`]: a disk that hangs delays what
//! operators see by a second at most. The log itself bounds what it keeps in memory while the disk refuses.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::published::Published;
use crate::oom::OomReport;
use crate::oom::watch::{Batch, NodePods};
use crate::report::Ended;
use crate::report::log::Committed;

/// How long a disk may take before kills are published all the same.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two searches for metric series of pods that are gone.
const TIDY: Duration = Duration::from_secs(60);
/// Batches taken at once: one commit stores them all.
const AT_ONCE: usize = 64;
/// Kills that wait for a disk that hangs at most. The oldest go first; they are published already.
const MOST_WAITING: usize = 4096;

/// Commits kills with the checkpoint that counts them as told.
pub(super) type Commit = BoxFuture<'static, Result<Committed, Ended>>;

/// Takes batches from the watcher. `S` begins a commit.
pub(super) struct Recorder<S> {
    store: S,
    patience: Duration,
    published: Published,
    residents: watch::Receiver<Arc<NodePods>>,
    commit: Option<Commit>,
    /// When the commit under way takes too long; `None` once it did.
    late_at: Option<Instant>,
    /// What the commit under way stores, until it is published.
    unpublished: Vec<Arc<OomReport>>,
    /// What the next commit stores.
    next: Vec<Arc<OomReport>>,
    next_is_published: bool,
    checkpoint: Option<Vec<u8>>,
    problem: watch::Sender<Vec<String>>,
}

impl<S: Fn(Vec<OomReport>, Vec<u8>) -> Commit> Recorder<S> {
    pub(super) fn new(
        store: S,
        patience: Duration,
        published: Published,
        residents: watch::Receiver<Arc<NodePods>>,
    ) -> (Self, watch::Receiver<Vec<String>>) {
        let (problem, problems) = watch::channel(Vec::new());
        let recorder = Self {
            store,
            patience,
            published,
            residents,
            commit: None,
            late_at: None,
            unpublished: Vec::new(),
            next: Vec::new(),
            next_is_published: false,
            checkpoint: None,
            problem,
        };
        (recorder, problems)
    }

    /// Works until the watcher has ended and everything is stored, or the disk takes too long.
    pub(super) async fn run(mut self, mut batches: mpsc::Receiver<Batch>) {
        let mut tidy_at = Instant::now() + TIDY;
        let mut taken = Vec::new();
        let mut open = true;
        while open || (self.commit.is_some() && !self.is_late()) {
            let wake = self.late_at.map_or(tidy_at, |late| late.min(tidy_at));
            let commit = OptionFuture::from(self.commit.as_mut());
            // Cancel-safe: `recv_many` takes nothing unless it returns, and the commit stays where it is.
            tokio::select! {
                // The commit first: a late one that is done at last must be noticed before the end of the batches is.
                biased;
                Some(stored) = commit => self.stored(stored),
                count = batches.recv_many(&mut taken, AT_ONCE), if open => open = count > 0,
                () = sleep_until(wake) => {}
            }
            for Batch { reports, checkpoint } in taken.drain(..) {
                self.add_batch(reports, checkpoint);
            }
            let now = Instant::now();
            if self.late_at.is_some_and(|late| late <= now) {
                self.late_at = None;
                let waiting = self.unpublished.len() + self.next.len();
                self.set_problem(Some(format!(
                    "{waiting} reports of kills are not kept: the disk took longer than {:?}; check that stateDir is \
                     writable and has free space",
                    self.patience
                )));
                self.unpublished.extend(self.next.iter().cloned());
                self.next_is_published = true;
                self.publish();
            }
            self.begin();
            if tidy_at <= now {
                tidy_at = now + TIDY;
                self.published.tidy(&self.residents.borrow().pods, now.into_std());
            }
        }
        if self.commit.is_some() {
            tracing::error!("not all kills are kept: they are told again by the next agent");
        }
    }

    fn is_late(&self) -> bool {
        self.commit.is_some() && self.late_at.is_none()
    }

    fn add_batch(&mut self, reports: Vec<OomReport>, checkpoint: Vec<u8>) {
        let reports: Vec<_> = reports.into_iter().map(Arc::new).collect();
        self.next_is_published = self.is_late();
        if self.next_is_published {
            self.unpublished.extend(reports.iter().cloned());
            self.publish();
        }
        self.next.extend(reports);
        self.next.drain(..self.next.len().saturating_sub(MOST_WAITING));
        self.checkpoint = Some(checkpoint);
    }

    /// Begins the next commit, if there is something to store and no commit is under way.
    fn begin(&mut self) {
        if self.commit.is_none()
            && let Some(checkpoint) = self.checkpoint.take()
        {
            let reports = self.next.iter().map(|report| OomReport::clone(report)).collect();
            self.commit = Some((self.store)(reports, checkpoint));
            self.late_at = Some(Instant::now() + self.patience);
            let next = self.next.drain(..);
            if !self.next_is_published {
                self.unpublished.extend(next);
            }
        }
    }

    fn stored(&mut self, stored: Result<Committed, Ended>) {
        self.commit = None;
        self.late_at = None;
        if let Err(error) = stored {
            tracing::error!(%error, "kills are not kept");
        }
        self.publish();
        self.set_problem(None);
    }

    fn publish(&mut self) {
        let now = Instant::now().into_std();
        for report in self.unpublished.drain(..) {
            self.published.publish(report, now);
        }
    }

    fn set_problem(&self, problem: Option<String>) {
        if let Some(problem) = &problem {
            tracing::error!("{problem}");
        }
        self.problem.send_if_modified(|shown| {
            let problems: Vec<String> = problem.into_iter().collect();
            let changed = *shown != problems;
            *shown = problems;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::future::FutureExt;
    use tokio::sync::{Notify, broadcast};

    use super::super::published::tests::{ids, report};
    use super::*;
    use crate::agent::oom::metrics::KillMetrics;
    use crate::observe::audit::Audit;
    use crate::observe::metrics::registry;

    /// A log on a disk that may hang.
    #[derive(Clone, Default)]
    struct Disk {
        stored: Arc<Mutex<Vec<String>>>,
        hangs: Arc<Mutex<bool>>,
        goes_on: Arc<Notify>,
    }

    impl Disk {
        fn store(&self, reports: &[OomReport], checkpoint: Vec<u8>) -> Commit {
            let disk = self.clone();
            let ids: Vec<String> = reports.iter().map(|report| report.id.clone()).collect();
            let checkpoint = String::from_utf8(checkpoint).unwrap();
            async move {
                while *disk.hangs.lock().unwrap() {
                    disk.goes_on.notified().await;
                }
                disk.stored.lock().unwrap().extend(ids.into_iter().chain([checkpoint]));
                Ok(Committed::default())
            }
            .boxed()
        }
    }

    #[tokio::test]
    async fn a_kill_is_stored_before_it_is_published_and_published_even_if_the_disk_hangs() {
        let disk = Disk::default();
        let (changes, mut told) = broadcast::channel(16);
        let (published, kills) = Published::new(
            KillMetrics::register(&mut registry()),
            changes,
            Audit::default(),
            Vec::new(),
        );
        let (_residents, residents) = watch::channel(Arc::new(NodePods {
            tree: None,
            pods: Vec::new(),
        }));
        let store = {
            let disk = disk.clone();
            move |reports: Vec<OomReport>, checkpoint| disk.store(&reports, checkpoint)
        };
        let (recorder, problems) = Recorder::new(store, Duration::from_millis(20), published, residents);
        let (batches, taken) = mpsc::channel(1);
        let recorder = tokio::spawn(recorder.run(taken));
        let mut next = async |id: &str| {
            let batch = Batch {
                reports: vec![report(id)],
                checkpoint: format!("after {id}").into_bytes(),
            };
            batches.send(batch).await.unwrap();
            told.recv().await.unwrap().kill.as_ref().unwrap().id.clone()
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
}
