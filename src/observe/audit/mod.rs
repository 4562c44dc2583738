//! The audit log: changes with their cause and outcome, refused callers, and kills.
//!
//! Finished passes ([`ChangeRecord`]), refusals and kills come in. One line of JSON for each written value goes out, to a
//! rotated file ([`file`](self)) that outlives the agent. Lines hold names, amounts and the reasons of operators, and no
//! other text from pods.
//!
//! A line is in the file moments after its pass. It is on the disk after at most [`AuditOptions::sync_within`], when a file
//! is full, and when the agent ends. A crash of the agent loses no written line; a power cut may lose those of the last
//! seconds. A sync for each line would make every pass on the node wait for the disk's journal.
//!
//! A second file has a copy of the lines about operators' changes: no tenant can push them out of it.
//!
//! No task waits for the audit log. When the disk is full or slow, the log drops and counts lines, the agent reports a
//! problem, and the count becomes the first line that fits again.

mod file;
mod floods;
mod line;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Error;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use self::file::RotatedFile;
use self::floods::Floods;
use crate::model::ChangeRecord;
use crate::oom::OomReport;
use crate::rate_limiter::{REPEATED_LINES, RateLimiter};

pub use line::{Actor, known_pid};

/// The events that wait for the disk at most.
const WAITING: usize = 2048;
/// The lines of these events at most. An event counts with at least [`LINES`].
const WAITING_LINES: usize = WAITING * LINES;
const LINES: usize = 8;
/// The rest of the queue is for operators' changes: while the disk is slow, no tenant's events keep them out.
const LINES_OF_OTHERS: usize = WAITING_LINES / 4 * 3;
/// The most events in one write.
const AT_ONCE: usize = 256;
/// The usual longest time from a line to its sync.
pub const DURABLE_WITHIN: Duration = Duration::from_secs(5);
/// The period in which repeated refusals are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// The place and the bounds of the audit log: at most `files` files of at most `bytes` each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditOptions {
    /// The current file. Rotated files have the suffixes `.1`, `.2` and so on.
    pub path: PathBuf,
    /// The most bytes of one file. A single line may be longer.
    pub bytes: u64,
    /// The number of files, the current one included.
    pub files: usize,
    /// The longest time from a line to its sync. Each sync makes the disk's journal wait for the disk.
    pub sync_within: Duration,
}

impl AuditOptions {
    /// The file with operators' changes alone: `audit.operators.jsonl` beside `audit.jsonl`.
    fn of_operators(&self) -> Self {
        let extension = self.path.extension().unwrap_or_default();
        let extension = Path::new("operators").with_extension(extension);
        let path = self.path.with_extension(extension);
        Self { path, ..self.clone() }
    }
}

/// A refused caller or a refused request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub time: Timestamp,
    pub uid: u32,
    pub pid: i32,
    pub call: &'static str,
    /// The pod of the request, if the caller may name pods.
    pub pod: Option<String>,
    /// The answer to the caller.
    pub reason: String,
}

#[derive(Debug)]
enum AuditEvent {
    Change(Arc<ChangeRecord>),
    Refusal(Box<Refusal>),
    Kill(Arc<OomReport>),
}

impl AuditEvent {
    /// How many lines the event has, unless they are only counted.
    fn lines(&self) -> usize {
        match self {
            Self::Change(record) => record.steps.len().max(1),
            Self::Refusal(_) | Self::Kill(_) => 1,
        }
    }

    /// How many lines the event counts with while it waits.
    fn weight(&self) -> usize {
        self.lines().max(LINES)
    }
}

/// The handle of the audit log. Cheap to clone. The default handle has no file and drops everything.
#[derive(Debug, Clone, Default)]
pub struct Audit {
    events: Option<SyncSender<AuditEvent>>,
    state: Arc<AuditState>,
}

/// What the handles and the writer share.
#[derive(Debug, Default)]
struct AuditState {
    /// The lines of the events in the queue.
    waiting: AtomicUsize,
    /// The lines of the events that did not fit into the queue, until the writer counts them.
    dropped: AtomicU64,
    /// Why lines are missing or may get lost.
    problem: Mutex<Option<String>>,
}

impl Audit {
    /// Starts the thread that writes. The thread ends once every handle is dropped and every line is written.
    pub fn start(options: AuditOptions) -> (Self, JoinHandle<()>) {
        let (events, waiting) = sync_channel(WAITING);
        let state = Arc::<AuditState>::default();
        let writer = AuditWriter {
            of_operators: RotatedFile::new(options.of_operators()),
            file: RotatedFile::new(options),
            state: Arc::clone(&state),
            sync_due: None,
            logged: RateLimiter::new(REPEATED_LINES, Instant::now()),
        };
        let events = Some(events);
        let audit = Self { events, state };
        (audit, tokio::task::spawn_blocking(move || writer.run(&waiting)))
    }

