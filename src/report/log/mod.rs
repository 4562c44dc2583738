//! The log of kills: one append-only file (`stateDir/kills.log`) of kills, checkpoints of the watcher, and acknowledgements
//! of destinations.
//!
//! - One frame holds kills and the checkpoint after them: after a crash at any byte both are there or neither. So the agent
//!   decides the id of a kill once, and makes the id durable before it publishes the kill.
//! - [`KillLog::commit`] writes an entry before it returns, so the entry survives the agent. [`KillLog::sync`] makes it
//!   survive the machine; `task` calls it soon, once for many entries. Acknowledgements do not wait for the disk: a lost one
//!   costs a second delivery of the same id.
//! - A report stays until every destination has acknowledged it; the latest [`LATEST`] kills stay for operators.
//! - The agent cuts off a torn end. It sets aside a file with damage before its end, and keeps the entries before the damage.
//!   It leaves a file of a newer version alone, and carries the files of the version before over once (`carry_over`).
//! - Without room ([`Bounds`]) the oldest detail that no destination can have received becomes counts, first for each
//!   container, then for the node.
//! - Memory holds all of the log, within the same bounds, and the disk repeats it: while the disk refuses nothing else
//!   changes, and the agent writes everything once the disk takes it.
//!
//! The log drops no report silently, and returns none that was not stored.

mod carry_over;
mod file;
mod frame;
mod room;
mod state;
pub(super) mod task;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use carry_over::EarlierFiles;
use file::{HEADER, LogFile};
use frame::{Acknowledged, Entry, Stored};
pub use state::Pending;
use state::State;
#[cfg(any(test, fuzzing))]
pub(crate) use state::fuzz_log;
pub(crate) use state::{IdHash, SeenIds};

use super::content::Report;
use super::destination::{Destination, Destinations};
use crate::failpoint::failpoint;
use crate::oom::OomReport;

/// How many of the latest kills the log keeps for operators.
pub const LATEST: usize = 256;
/// A report with longer JSON loses its detail. A report that a destination may have received cannot become a count, so one
/// report must not fill the log.
const LONGEST_REPORT: usize = 8 << 10;

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
    file: LogFile,
    state: State,
    totals: Totals,
    /// Why the log is in memory only.
    fault: Option<String>,
    /// What happened to the file when the agent opened it.
    opening: Option<String>,
    /// The length in bytes of the checkpoint that is too long to keep.
    long_checkpoint: Option<usize>,
}

/// Counts since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Kills that lost their detail for want of room.
    pub folded: u64,
    /// Damaged logs, whose reports behind the damage are lost, and reports that could not be written.
    pub lost: u64,
    pub syncs: u64,
}

/// The state of the log at one moment: for metrics, and for the list of problems.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// Reports that some destination has not acknowledged.
    pub reports: usize,
    pub bytes: u64,
    pub totals: Totals,
    /// A sentence for people, if anything is wrong.
    pub problem: Option<String>,
    pending_for: [usize; Destination::ALL.len()],
    /// The number of the last report.
    pub(super) last_number: u64,
}

impl LogStatus {
    /// Reports that a destination has not acknowledged.
    pub const fn pending_for(&self, destination: Destination) -> usize {
        self.pending_for[destination.index()]
    }
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
    /// How many reports have no selected destination any more.
    pub forgotten: usize,
    /// A sentence for people, if anything is wrong.
    pub problem: Option<String>,
}

/// Kills and a checkpoint that the log stores together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commit {
    pub reports: Vec<Arc<OomReport>>,
    /// The position of the watcher after these kills; `None` leaves the last one.
    pub checkpoint: Option<Vec<u8>>,
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Committed {
    pub stored: usize,
    /// Reports with the id of an earlier one, which the log dropped.
    pub duplicates: usize,
    /// Whether the disk has the commit; if not, memory has it, and [`KillLog::problem`] says why.
    pub on_disk: bool,
}

