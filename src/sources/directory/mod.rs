//! A directory of manifests → the latest [`SourceState`].
//!
//! One task, [`DirectorySource::run`], waits for a change (`notify`), waits for the end of a burst, reads the files
//! (`read`), and publishes a state that differs from the last. A renamed file is published within milliseconds.
//!
//! An unreadable file never removes objects: a file that is broken, too large or half written keeps its last usable
//! content, and a missing directory keeps the last state, each with a problem until it is mended. Only the removal of a
//! file removes its objects. Without notifications (no inotify, lost events, a file system without them) the task reads the
//! directory at intervals.

mod notify;
mod read;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{NodeView, SourceState};
use notify::Notifier;
use read::Reader;

/// How long the directory must be quiet before it is read.
const QUIET: Duration = Duration::from_millis(1);

/// The most repetitions of waiting or reading while changes continue.
const MAX_ROUNDS: usize = 10;

/// The interval of reads without notifications.
const POLL: Duration = Duration::from_secs(1);

/// The interval of reads beside notifications: a change behind a symbolic link causes none.
const SAFETY: Duration = Duration::from_secs(30);

/// A problem with the directory or a file.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}: {message}", path.display())]
struct Problem {
    /// The file, or the directory itself.
    path: PathBuf,
    /// The problem, with document and field where there is one.
    message: String,
}

/// Follows a directory of manifests: `*.yaml`, `*.yml` and `*.json`, without hidden files and subdirectories.
#[derive(Debug)]
pub struct DirectorySource {
    /// Reading blocks, so it runs on another thread.
    reader: Arc<Mutex<Reader>>,
    /// None without inotify.
    notifier: Option<Notifier>,
    sender: watch::Sender<Arc<SourceState>>,
    /// Whether something changed during the last read.
    changed_meanwhile: bool,
    poll: Duration,
}

impl DirectorySource {
    /// Makes a source for the node of that name (empty if unknown), and the receiver of its
    /// states. Reads nothing before [`Self::run`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    #[must_use]
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
            changed_meanwhile: false,
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

    /// Reads until nothing changes meanwhile, so that a state holds files that existed together.
    async fn read_until_settled(&mut self) {
        let mut findings = None;
        for _ in 0..MAX_ROUNDS {
            self.wait_until_quiet().await;
            let writing = self.notifier.as_mut().map(|notifier| {
                notifier.arm();
                notifier.being_written(Instant::now())
            });
            findings = self.read(writing.unwrap_or_default()).await.or(findings);
            self.changed_meanwhile = self.drain();
            if !self.changed_meanwhile {
                break;
            }
        }
        if let Some((view, problems)) = findings {
            self.publish(view, &problems);
        }
    }

    async fn wait_until_quiet(&mut self) {
        for _ in 0..MAX_ROUNDS {
            sleep(QUIET).await;
            if !self.drain() {
                return;
            }
        }
    }

    /// The combined files, if any of them changed. Skips the files in `writing`.
    async fn read(&self, writing: HashSet<OsString>) -> Option<(NodeView, Vec<Problem>)> {
        let reader = Arc::clone(&self.reader);
        let reading = tokio::task::spawn_blocking(move || {
            // The reader is consistent between any two files, so a panic does not spoil it.
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.read(&writing).then(|| reader.combined())
        });
        reading.await.unwrap_or_else(|error| {
            tracing::error!(%error, "reading the manifests failed; the last state stays");
            None
        })
    }

    fn publish(&self, view: NodeView, problems: &[Problem]) {
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        let before = Arc::clone(&self.sender.borrow());
        for (problem, text) in problems.iter().zip(&texts) {
            if !before.problems.contains(text) {
                tracing::warn!(path = %problem.path.display(), "{}", problem.message);
            }
        }
        drop(before);
        SourceState::publish(&self.sender, Some(view), texts);
    }

    /// Waits for a possible change. Cancel-safe.
    async fn changed(&mut self) {
        if self.changed_meanwhile {
            return;
        }
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
        match self.notifier.as_mut().map(Notifier::drain) {
            Some(Ok(happened)) => happened,
            Some(Err(error)) => {
                self.poll_from_now_on(&error);
                true
            }
            None => false,
        }
    }

    fn poll_from_now_on(&mut self, error: &io::Error) {
        tracing::warn!(%error, "inotify failed: the manifests are read at intervals");
        self.notifier = None;
    }
}
