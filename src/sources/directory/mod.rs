//! A directory of manifests → the latest [`SourceState`].
//!
//! One task, [`DirectorySource::run`], waits for a change (`notify`), waits for the end of a burst, reads the files
//! (`read`), and publishes a state that differs from the last. A renamed file is published within milliseconds.
//!
//! An unreadable file never removes objects: a file that is broken, too large, emptied or half written keeps its last usable
//! content, and a missing directory keeps the last state, each with a problem until it is mended. Only the removal of a
//! file removes its objects. Without notifications (no inotify, lost events, a file system without them) the task reads the
//! directory at intervals.

mod notify;
mod read;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{NodeView, SourceState};
use notify::Notifier;
use read::{FileProblem, Reader};

/// How long the directory must be quiet before it is read.
const QUIET: Duration = Duration::from_millis(1);

/// The most repetitions of waiting and reading while changes continue.
const MAX_ROUNDS: usize = 10;

/// The interval of reads without notifications.
const POLL: Duration = Duration::from_secs(1);

/// The interval of reads beside notifications: a change behind a symbolic link causes none.
const SAFETY: Duration = Duration::from_secs(30);

/// Follows a directory of manifests: `*.yaml`, `*.yml` and `*.json`, without hidden files and subdirectories.
#[derive(Debug)]
pub struct DirectorySource {
    /// Reading blocks, so it runs on another thread.
    reader: Arc<Mutex<Reader>>,
    /// None without inotify.
    notifier: Option<Notifier>,
    sender: watch::Sender<Arc<SourceState>>,
    poll: Duration,
}

impl DirectorySource {
    /// Makes a source for the node of that name (empty if unknown), and the receiver of its
    /// states. Reads nothing before [`Self::run`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn new(directory: PathBuf, node_name: &str) -> (Self, watch::Receiver<Arc<SourceState>>) {
        let notifier = Notifier::new(&directory)
            .inspect_err(
                |error| tracing::warn!(directory = %directory.display(), %error, "no inotify: reading at intervals"),
            )
            .ok();
        let (sender, receiver) = watch::channel(Arc::default());
        let source = Self {
            reader: Arc::new(Mutex::new(Reader::new(directory, node_name.to_owned()))),
            notifier,
            sender,
            poll: POLL,
        };
        (source, receiver)
    }

    /// Follows the directory until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.read_until_settled().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changed() => {}
            }
        }
    }

    /// Reads until nothing changes meanwhile, so that a state holds files that existed together. After the last round, waiting
    /// notifications stay for [`Self::changed`].
    async fn read_until_settled(&mut self) {
        for round in 1..=MAX_ROUNDS {
            sleep(QUIET).await;
            if round < MAX_ROUNDS && self.drain() {
                continue;
            }
            let findings = self.read().await;
            if round < MAX_ROUNDS && self.drain() {
                continue;
            }
            if let Some((view, problems)) = findings {
                self.publish(view, problems);
            }
            return;
        }
    }

    /// The combined files, without those that are being written.
    async fn read(&mut self) -> Option<(NodeView, Vec<FileProblem>)> {
        let writing = self.notifier.as_mut().map(|notifier| {
            notifier.arm();
            notifier.being_written(Instant::now())
        });
        let reader = Arc::clone(&self.reader);
        let reading = tokio::task::spawn_blocking(move || reader.lock().read(&writing.unwrap_or_default()));
        let findings = reading.await;
        findings
            .inspect_err(|error| tracing::error!(%error, "reading the manifests failed; the last state stays"))
            .ok()
    }

    fn publish(&self, view: NodeView, problems: Vec<FileProblem>) {
        let before = Arc::clone(&self.sender.borrow());
        let texts = problems.into_iter().map(|(path, message)| {
            let text = format!("{}: {message}", path.display());
            if !before.problems.contains(&text) {
                tracing::warn!(path = %path.display(), "{message}");
            }
            text
        });
        SourceState::publish(&self.sender, Some(view), texts.collect());
    }

    /// Waits for a possible change. Cancel-safe.
    async fn changed(&mut self) {
        let Some(notifier) = &mut self.notifier else {
            return sleep(self.poll).await;
        };
        let interval = if notifier.is_armed() { SAFETY } else { self.poll };
        let deadline = Instant::now() + interval;
        let deadline = notifier.patience_ends().map_or(deadline, |end| end.min(deadline));
        if let Ok(Err(error)) = timeout_at(deadline, notifier.changed()).await {
            self.poll_from_now_on(&error);
        }
    }

    /// Takes waiting notifications; returns whether there was a relevant one.
    fn drain(&mut self) -> bool {
        let drained = self.notifier.as_mut().map_or(Ok(false), Notifier::drain);
        drained.unwrap_or_else(|error| {
            self.poll_from_now_on(&error);
            true
        })
    }

    fn poll_from_now_on(&mut self, error: &io::Error) {
        tracing::warn!(%error, "inotify failed: the manifests are read at intervals");
        self.notifier = None;
    }
}
