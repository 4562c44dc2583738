//! The latest reports and the watcher's checkpoint, in one file of the state directory.
//!
//! The file is a journal ([`crate::report::journal`]). A commit appends one frame: lines of JSON, the first of them the
//! checkpoint, empty if that stays as it was, each further one a report. So a commit takes as long as what is new, and
//! whenever the agent ends, what is there is of one commit. When much of the file is not needed any more, it is written
//! anew, which nobody waits for. The first commit of an agent does so, too; what an earlier one left is only read before.
//! A file that was damaged is set aside, and what came before the damage is kept.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::oom::OomReport;
use crate::oom::ledger::{Ledger, LedgerError};
use crate::report::journal::frame::{self, Tail};
use crate::report::journal::{Home, Journal, JournalError, Kind};

/// The files.
const KIND: Kind = Kind {
    header: *b"vscoom\x00\x01",
    file: "oom.journal",
    new_file: "oom.journal.new",
    set_aside: "oom.journal.set-aside",
    lock: "oom.lock",
};
/// So many reports are kept.
pub(super) const KEPT: usize = 256;
/// The file is written anew when it is twice as long as it was then, and this many bytes.
const ROOM: u64 = 1 << 20;

/// The file.
#[derive(Debug)]
pub(super) struct FileLedger {
    /// Behind a lock, since a commit that took too long goes on by itself.
    book: Arc<Mutex<Book>>,
}

/// What is in the file, and how to get more there.
#[derive(Debug)]
struct Book {
    directory: PathBuf,
    /// The right to write there.
    home: Option<Home>,
    /// Open once this agent has written it.
    journal: Option<Journal>,
    /// Longer than this, it is worth writing anew.
    full: u64,
    kept: VecDeque<Arc<OomReport>>,
    checkpoint: Vec<u8>,
}

/// What an earlier agent left.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) checkpoint: Option<Vec<u8>>,
    pub(super) reports: Vec<Arc<OomReport>>,
    /// Why that is not all.
    pub(super) problem: Option<String>,
}

impl FileLedger {
    /// Opens the file in that directory, which exists.
    pub(super) fn open(directory: &Path) -> (Self, Restored) {
        let path = directory.join(KIND.file);
        let mut restored = match fs::read(&path) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Restored::default(),
            Err(error) => Restored {
                problem: Some(error.to_string()),
                ..Restored::default()
            },
        };
        // Whoever cannot write now says so at the first commit.
        let home = Home::enter(&KIND, directory).ok();
        if let Some(problem) = &mut restored.problem {
            *problem = set_aside(&path, home.as_ref(), problem);
            tracing::error!("{problem}");
        }
        let book = Book {
            directory: directory.to_owned(),
            home,
            journal: None,
            full: 0,
            kept: restored.reports.iter().cloned().collect(),
            checkpoint: restored.checkpoint.clone().unwrap_or_default(),
        };
        let book = Arc::new(Mutex::new(book));
        (Self { book }, restored)
    }
}

impl Ledger for FileLedger {
    async fn commit(&mut self, reports: &[Arc<OomReport>], checkpoint: &[u8]) -> Result<(), LedgerError> {
        let (book, reports, checkpoint) = (Arc::clone(&self.book), reports.to_vec(), checkpoint.to_owned());
        let committed = tokio::task::spawn_blocking(move || {
            let mut locked = book.lock().unwrap_or_else(PoisonError::into_inner);
            locked.commit(&reports, checkpoint)?;
            if locked.is_wasteful() {
                drop(locked);
                tokio::task::spawn_blocking(move || {
                    book.lock().unwrap_or_else(PoisonError::into_inner).shorten();
                });
            }
            Ok::<(), NotWritten>(())
        });
        let committed = committed.await.map_err(|error| LedgerError(error.to_string()))?;
        committed.map_err(|error| LedgerError(error.to_string()))
    }
}

