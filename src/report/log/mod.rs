//! The log of kills: one append-only file (`stateDir/kills.log`) of kills, checkpoints of the watcher, and
//! acknowledgements of destinations.
//!
//! - Kills and the checkpoint that counts them as told are one frame: after a crash at any byte both are there or neither.
//!   So the id of a kill is decided once, and durable before the kill is told.
//! - An entry is written before [`KillLog::commit`] returns, so it survives the agent. [`KillLog::sync`] makes it survive
//!   the machine; `task` calls it soon, once for many entries. Acknowledgements do not wait for the disk: a lost one costs
//!   a second delivery of the same id.
//! - A report stays until every destination has acknowledged it; the latest [`LATEST`] kills stay for operators.
//! - A torn end is cut off. A file with damage before its end is set aside; what came before the damage is kept. A file of
//!   a newer version is left alone. The files of the version before are carried over once (`carry_over`).
//! - Without room ([`Bounds`]) the oldest detail that no destination can have received becomes counts, first for each
//!   container, then for the node.
//! - While the disk refuses, everything is kept in memory within the same bounds, and written once the disk takes it.
//!
//! No report is dropped silently, and none is returned that was not stored.

mod aggregate;
mod carry_over;
mod commit;
mod entry;
mod file;
mod frame;
mod index;
mod replay;
mod room;
mod seen;
pub(super) mod task;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use file::{FileError, LogDirectory, LogFile, wide};
use index::{Index, Usage};

pub use commit::{Commit, Committed, Pending};
pub(super) use seen::{IdHash, SeenIds};

use super::content::Report;
use super::destination::{Destination, Destinations};
use crate::oom::OomReport;

/// So many of the latest kills are kept for operators.
pub const LATEST: usize = 256;

/// How much the log may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The length of the file in bytes; during a rewrite there are two files. One commit may exceed it for a moment.
    /// Reports that are not acknowledged may take half of it.
    pub max_bytes: u64,
    /// Reports that are not acknowledged.
    pub max_reports: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_bytes: 16 << 20,
            max_reports: 10_000,
        }
    }
}

/// The log, on disk as long as the disk takes it.
#[derive(Debug)]
pub struct KillLog {
    bounds: Bounds,
    selected: Destinations,
    path: Box<Path>,
    directory: Option<LogDirectory>,
    file: Option<LogFile>,
    index: Index,
    seen: SeenIds,
    checkpoint: Vec<u8>,
    troubles: Troubles,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Troubles {
    /// Why nothing is written at present.
    fault: Option<String>,
    /// What happened to the file when it was opened.
    opening: Option<String>,
    /// The length of the checkpoint that is too long to keep, in bytes.
    long_checkpoint: Option<usize>,
}

/// Counts since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Kills that lost their detail for want of room.
    pub folded: u64,
    /// Reports that could not be read back from the disk.
    pub lost: u64,
    /// Waits for the disk.
    pub syncs: u64,
}

/// What an earlier agent left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The last checkpoint; `None` in a new or unreadable log.
    pub checkpoint: Option<Vec<u8>>,
    /// The latest kills, oldest first.
    pub latest: Vec<Arc<OomReport>>,
    /// How many reports each selected destination has not acknowledged.
    pub pending: Vec<(Destination, usize)>,
    /// How many reports were given up, because their destinations are not selected any more.
    pub forgotten: usize,
    /// What is wrong, for people.
    pub problem: Option<String>,
}

impl KillLog {
    /// Opens the log in the state directory for these destinations. Never fails: without a usable disk the log is kept in
    /// memory, and [`Self::problem`] says why. Blocks.
    #[must_use]
    pub fn open(directory: &Path, bounds: Bounds, selected: Destinations) -> (Self, Recovered) {
        let mut log = Self {
            bounds,
            selected,
            path: directory.into(),
            directory: None,
            file: None,
            index: empty_index(&bounds),
            seen: SeenIds::new(bounds.max_reports),
            checkpoint: Vec::new(),
            troubles: Troubles::default(),
            totals: Totals::default(),
        };
        let forgotten = log.recover().unwrap_or_else(|error| {
            log.troubles.fault = Some(error.to_string());
            0
        });
        log.make_room();
        let usage = log.usage();
        let latest = log.index.latest().into_iter().filter_map(|number| log.read(number));
        let recovered = Recovered {
            checkpoint: Some(log.checkpoint.clone()).filter(|checkpoint| !checkpoint.is_empty()),
            latest: latest.filter_map(Report::into_kill).map(Arc::new).collect(),
            pending: selected
                .iter()
                .map(|one| (one, usage.pending_for[one.index()]))
                .collect(),
            forgotten,
            problem: log.problem(),
        };
        (log, recovered)
    }

