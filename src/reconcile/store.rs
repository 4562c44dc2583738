//! Saves what survives a restart in a task of its own: the controller never waits for the disk.
//!
//! The task writes only the newest content, and skips contents that were replaced while the disk was busy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

mod file;
#[cfg(any(test, fuzzing))]
pub(crate) use file::fuzz_state;
pub(crate) use file::{Restored, SavedPod, SavedTargets, StateFile};

/// How long a caller waits for the disk at most.
const LONGEST_SAVE_WAIT: Duration = Duration::from_secs(5);

type Content = BTreeMap<String, SavedPod>;
/// The newest content, until the task writes it.
type Slot = Arc<Mutex<Option<Content>>>;

fn lock(slot: &Slot) -> MutexGuard<'_, Option<Content>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle of the task that writes the state file.
#[derive(Debug)]
pub(crate) struct StateWriter {
    slot: Slot,
    /// The number of the newest content.
    left: watch::Sender<u64>,
    progress: watch::Receiver<Progress>,
    task: JoinHandle<()>,
}

/// How far the task has got.
#[derive(Debug, Default)]
struct Progress {
    /// The number of the content that was written last, or failed to be.
    done: u64,
    /// Why that content is not saved.
    problem: Option<String>,
}

impl StateWriter {
    pub(crate) fn start(file: StateFile) -> Self {
        let slot = Slot::default();
        let (left, news) = watch::channel(0);
        let (progressed, progress) = watch::channel(Progress::default());
        Self {
            task: tokio::spawn(write(file, Arc::clone(&slot), news, progressed)),
            slot,
            left,
            progress,
        }
    }

    /// Hands over content to save.
    pub(crate) fn save(&mut self, content: Content) {
        *lock(&self.slot) = Some(content);
        self.left.send_modify(|left| *left += 1);
    }

    /// Waits until all content handed over so far is saved or has failed to be, for [`LONGEST_SAVE_WAIT`] at most.
    pub(crate) fn saved(&self) -> impl Future<Output = ()> + use<> {
        self.saved_up_to(*self.left.borrow())
    }

    /// The same, including the next content.
    pub(crate) fn next_saved(&self) -> impl Future<Output = ()> + use<> {
        self.saved_up_to(*self.left.borrow() + 1)
    }

    fn saved_up_to(&self, left: u64) -> impl Future<Output = ()> + use<> {
        let mut progress = self.progress.clone();
        async move {
            let settled = progress.wait_for(|progress| progress.done >= left);
            if tokio::time::timeout(LONGEST_SAVE_WAIT, settled).await.is_err() {
                tracing::warn!(waited = ?LONGEST_SAVE_WAIT, "going on although the disk has not saved what was decided");
            }
        }
    }

    /// Why the newest content is not saved.
    pub(crate) fn problem(&self) -> Option<String> {
        self.progress.borrow().problem.clone()
    }

    /// Ends the task after the newest content.
    pub(crate) async fn finish(self) {
        drop(self.left);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "saving ended early");
        }
    }
}

async fn write(file: StateFile, slot: Slot, mut left: watch::Receiver<u64>, progressed: watch::Sender<Progress>) {
    let file = Arc::new(file);
    loop {
        // After the sender is dropped, the last content is still written.
        let open = left.changed().await.is_ok();
        let done = *left.borrow_and_update();
        // `None`: an earlier round already took the content of this number.
        let newest = lock(&slot).take();
        if let Some(content) = newest {
            let file = Arc::clone(&file);
            let saved = tokio::task::spawn_blocking(move || file.save(content)).await;
            let problem = match saved {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = &problem {
                tracing::error!(problem, "what was decided will not survive a restart");
            }
            progressed.send_modify(|progress| progress.problem = problem);
        }
        progressed.send_modify(|progress| progress.done = done);
        if !open {
            return;
        }
    }
}