impl KillLog {
    /// Opens the log in the state directory for these destinations. Never fails: without a usable disk it keeps the log in
    /// memory, and [`Self::problem`] says why. Blocks.
    pub fn open(directory: &Path, bounds: Bounds, selected: Destinations) -> (Self, Recovered) {
        let mut log = Self {
            bounds,
            selected,
            file: LogFile::new(directory),
            state: State::new(LATEST.min(bounds.max_reports / 4), bounds.max_reports),
            totals: Totals::default(),
            fault: None,
            opening: None,
            long_checkpoint: None,
        };
        let recovered = log.recover();
        let forgotten = or_fault(&mut log.fault, recovered).unwrap_or(0);
        log.make_room();
        let status = log.status();
        let recovered = Recovered {
            checkpoint: Some(log.state.checkpoint.clone()).filter(|checkpoint| !checkpoint.is_empty()),
            latest: log.state.latest(),
            pending: selected.iter().map(|one| (one, status.pending_for(one))).collect(),
            forgotten,
            problem: status.problem,
        };
        (log, recovered)
    }

    /// Reads the log and the files of the version before. Returns how many reports have no selected destination any more.
    fn recover(&mut self) -> Result<usize> {
        let mut rewrite = true;
        if let Some(bytes) = self.file.open()? {
            let (end, damage) = self.state.replay(&HEADER, &bytes);
            if let Some(damage) = damage {
                let aside = self.file.set_aside()?;
                self.totals.lost += 1;
                self.opening = Some(format!(
                    "the log of OOM kills was damaged {damage}; what came before is kept, the file is now {}",
                    aside.display()
                ));
            } else if end >= HEADER.len() {
                self.file.truncate(end)?;
                rewrite = false;
            }
        }
        let earlier = EarlierFiles::read(&self.file.directory);
        rewrite |= !earlier.is_empty();
        self.carry_over(&earlier);
        let forgotten = self.state.forget_all_but(self.selected);
        for destination in self.selected.iter() {
            // The reports that were on the way when the agent ended are among the oldest.
            self.state.send_after(destination, 0, destination.window());
        }
        if rewrite {
            self.rewrite();
        }
        if !self.is_in_memory_only() {
            earlier.retire(&self.file.directory);
        }
        Ok(forgotten)
    }

    /// Stores all of this in one entry. Blocks.
    pub fn commit(&mut self, commit: Commit) -> Committed {
        let mut committed = Committed::default();
        let mut entry = Entry {
            checkpoint: commit.checkpoint.and_then(|checkpoint| self.new_checkpoint(checkpoint)),
            ..Entry::default()
        };
        let (mut reports, mut json) = (Vec::new(), Vec::new());
        for report in commit.reports {
            if !self.state.seen.insert(IdHash::of(&report.id)) {
                committed.duplicates += 1;
                continue;
            }
            committed.stored += 1;
            let (report, text) = match self.bounded(report.into()) {
                Ok(bounded) => bounded,
                Err(error) => {
                    tracing::error!(%error, "a report cannot be written");
                    self.totals.lost += 1;
                    continue;
                }
            };
            entry.stored.push(Stored {
                number: self.state.next_number(),
                pending: self.selected.bits(),
                length: length_of(&text),
            });
            reports.push(report);
            json.extend(text);
        }
        if entry.checkpoint.is_some() || !reports.is_empty() {
            failpoint("kills.seen");
            self.append(entry, reports, &json);
            failpoint("kills.appended");
            self.make_room();
            self.compact();
        }
        committed.on_disk = !self.is_in_memory_only();
        committed
    }

    /// The next reports after `after` that a destination has not acknowledged, oldest first. From now on the
    /// destination may have received them.
    pub fn next_for(&mut self, destination: Destination, after: u64, most: usize) -> Vec<Pending> {
        self.state.send_after(destination, after, most)
    }

    /// A destination acknowledges the reports with these numbers. Returns how many were pending for it. Blocks.
    pub fn acknowledge(&mut self, destination: Destination, numbers: &[u64]) -> usize {
        let numbers = numbers.iter().copied();
        let numbers: BTreeSet<u64> = numbers
            .filter(|number| self.state.is_pending(destination, *number))
            .collect();
        let count = numbers.len();
        if count > 0 {
            let acknowledged = Acknowledged {
                destinations: Destinations::from_iter([destination]).bits(),
                numbers: Vec::from_iter(numbers),
            };
            let entry = Entry {
                acknowledged: vec![acknowledged],
                ..Entry::default()
            };
            failpoint("kills.acknowledged");
            self.append(entry, Vec::new(), &[]);
            self.compact();
        }
        count
    }

    /// The report with its JSON, without detail if that is too long.
    fn bounded(&mut self, report: Report) -> serde_json::Result<(Report, Vec<u8>)> {
        let text = serde_json::to_vec(&report)?;
        if text.len() <= LONGEST_REPORT {
            return Ok((report, text));
        }
        self.totals.folded += 1;
        let report = Report::Aggregate(Box::new(report.into_aggregate()));
        let text = serde_json::to_vec(&report)?;
        Ok((report, text))
    }

