//! A watched directory of manifests → the latest [`SourceState`].
//!
//! One task, [`DirectorySource::run`]: it waits for the kernel to tell of a change (`notify`), lets a burst pass, reads
//! what changed and puts the files together (`read`), and publishes the result over a `watch` channel if it
//! differs from the last. From rename to published state a few milliseconds pass.
//!
//! What cannot be read never takes anything away: a file that is broken, too large or half written keeps its last good
//! content, and a directory that is missing keeps the last state, each with a problem until it is mended. Only a
//! file's removal removes its objects. Without notifications (no inotify, events lost, a file system that has none) the
//! directory is read at intervals.

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

/// How long nothing must happen before the directory is read.
const QUIET: Duration = Duration::from_millis(1);

/// How often waiting or reading is repeated for something that happened meanwhile, before things are taken as they are.
const MAX_ROUNDS: usize = 10;

/// The time between readings when the kernel tells nothing.
const POLL: Duration = Duration::from_secs(1);

/// The time between readings beside notifications: what lies behind a symbolic link changes without one.
const SAFETY: Duration = Duration::from_secs(30);

/// Something in the directory that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}: {message}", path.display())]
struct Problem {
    /// The file, or the directory itself.
    path: PathBuf,
    /// What is wrong, with document and field where there is one, and what counts instead.
    message: String,
}

/// Follows a directory of manifests: `*.yaml`, `*.yml` and `*.json`, hidden files aside, not recursive.
#[derive(Debug)]
pub struct DirectorySource {
    /// Reading blocks, so it happens on another thread.
    reader: Arc<Mutex<Reader>>,
    /// None where inotify cannot be had.
    notifier: Option<Notifier>,
    sender: watch::Sender<Arc<SourceState>>,
    /// Whether something happened during the last reading.
    overtaken: bool,
    poll: Duration,
}

impl DirectorySource {
    /// A source for the node of that name (empty if not known), and where its states appear. Nothing is read before
    /// [`Self::run`].
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
            overtaken: false,
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

    /// Reads, and reads again what changed meanwhile, so that what is published was there all at one time.
    async fn read_until_settled(&mut self) {
        let mut findings = None;
        for _ in 0..MAX_ROUNDS {
            self.quiet().await;
            let writing = self.notifier.as_mut().map(|notifier| {
                notifier.arm();
                notifier.being_written(Instant::now())
            });
            findings = self.read(writing.unwrap_or_default()).await.or(findings);
            self.overtaken = self.drain();
            if !self.overtaken {
                break;
            }
        }
        if let Some((view, problems)) = findings {
            self.publish(view, &problems);
        }
    }

    async fn quiet(&mut self) {
        for _ in 0..MAX_ROUNDS {
            sleep(QUIET).await;
            if !self.drain() {
                return;
            }
        }
    }

    /// What the files say, if any of them says something new. Files that are `writing` are left for later.
    async fn read(&self, writing: HashSet<OsString>) -> Option<(NodeView, Vec<Problem>)> {
        let reader = Arc::clone(&self.reader);
        let reading = tokio::task::spawn_blocking(move || {
            // A reader is whole between any two files, whatever happened in between.
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

    /// Waits until there may be something new. Cancel-safe.
    async fn changed(&mut self) {
        if self.overtaken {
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

    /// Whether something happened that was not waited for.
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