    /// Reads the log and what the version before left. Returns how many reports were given up.
    fn recover(&mut self) -> Result<usize, FileError> {
        let directory = LogDirectory::lock(&self.path)?;
        let mut forgotten = 0;
        let mut rewrite = true;
        if let Some((mut file, bytes)) = directory.read()? {
            let seen = SeenIds::new(self.bounds.max_reports);
            let mut replayed = replay::replay(&file::HEADER, &bytes, empty_index(&self.bounds), seen);
            forgotten = replayed.forget_all_but(self.selected);
            rewrite = replayed.end < file::HEADER.len() || replayed.damage.is_some();
            if let Some(damage) = replayed.damage {
                let aside = directory.set_aside()?;
                self.troubles.opening = Some(format!(
                    "the log of OOM kills was damaged {damage}; what came before is kept, the file is now {}",
                    aside.display()
                ));
            } else if !rewrite {
                file.truncate(wide(replayed.end))?;
            }
            (self.index, self.seen) = (replayed.index, replayed.seen);
            self.checkpoint = replayed.checkpoint.unwrap_or_default();
            self.file = Some(file);
        }
        let before = carry_over::read(directory.path());
        self.directory = Some(directory);
        if let Some(before) = &before {
            forgotten += self.carry_over(before);
        }
        for destination in self.selected.iter() {
            // Which reports were on the way when the agent ended is not known: the oldest.
            let oldest = self.index.pending_after(destination, 0, destination.window());
            self.index.mark_in_flight(destination, &oldest);
        }
        if rewrite || before.is_some() {
            self.rewrite();
        }
        if !self.is_in_memory_only() {
            before.into_iter().for_each(|before| before.retire(&self.path));
            carry_over::warn_version_before(&self.path);
        }
        Ok(forgotten)
    }

    /// Waits until the disk has everything that was written. Blocks.
    pub fn sync(&mut self) {
        match self.file.as_mut().map(LogFile::sync) {
            Some(Ok(true)) => self.totals.syncs += 1,
            // The kernel forgets which pages it could not write (fsync(2)): only a new file can be trusted.
            Some(Err(error)) => self.troubles.fault = Some(error.to_string()),
            Some(Ok(false)) | None => {}
        }
    }

    /// Whether a power cut could still take something that [`Self::sync`] would save.
    pub fn is_dirty(&self) -> bool {
        self.file.as_ref().is_some_and(LogFile::is_dirty)
    }

    /// Tries to write what is only in memory. Returns whether everything is on disk. Blocks.
    pub fn restore(&mut self) -> bool {
        if self.troubles.fault.is_some() {
            if let Err(error) = self.lock_again() {
                self.troubles.fault = Some(error.to_string());
                return false;
            }
            self.rewrite();
        }
        self.troubles.fault.is_none()
    }

    /// Locks the directory if that was not possible before. A log there was not read at the start, and is not overwritten.
    fn lock_again(&mut self) -> Result<(), FileError> {
        if self.directory.is_some() {
            return Ok(());
        }
        let directory = LogDirectory::lock(&self.path)?;
        if directory.read()?.is_some() {
            let aside = directory.set_aside()?;
            self.troubles.opening = Some(format!(
                "a log of OOM kills turned up after the start, too late to be read; it is now {}",
                aside.display()
            ));
        }
        self.directory = Some(directory);
        Ok(())
    }

    /// What is wrong, for people.
    pub fn problem(&self) -> Option<String> {
        let fault = self.troubles.fault.as_ref().map(|fault| {
            format!(
                "OOM reports are kept in memory only, {} of them are not delivered: {fault}; check that stateDir is writable \
                 and has free space",
                self.usage().pending
            )
        });
        let lost = (self.totals.lost > 0)
            .then(|| format!("{} OOM reports could not be read back from the disk", self.totals.lost));
        let long = self.troubles.long_checkpoint.map(|length| {
            format!("the position in the log of OOM kills takes {length} bytes and is not kept; raise spoolMaxBytes")
        });
        let all: Vec<_> = [fault, self.troubles.opening.clone(), lost, long]
            .into_iter()
            .flatten()
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Whether nothing is written at present.
    pub const fn is_in_memory_only(&self) -> bool {
        self.troubles.fault.is_some()
    }

    /// The number of reports that some destination has not acknowledged.
    pub fn pending(&self) -> usize {
        self.usage().pending
    }

    pub(super) fn usage(&self) -> Usage {
        self.index.usage()
    }

    /// Counts since the log was opened.
    pub const fn totals(&self) -> Totals {
        self.totals
    }
}

const fn empty_index(bounds: &Bounds) -> Index {
    let quarter = bounds.max_reports / 4;
    Index::new(if quarter < LATEST { quarter } else { LATEST })
}
