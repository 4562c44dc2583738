//! Saves what must survive a restart, off the coordinator's path: a slow disk delays nothing that matters more.
//!
//! Only the newest content is ever written; contents that were overtaken while the disk was busy are skipped.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::state::{SavedPod, StateFile};

/// How long anybody waits for the disk before going on without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Content, and the how manieth it is.
type Numbered = (u64, BTreeMap<String, SavedPod>);

/// Where to leave what is to be saved.
#[derive(Debug)]
pub(super) struct Saver {
    content: watch::Sender<Numbered>,
    left: u64,
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

impl Saver {
    /// Starts the task that writes the file.
    pub(super) fn start(file: StateFile) -> Self {
        let (content, contents) = watch::channel(Numbered::default());
        let (progressed, progress) = watch::channel(Progress::default());
        Self {
            content,
            left: 0,
            progress,
            task: tokio::spawn(write(file, contents, progressed)),
        }
    }

    /// Leaves this content to be saved.
    pub(super) fn save(&mut self, content: BTreeMap<String, SavedPod>) {
        self.left += 1;
        self.content.send_replace((self.left, content));
    }

    /// Waits until everything left so far is saved, or has failed to be; not for ever.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + use<> {
        self.settled_up_to(self.left)
    }

    /// The same, with what is left next.
    pub(super) fn next_settled(&self) -> impl Future<Output = ()> + use<> {
        self.settled_up_to(self.left + 1)
    }

    fn settled_up_to(&self, left: u64) -> impl Future<Output = ()> + use<> {
        let mut progress = self.progress.clone();
        async move {
            let settled = progress.wait_for(|progress| progress.done >= left);
            if tokio::time::timeout(PATIENCE, settled).await.is_err() {
                tracing::warn!(waited = ?PATIENCE, "going on although the disk has not saved what was decided");
            }
        }
    }

    /// Why the latest content is not saved, if it is not.
    pub(super) fn problem(&self) -> Option<String> {
        self.progress.borrow().problem.clone()
    }

    /// Waits until the newest content is saved, or has failed to be.
    pub(super) async fn finish(self) {
        drop(self.content);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "saving ended early");
        }
    }
}

async fn write(file: StateFile, mut contents: watch::Receiver<Numbered>, progressed: watch::Sender<Progress>) {
    let file = std::sync::Arc::new(file);
    loop {
        // The last content is still to be seen when the sender is dropped.
        let open = contents.changed().await.is_ok();
        if !open && !contents.has_changed().unwrap_or(false) {
            return;
        }
        let (done, content) = contents.borrow_and_update().clone();
        let file = std::sync::Arc::clone(&file);
        let saved = tokio::task::spawn_blocking(move || file.save(content)).await;
        let problem = match saved {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = &problem {
            tracing::error!(problem, "what was decided will not survive a restart");
        }
        progressed.send_replace(Progress { done, problem });
        if !open {
            return;
        }
    }
}