    /// The checkpoint, if it has moved and is not too long to keep.
    fn new_checkpoint(&mut self, checkpoint: Vec<u8>) -> Option<Vec<u8>> {
        let fits = wide(checkpoint.len()) <= self.bounds.max_bytes / 4;
        self.long_checkpoint = (!fits).then_some(checkpoint.len());
        (fits && checkpoint != self.state.checkpoint).then_some(checkpoint)
    }

    /// Takes in an entry with its reports and appends it; rewrites the file where the entry finds no room.
    fn append(&mut self, entry: Entry, reports: Vec<Report>, json: &[u8]) {
        let frame = entry.frame(json).ok();
        let frame = frame
            .filter(|frame| self.file.is_in_place() && self.file.length + wide(frame.len()) <= self.bounds.max_bytes);
        self.state.apply(entry, reports);
        match frame {
            _ if self.is_in_memory_only() => {}
            Some(frame) => {
                let appended = or_fault(&mut self.fault, self.file.append(&frame));
                self.file.is_dirty |= appended.is_some() && !json.is_empty();
            }
            None => self.rewrite(),
        }
    }

    /// Waits until the disk has every report. Blocks.
    pub fn sync(&mut self) {
        // The kernel forgets which pages it could not write (fsync(2)): after an error only a new file can be trusted.
        let waited = or_fault(&mut self.fault, self.file.sync());
        self.totals.syncs += u64::from(waited == Some(true));
    }

    /// Whether a power cut could take a report that [`Self::sync`] would save.
    pub const fn is_dirty(&self) -> bool {
        self.file.is_dirty
    }

    /// Writes the log, if it is in memory only. Returns whether the disk has everything. Blocks.
    pub fn restore(&mut self) -> bool {
        if self.is_in_memory_only() {
            let opened = self.open_again();
            if or_fault(&mut self.fault, opened).is_some() {
                self.rewrite();
            }
        }
        !self.is_in_memory_only()
    }

    /// Opens the log if that was not possible before. Does not overwrite a log that the agent has not read at its start.
    fn open_again(&mut self) -> Result<()> {
        if !self.file.is_open && self.file.open()?.is_some() {
            let aside = self.file.set_aside()?;
            self.opening = Some(format!(
                "a log of OOM kills turned up after the start, too late to be read; it is now {}",
                aside.display()
            ));
        }
        Ok(())
    }

    /// A sentence for people, if anything is wrong.
    pub fn problem(&self) -> Option<String> {
        let fault = self.fault.as_ref().map(|fault| {
            format!(
                "OOM reports are kept in memory only, {} of them are not delivered: {fault}; check that stateDir is writable \
                 and has free space",
                self.pending()
            )
        });
        let long = self.long_checkpoint.map(|length| {
            format!("the position in the log of OOM kills takes {length} bytes and is not kept; raise spoolMaxBytes")
        });
        let problems: Vec<_> = [fault, self.opening.clone(), long].into_iter().flatten().collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Whether the disk lacks entries, and gets no more.
    pub const fn is_in_memory_only(&self) -> bool {
        self.fault.is_some()
    }

    /// The number of reports that some destination has not acknowledged.
    pub fn pending(&self) -> usize {
        self.state.pending().count()
    }

    pub(super) fn status(&self) -> LogStatus {
        let mut status = LogStatus {
            totals: self.totals,
            problem: self.problem(),
            last_number: self.state.last_number,
            ..LogStatus::default()
        };
        for slot in self.state.pending() {
            status.reports += 1;
            status.bytes += u64::from(slot.length);
            slot.pending.iter().for_each(|one| status.pending_for[one.index()] += 1);
        }
        status
    }
}

/// Makes an error the fault for which the log is in memory only.
fn or_fault<T>(fault: &mut Option<String>, result: Result<T>) -> Option<T> {
    result.inspect_err(|error| *fault = Some(format!("{error:#}"))).ok()
}

/// Reports of 4 GiB are cut down long before.
fn length_of(json: &[u8]) -> u32 {
    u32::try_from(json.len()).unwrap_or(u32::MAX)
}

/// A length in memory is at most 64 bits wide.
const fn wide(length: usize) -> u64 {
    length as u64
}