/// Why the file does not have something.
#[derive(Debug, thiserror::Error)]
enum NotWritten {
    #[error(transparent)]
    Files(#[from] JournalError),
    #[error("a report cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Book {
    /// Adds what is new. Blocks.
    fn commit(&mut self, reports: &[Arc<OomReport>], checkpoint: Vec<u8>) -> Result<(), NotWritten> {
        let is_new = |report: &&Arc<OomReport>| self.kept.iter().all(|kept| kept.id != report.id);
        let new: Vec<Arc<OomReport>> = reports.iter().filter(is_new).cloned().collect();
        if self.is_longer_than(self.full.saturating_mul(2)) {
            // Nobody has come to it.
            self.shorten();
        }
        // Another took its place and the disk would not say that it has it, or somebody tidied up.
        self.journal.take_if(|journal| !journal.is_in_place());
        if let Some(journal) = &mut self.journal {
            journal.append_frame(&payload(&checkpoint, &new)?)?;
            self.take(new, checkpoint);
            return Ok(());
        }
        let before = (self.kept.clone(), self.checkpoint.clone());
        self.take(new, checkpoint);
        self.write_anew().inspect_err(|_| (self.kept, self.checkpoint) = before)
    }

    fn take(&mut self, new: Vec<Arc<OomReport>>, checkpoint: Vec<u8>) {
        self.kept.extend(new);
        self.kept.drain(..self.kept.len().saturating_sub(KEPT));
        self.checkpoint = checkpoint;
    }

    fn is_wasteful(&self) -> bool {
        self.is_longer_than(self.full)
    }

    fn is_longer_than(&self, length: u64) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.length() > length)
    }

    /// Writes the file anew if it is still worth it. Blocks.
    fn shorten(&mut self) {
        if !self.is_wasteful() {
            return;
        }
        if let Err(error) = self.write_anew() {
            tracing::warn!(%error, "the file of kills grows on");
            self.full = self.full.saturating_add(ROOM);
        }
    }

    /// Writes all that is kept into a new file, which takes the place of the one there is. Blocks.
    fn write_anew(&mut self) -> Result<(), NotWritten> {
        let home = match self.home.take() {
            Some(home) => home,
            None => Home::enter(&KIND, &self.directory)?,
        };
        let home = self.home.insert(home);
        match written(home, &self.checkpoint, &self.kept) {
            Ok(journal) => {
                self.full = journal.length().saturating_mul(2).max(ROOM);
                self.journal = Some(journal);
                Ok(())
            }
            Err(error) => {
                home.abandon();
                Err(error)
            }
        }
    }
}

/// One frame for each report, so that not all of them are in memory once more.
fn written(home: &Home, checkpoint: &[u8], kept: &VecDeque<Arc<OomReport>>) -> Result<Journal, NotWritten> {
    let mut journal = home.begin()?;
    for report in kept {
        journal.append_frame(&payload(&[], std::slice::from_ref(report))?)?;
    }
    journal.append_frame(&payload(checkpoint, &[])?)?;
    Ok(home.replace(journal)?)
}

fn payload(checkpoint: &[u8], reports: &[Arc<OomReport>]) -> Result<Vec<u8>, serde_json::Error> {
    let mut payload = checkpoint.to_vec();
    for report in reports {
        payload.push(b'\n');
        serde_json::to_writer(&mut payload, &**report)?;
    }
    Ok(payload)
}

/// What the file holds, up to what is not understood.
fn parse(bytes: &[u8]) -> Restored {
    let scanned = frame::scan(&KIND.header, bytes);
    let mut restored = Restored::default();
    for payload in scanned.payloads {
        let at = payload.start;
        if let Err(error) = restored.take(&bytes[payload]) {
            restored.problem = Some(format!("at byte {at}: {error}"));
            return restored;
        }
    }
    restored.problem =
        (scanned.tail == Tail::Damaged).then(|| format!("at byte {}: not what was written", scanned.end));
    restored
}

impl Restored {
    fn take(&mut self, payload: &[u8]) -> Result<(), serde_json::Error> {
        let mut lines = payload.split(|byte| *byte == b'\n');
        let checkpoint = lines.next().unwrap_or_default();
        // All of it is understood before any of it counts.
        let reports: Vec<OomReport> = lines.map(serde_json::from_slice).collect::<Result<_, _>>()?;
        for report in reports {
            if self.reports.iter().all(|kept| kept.id != report.id) {
                self.reports.push(Arc::new(report));
            }
        }
        self.reports.drain(..self.reports.len().saturating_sub(KEPT));
        if !checkpoint.is_empty() {
            self.checkpoint = Some(checkpoint.to_owned());
        }
        Ok(())
    }
}

fn set_aside(path: &Path, home: Option<&Home>, error: &str) -> String {
    let whereto = match home.map(Home::set_aside) {
        Some(Ok(aside)) => format!("is now {}", aside.display()),
        Some(Err(error)) => format!("stays where it is: {error}"),
        None => "stays where it is: another vscaled uses it".to_owned(),
    };
    format!(
        "{} was not understood at the start ({error}) and {whereto}; kills that it told of after that may be told again",
        path.display()
    )
}

#[cfg(test)]
mod tests;
