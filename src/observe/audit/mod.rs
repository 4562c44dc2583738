//! The audit log: who changed what, why, and how it ended; who was turned away; and what the kernel killed.
//!
//! In come finished passes ([`ChangeRecord`]), refusals and kills; out goes one line of JSON for each value written, in a file
//! of its own that is rotated ([`file`](self)), so that it outlives both the agent's memory and the log. It holds names,
//! amounts and what operators gave as reasons, and nothing else that comes out of pods.
//!
//! A line is in the file moments after its pass, and on the disk at most [`AuditOptions::sync_within`] later, when a file is full,
//! and when the agent ends. A crash of the agent loses nothing that was written; a power cut may take the last seconds.
//! Syncing each line would make every resize on the node a wait of everybody for the disk's journal.
//!
//! Nobody waits for it. Where the disk is full or slow, lines are dropped and counted, the agent reports that as a
//! problem, and the count is the first line written once there is room again.

mod file;
mod floods;
mod line;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::file::RotatedFile;
use self::floods::{Floods, Frequent};
use crate::model::ChangeRecord;
use crate::oom::OomReport;

pub use floods::Refusal;
pub use line::Actor;

/// Events that may wait for the disk.
const WAITING: usize = 4096;
/// The most events in one write.
const AT_ONCE: usize = 256;
/// How long a line may wait to be synced, where nothing else is asked for.
pub const DURABLE_WITHIN: Duration = Duration::from_secs(5);
/// How often refusals that were counted are written down.
const WINDOW: Duration = Duration::from_secs(60);

/// Where the audit log is and how large it may become: `files` files of at most `bytes` each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditOptions {
    /// The file that is written; rotated ones have `.1`, `.2` and so on behind the name.
    pub path: PathBuf,
    /// Most bytes in one file. A single line may be longer.
    pub bytes: u64,
    /// Files kept, the one that is written included.
    pub files: usize,
    /// How long a line may wait until it is synced with others. Each sync makes the disk's journal wait for the disk.
    pub sync_within: Duration,
}

#[derive(Debug)]
enum Event {
    Change(Arc<ChangeRecord>),
    Frequent(Frequent),
}

/// Where to leave what is to be written down. Cloned freely; without a file everything is dropped.
#[derive(Debug, Clone, Default)]
pub struct Audit {
    events: Option<SyncSender<Event>>,
    dropped: Arc<AtomicU64>,
    problem: Option<watch::Receiver<Option<String>>>,
}

impl Audit {
    /// Starts the thread that writes. It ends once every clone of the handle is dropped and everything is written.
    #[must_use]
    pub fn start(options: AuditOptions) -> (Self, JoinHandle<()>) {
        let (events, waiting) = sync_channel(WAITING);
        let (problems, problem) = watch::channel(None);
        let dropped = Arc::<AtomicU64>::default();
        let writer = Writer {
            sync_within: options.sync_within,
            file: RotatedFile::new(options),
            lost: 0,
            dropped: Arc::clone(&dropped),
            sync_due: None,
            problems,
        };
        let audit = Self {
            events: Some(events),
            dropped,
            problem: Some(problem),
        };
        (audit, tokio::task::spawn_blocking(move || writer.run(&waiting)))
    }

    /// Writes down what a pass did.
    pub fn change(&self, record: &Arc<ChangeRecord>) {
        self.enqueue(|| Event::Change(Arc::clone(record)));
    }

    /// Writes down that somebody was turned away. The same refusal again and again is counted, not repeated.
    pub fn refused(&self, refusal: Refusal) {
        self.enqueue(|| Event::Frequent(Frequent::Refusal(refusal)));
    }

    /// Writes down that the kernel killed for want of memory. Of very many kills some are only counted.
    pub fn kill(&self, report: &Arc<OomReport>) {
        self.enqueue(|| Event::Frequent(Frequent::Kill(Arc::clone(report))));
    }

    /// Why not everything is written down, if so.
    pub fn problem(&self) -> Option<String> {
        self.problem.as_ref().and_then(|problem| problem.borrow().clone())
    }

    fn enqueue(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.events
            && events.try_send(event()).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread behind the handles.
#[derive(Debug)]
struct Writer {
    file: RotatedFile,
    /// Lines that could not be written so far.
    lost: u64,
    /// Events that found no room to wait.
    dropped: Arc<AtomicU64>,
    /// When what was written last is to be synced; none where all of it is.
    sync_due: Option<Instant>,
    sync_within: Duration,
    problems: watch::Sender<Option<String>>,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Event>) {
        let mut floods = Floods::default();
        loop {
            let patience = self
                .sync_due
                .map_or(WINDOW, |due| due.saturating_duration_since(Instant::now()));
            let first = waiting.recv_timeout(patience.min(WINDOW));
            let open = !matches!(first, Err(RecvTimeoutError::Disconnected));
            let now = Timestamp::now();
            let mut lines = Vec::new();
            for event in first.into_iter().chain(waiting.try_iter().take(AT_ONCE)) {
                match event {
                    Event::Change(record) => lines.extend(line::of_change(&record)),
                    Event::Frequent(event) => lines.extend(floods.record(event, now)),
                }
            }
            lines.extend(if open {
                floods.take_expired(now)
            } else {
                floods.take_all(now)
            });
            self.write(lines, !open);
            if !open {
                return;
            }
        }
    }

    /// Writes these lines after the count of those that were lost before, as far as the disk takes them,
    /// and syncs what is due.
    fn write(&mut self, mut lines: Vec<String>, last: bool) {
        self.lost += self.dropped.swap(0, Ordering::Relaxed);
        let missing = self.lost;
        if missing > 0 {
            lines.insert(0, line::of_loss(Timestamp::now(), missing));
        }
        // Where something failed, nothing is taken for mended before the disk says so.
        let sync = last || self.problems.borrow().is_some() || self.sync_due.is_some_and(|due| due <= Instant::now());
        if lines.is_empty() && !sync {
            return;
        }
        let (written, error) = self.file.append(&lines);
        let synced = if sync { self.file.sync() } else { Ok(()) };
        let error = error.or(synced.err()).map(|error| error.to_string());
        // The count itself is no loss: it is made anew each time.
        let counted = usize::from(missing > 0);
        let unwritten = lines.len().saturating_sub(written.max(counted));
        self.lost = if written > 0 { 0 } else { missing };
        self.lost += u64::try_from(unwritten).unwrap_or(u64::MAX);
        let soon = Instant::now() + self.sync_within;
        self.sync_due = match (&error, sync) {
            (None, true) => None,
            (None, false) => self.sync_due.or(Some(soon)),
            (Some(_), _) => Some(soon),
        };
        self.publish_problem(error);
    }

    fn publish_problem(&self, error: Option<String>) {
        if let Some(error) = error {
            let problem = match self.lost {
                0 => format!("audit log: {error}"),
                lost => format!("audit log: {lost} lines are lost: {error}"),
            };
            tracing::error!("{problem}");
            self.problems.send_replace(Some(problem));
        } else if self.problems.borrow().is_some() {
            self.problems.send_replace(None);
        }
    }
}

#[cfg(test)]
mod tests;