    /// Records a finished pass.
    pub fn change(&self, record: &Arc<ChangeRecord>) {
        let by_operator = Actor::from(&record.cause).is_operator();
        let most = if by_operator { WAITING_LINES } else { LINES_OF_OTHERS };
        self.enqueue(most, AuditEvent::Change(Arc::clone(record)));
    }

    /// Records a refused caller. Counts repetitions instead of writing them.
    pub fn refused(&self, refusal: Refusal) {
        self.enqueue(LINES_OF_OTHERS, AuditEvent::Refusal(Box::new(refusal)));
    }

    /// Records a kill. Only counts kills beyond a rate.
    pub fn kill(&self, report: &Arc<OomReport>) {
        self.enqueue(LINES_OF_OTHERS, AuditEvent::Kill(Arc::clone(report)));
    }

    /// The reason why lines are missing, if any are.
    pub fn problem(&self) -> Option<String> {
        let failure = self.state.problem.lock().clone();
        let dropped = self.state.dropped.load(Ordering::Relaxed);
        let slow = || format!("audit log: {dropped} lines are lost: the disk is slow; put auditLog on a faster one");
        failure.or_else(|| (dropped > 0).then(slow))
    }

    /// Enqueues an event where fewer than `most` lines wait.
    fn enqueue(&self, most: usize, event: AuditEvent) {
        let Some(events) = &self.events else { return };
        let (lines, weight) = (event.lines(), event.weight());
        let before = self.state.waiting.fetch_add(weight, Ordering::Relaxed);
        if before >= most || events.try_send(event).is_err() {
            self.state.waiting.fetch_sub(weight, Ordering::Relaxed);
            self.state.dropped.fetch_add(lines as u64, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct AuditWriter {
    file: RotatedFile,
    of_operators: RotatedFile,
    state: Arc<AuditState>,
    /// When the unsynced lines are due; none if the disk has every line.
    sync_due: Option<Instant>,
    /// The log lines about a problem, which each event finds again.
    logged: RateLimiter,
}

impl AuditWriter {
    fn run(mut self, waiting: &Receiver<AuditEvent>) {
        let mut floods = Floods::new(Instant::now());
        loop {
            let wait = self.sync_due.map(|due| due.saturating_duration_since(Instant::now()));
            let first = waiting.recv_timeout(wait.unwrap_or(WINDOW).min(WINDOW));
            let open = !matches!(first, Err(RecvTimeoutError::Disconnected));
            let now = (Timestamp::now(), Instant::now());
            let mut lines = Vec::new();
            for event in first.into_iter().chain(waiting.try_iter().take(AT_ONCE)) {
                self.state.waiting.fetch_sub(event.weight(), Ordering::Relaxed);
                match event {
                    AuditEvent::Change(record) if Actor::from(&record.cause).is_operator() => {
                        lines.extend(line::of_change(&record).into_iter().map(|line| (line, true)));
                    }
                    event => lines.extend(floods.record(event, now).into_iter().map(|line| (line, false))),
                }
            }
            let counted = if open {
                floods.take_expired(now.0)
            } else {
                floods.take_all()
            };
            lines.extend(counted.into_iter().map(|line| (line, false)));
            self.write(&lines, !open);
            if !open {
                return;
            }
        }
    }

    /// Writes these lines, and those by operators to their file, too, and syncs if that is due.
    fn write(&mut self, lines: &[(String, bool)], last: bool) {
        self.file.lost += self.state.dropped.swap(0, Ordering::Relaxed);
        // After a failure, only a successful sync ends the problem.
        let sync =
            last || self.state.problem.lock().is_some() || self.sync_due.is_some_and(|due| due <= Instant::now());
        if lines.is_empty() && self.file.lost == 0 && !sync {
            return;
        }
        let by_operators = lines.iter().filter(|(_, by_operator)| *by_operator);
        let mut errors = vec![
            self.file.append_all(lines.iter().map(|(line, _)| line.as_str())),
            self.of_operators
                .append_all(by_operators.map(|(line, _)| line.as_str())),
        ];
        if sync {
            errors.extend([&mut self.file, &mut self.of_operators].map(|one| one.sync().err()));
        }
        let error = errors.into_iter().flatten().next();
        let soon = Instant::now() + self.file.options.sync_within;
        self.sync_due = match (&error, sync) {
            (None, true) => None,
            (None, false) => self.sync_due.or(Some(soon)),
            (Some(_), _) => Some(soon),
        };
        self.publish_problem(error.as_ref());
    }

    fn publish_problem(&mut self, error: Option<&Error>) {
        let problem = error.map(|error| match self.file.lost.max(self.of_operators.lost) {
            0 => format!("audit log: {error}"),
            lost => format!("audit log: {lost} lines are lost: {error}"),
        });
        if let Some(problem) = &problem
            && self.logged.try_use(Instant::now())
        {
            tracing::error!("{problem}");
        }
        *self.state.problem.lock() = problem;
    }
}

#[cfg(test)]
mod tests;
