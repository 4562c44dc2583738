//! Saves what survives a restart, off the controller's path: a slow disk delays nothing that matters more.
//!
//! Only the newest content is ever written; contents that were overtaken while the disk was busy are skipped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

mod file;
#[cfg(any(test, fuzzing))]
pub(crate) use file::fuzz_state;
pub(crate) use file::{Restored, SavedPod, Standing, StateFile};

/// How long anybody waits for the disk before going on without it.
const PATIENCE: Duration = Duration::from_secs(5);

type Content = BTreeMap<String, SavedPod>;
/// The newest content, until it is written: nobody needs it any more afterwards.
type Slot = Arc<Mutex<Option<Content>>>;

fn lock(slot: &Slot) -> MutexGuard<'_, Option<Content>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where to leave what is to be saved.
#[derive(Debug)]
pub(crate) struct StateWriter {
    slot: Slot,
    /// The how manieth content was left last.
    left: watch::Sender<u64>,
    progress: watch::Receiver<Progress>,
    task: JoinHandle<()>,
}

/// How far the disk has come.
#[derive(Debug, Default)]
struct Progress {
    /// The number of the content that was dealt with last.
    done: u64,
    /// Why it is not saved, if it is not.
    problem: Option<String>,
}

impl StateWriter {
    /// Starts the task that writes the file.
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

    /// Leaves this content to be saved.
    pub(crate) fn save(&mut self, content: Content) {
        *lock(&self.slot) = Some(content);
        self.left.send_modify(|left| *left += 1);
    }

    /// Waits until everything left so far is saved, or has failed to be; not for ever.
    pub(crate) fn saved(&self) -> impl Future<Output = ()> + use<> {
        self.saved_up_to(*self.left.borrow())
    }

    /// The same, with what is left next.
    pub(crate) fn next_saved(&self) -> impl Future<Output = ()> + use<> {
        self.saved_up_to(*self.left.borrow() + 1)
    }

    fn saved_up_to(&self, left: u64) -> impl Future<Output = ()> + use<> {
        let mut progress = self.progress.clone();
        async move {
            let settled = progress.wait_for(|progress| progress.done >= left);
            if tokio::time::timeout(PATIENCE, settled).await.is_err() {
                tracing::warn!(waited = ?PATIENCE, "going on although the disk has not saved what was decided");
            }
        }
    }

    /// Why the latest content is not saved, if it is not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.progress.borrow().problem.clone()
    }

    /// Waits until the newest content is saved, or has failed to be.
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
        // The last content is still to be written when the sender is dropped.
        let open = left.changed().await.is_ok();
        let done = *left.borrow_and_update();
        // None: the content of this number was there already when the one before was taken.
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
