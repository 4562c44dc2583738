//! Saves what must survive a restart, off the coordinator's path: a slow disk delays nothing that matters more.
//!
//! Only the newest content is ever written; contents that were overtaken while the disk was busy are skipped.

use std::collections::BTreeMap;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::state::{SavedPod, StateFile};

type Content = BTreeMap<String, SavedPod>;

/// Where to leave what is to be saved.
#[derive(Debug)]
pub(super) struct Saver {
    content: watch::Sender<Content>,
    problem: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

impl Saver {
    /// Starts the task that writes the file.
    pub(super) fn start(file: StateFile) -> Self {
        let (content, contents) = watch::channel(Content::new());
        let (problems, problem) = watch::channel(None);
        Self {
            content,
            problem,
            task: tokio::spawn(write(file, contents, problems)),
        }
    }

    /// Leaves this content to be saved.
    pub(super) fn save(&self, content: Content) {
        self.content.send_replace(content);
    }

    /// Why the latest content is not saved, if it is not.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Waits until the newest content is saved, or has failed to be.
    pub(super) async fn finish(self) {
        drop(self.content);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "saving ended early");
        }
    }
}

async fn write(file: StateFile, mut contents: watch::Receiver<Content>, problems: watch::Sender<Option<String>>) {
    let file = std::sync::Arc::new(file);
    loop {
        // The last content is still to be seen when the sender is dropped.
        let open = contents.changed().await.is_ok();
        if !open && !contents.has_changed().unwrap_or(false) {
            return;
        }
        let content = contents.borrow_and_update().clone();
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
        problems.send_replace(problem);
        if !open {
            return;
        }
    }
}
