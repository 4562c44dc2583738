//! Has reports kept, then tells of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::clerk::Clerk;
use super::published::Published;
use crate::oom::OomReport;
use crate::oom::ledger::{Ledger, LedgerError};
use crate::oom::watch::{Batch, Residents};

/// How long a disk may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Before kills are told all the same.
    pub(super) longest: Duration,
    /// Before what was not kept is tried again.
    pub(super) retry: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            longest: Duration::from_secs(1),
            retry: Duration::from_secs(5),
        }
    }
}

/// Series of pods that are gone are looked for so often.
const TIDY: Duration = Duration::from_secs(60);
/// Batches taken at once: one commit keeps them all.
const AT_ONCE: usize = 64;
/// Reports that wait for a disk at most. The oldest go first; everybody else was told of them.
const MOST_UNKEPT: usize = 4096;

/// Takes batches from the watcher.
#[derive(Debug)]
pub(super) struct Keeper<L> {
    ledger: Clerk<L>,
    patience: Patience,
    published: Published,
    residents: watch::Receiver<Arc<Residents>>,
    /// Reports that are not kept yet, and the checkpoint that counts them as told.
    unkept: Vec<Arc<OomReport>>,
    checkpoint: Option<Vec<u8>>,
    dropped: usize,
    problem: watch::Sender<Vec<String>>,
}

impl<L: Ledger> Keeper<L> {
    pub(super) fn new(
        ledger: L,
        patience: Patience,
        published: Published,
        residents: watch::Receiver<Arc<Residents>>,
    ) -> (Self, watch::Receiver<Vec<String>>) {
        let (problem, problems) = watch::channel(Vec::new());
        let keeper = Self {
            ledger: Clerk::new(ledger),
            patience,
            published,
            residents,
            unkept: Vec::new(),
            checkpoint: None,
            dropped: 0,
            problem,
        };
        (keeper, problems)
    }

    /// Works until the watcher has ended.
    pub(super) async fn run(mut self, mut batches: mpsc::Receiver<Batch>) {
        let (mut retry_at, mut tidy_at) = (None, Instant::now() + TIDY);
        let mut taken = Vec::new();
        loop {
            let wake = retry_at.map_or(tidy_at, |retry: Instant| retry.min(tidy_at));
            // Cancel-safe: `recv_many` takes nothing unless it returns.
            tokio::select! {
                count = batches.recv_many(&mut taken, AT_ONCE) => if count == 0 { break },
                () = tokio::time::sleep_until(wake) => {}
            }
            let mut news = Vec::new();
            for Batch { reports, checkpoint } in taken.drain(..) {
                news.extend(reports.into_iter().map(Arc::new));
                self.checkpoint = Some(checkpoint);
            }
            self.unkept.extend(news.iter().cloned());
            retry_at = self.keep().await.map(|()| Instant::now() + self.patience.retry);
            let now = Instant::now().into_std();
            news.into_iter().for_each(|report| self.published.publish(report, now));
            if tidy_at <= Instant::now() {
                tidy_at = Instant::now() + TIDY;
                self.published.tidy(&self.residents.borrow().pods, now);
            }
        }
        if self.keep().await.is_some() {
            tracing::error!(reports = self.unkept.len(), "not kept: told again by the next agent");
        }
    }

    /// Has everything kept that is not yet; returns whether that is to be tried again.
    async fn keep(&mut self) -> Option<()> {
        let checkpoint = self.checkpoint.as_deref()?;
        let commit = self.ledger.commit(&self.unkept, checkpoint);
        let kept = match timeout(self.patience.longest, commit).await {
            Ok(kept) => kept,
            Err(_) => {
                let longest = self.patience.longest;
                Err(LedgerError(format!("the disk took longer than {longest:?}")))
            }
        };
        let Err(error) = kept else {
            self.unkept.clear();
            self.checkpoint = None;
            self.say(Vec::new());
            return None;
        };
        let excess = self.unkept.len().saturating_sub(MOST_UNKEPT);
        self.unkept.drain(..excess);
        self.dropped += excess;
        let lost = match self.dropped {
            0 => String::new(),
            dropped => format!("; the {dropped} oldest are in the log and the metrics only"),
        };
        self.say(vec![format!(
            "{} reports of kills are not kept: {error}; check that stateDir is writable and has free space{lost}",
            self.unkept.len()
        )]);
        Some(())
    }

    fn say(&self, problems: Vec<String>) {
        self.problem.send_if_modified(|told| {
            let changed = *told != problems;
            if changed && let Some(problem) = problems.first() {
                tracing::error!("{problem}");
            }
            *told = problems;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::broadcast;

    use super::super::published::tests::{ids, report};
    use super::*;
    use crate::observe::audit::Audit;
    use crate::observe::metrics::{KillMetrics, registry};

    /// Keeps commits, unless the disk is full or hangs.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<DiskState>>);

    #[derive(Default)]
    struct DiskState {
        full: bool,
        hangs: bool,
        kept: Vec<String>,
        checkpoint: Vec<u8>,
    }

    impl Ledger for Disk {
        async fn commit(&mut self, reports: &[Arc<OomReport>], checkpoint: &[u8]) -> Result<(), LedgerError> {
            while self.0.lock().unwrap().hangs {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut disk = self.0.lock().unwrap();
            if disk.full {
                return Err(LedgerError("no space left".to_owned()));
            }
            for report in reports {
                if !disk.kept.contains(&report.id) {
                    disk.kept.push(report.id.clone());
                }
            }
            disk.checkpoint = checkpoint.to_owned();
            Ok(())
        }
    }

    fn batch(id: &str) -> Batch {
        Batch {
            reports: vec![report(id)],
            checkpoint: id.as_bytes().to_owned(),
        }
    }

    #[tokio::test]
    async fn a_kill_is_kept_before_it_is_told_and_told_even_if_it_cannot_be_kept() {
        let disk = Disk::default();
        let (changes, mut told) = broadcast::channel(16);
        let (published, kills) = Published::new(
            KillMetrics::register(&mut registry()),
            changes,
            Audit::default(),
            Vec::new(),
        );
        let (_residents, residents) = watch::channel(Arc::new(Residents {
            tree: None,
            pods: Vec::new(),
        }));
        let (keeper, problems) = Keeper::new(
            disk.clone(),
            Patience {
                longest: Duration::from_millis(20),
                retry: Duration::from_millis(5),
            },
            published,
            residents,
        );
        let (batches, taken) = mpsc::channel(1);
        let keeper = tokio::spawn(keeper.run(taken));
        let mut next = async |id: &str| {
            batches.send(batch(id)).await.unwrap();
            told.recv().await.unwrap().kill.as_ref().unwrap().id.clone()
        };
        assert_eq!(next("a").await, "a");
        assert_eq!(disk.0.lock().unwrap().kept, ["a"]);
        disk.0.lock().unwrap().full = true;
        assert_eq!(next("b").await, "b");
        assert!(problems.borrow()[0].contains("no space left") && problems.borrow()[0].contains("stateDir"));
        disk.0.lock().unwrap().hangs = true;
        assert_eq!(next("c").await, "c");
        {
            let mut disk = disk.0.lock().unwrap();
            (disk.full, disk.hangs) = (false, false);
        }
        while !problems.borrow().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(disk.0.lock().unwrap().kept, ["a", "b", "c"]);
        assert_eq!(disk.0.lock().unwrap().checkpoint, b"c");
        assert_eq!(ids(&kills), ["a", "b", "c"]);
        drop(batches);
        keeper.await.unwrap();
    }
}
