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
//! - Everything is in memory as well, within the same bounds, and the disk only repeats it: while the disk refuses nothing
//!   else changes, and everything is written once the disk takes it.
//!
//! No report is dropped silently, and none is returned that was not stored.

mod carry_over;
mod file;
mod frame;
mod room;
mod state;
pub(super) mod task;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use file::{HEADER, LogFile};
use frame::{Acknowledged, Entry, Stored};
use state::State;
#[cfg(any(test, fuzzing))]
pub(crate) use state::fuzz_log;
pub(crate) use state::{IdHash, SeenIds};

use super::content::Report;
use super::destination::{Destination, Destinations};
use crate::failpoint::failpoint;
use crate::oom::OomReport;

/// So many of the latest kills are kept for operators.
pub const LATEST: usize = 256;
/// A report with longer JSON loses its detail: what may have been received cannot be aggregated, so it
/// must not fill the log.
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
    /// What is wrong with it, for people.
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
    /// How many reports were given up, because their destinations are not selected any more.
    pub forgotten: usize,
    /// What is wrong, for people.
    pub problem: Option<String>,
}

/// What is stored together or not at all.
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
    /// Reports with the id of an earlier one: they were dropped.
    pub duplicates: usize,
    /// Whether it survives this process; if not, it is in memory, and [`KillLog::problem`] says why.
    pub on_disk: bool,
}

/// A report that a destination has not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Reports are delivered in the order of their numbers, and acknowledged by them.
    pub number: u64,
    pub report: Report,
}

impl KillLog {
    /// Opens the log in the state directory for these destinations. Never fails: without a usable disk the log is kept in
    /// memory, and [`Self::problem`] says why. Blocks.
    pub fn open(directory: &Path, bounds: Bounds, selected: Destinations) -> (Self, Recovered) {
        let mut log = Self {
            bounds,
            selected,
            file: LogFile::new(directory),
            state: empty(&bounds),
            troubles: Troubles::default(),
            totals: Totals::default(),
        };
        let forgotten = log.recover().unwrap_or_else(|error| {
            log.troubles.fault = Some(format!("{error:#}"));
            0
        });
        log.make_room();
        let status = log.status();
        let recovered = Recovered {
            checkpoint: Some(log.state.checkpoint.clone()).filter(|checkpoint| !checkpoint.is_empty()),
            latest: log.state.latest().filter_map(Report::kill).cloned().collect(),
            pending: selected.iter().map(|one| (one, status.pending_for(one))).collect(),
            forgotten,
            problem: status.problem,
        };
        (log, recovered)
    }

    /// Reads the log and what the version before left. Returns how many reports were given up.
    fn recover(&mut self) -> Result<usize> {
        let mut rewrite = true;
        if let Some(bytes) = self.file.open()? {
            let replayed = empty(&self.bounds).replay(&HEADER, &bytes);
            self.state = replayed.state;
            if let Some(damage) = replayed.damage {
                let aside = self.file.set_aside()?;
                self.totals.lost += 1;
                self.troubles.opening = Some(format!(
                    "the log of OOM kills was damaged {damage}; what came before is kept, the file is now {}",
                    aside.display()
                ));
            } else if replayed.end >= HEADER.len() {
                self.file.truncate(replayed.end)?;
                rewrite = false;
            }
        }
        let before = carry_over::read(&self.file.directory);
        rewrite |= !before.is_empty();
        self.carry_over(&before);
        let forgotten = self.state.forget_all_but(self.selected);
        for destination in self.selected.iter() {
            // Which reports were on the way when the agent ended is not known: the oldest.
            self.state
                .send_after(destination, 0, destination.window())
                .for_each(drop);
        }
        if rewrite {
            self.rewrite();
        }
        if !self.is_in_memory_only() {
            carry_over::retire(&before, &self.file.directory);
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
        let (mut reports, mut texts) = (Vec::new(), Vec::new());
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
            texts.push(text);
        }
        if entry.checkpoint.is_some() || !reports.is_empty() {
            failpoint("kills.seen");
            self.append(entry, reports, &texts);
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
        let next = self.state.send_after(destination, after, most);
        next.map(|(number, report)| Pending {
            number,
            report: report.clone(),
        })
        .collect()
    }

    /// A destination acknowledged these. Returns how many of them were pending for it. Blocks.
    pub fn acknowledge(&mut self, destination: Destination, numbers: &[u64]) -> usize {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| self.state.is_pending(destination, *number));
        let count = numbers.len();
        if count > 0 {
            let acknowledged = Acknowledged {
                destinations: Destinations::from_iter([destination]).bits(),
                numbers,
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

    /// The checkpoint, if it has moved and is not too long to be kept.
    fn new_checkpoint(&mut self, checkpoint: Vec<u8>) -> Option<Vec<u8>> {
        let fits = wide(checkpoint.len()) <= self.bounds.max_bytes / 4;
        self.troubles.long_checkpoint = (!fits).then_some(checkpoint.len());
        (fits && checkpoint != self.state.checkpoint).then_some(checkpoint)
    }

    /// Takes in an entry with its reports and writes it, with everything else where it finds no room behind what is there.
    fn append(&mut self, entry: Entry, reports: Vec<Report>, texts: &[Vec<u8>]) {
        let frame = entry
            .frame(texts)
            .filter(|frame| self.file.is_in_place() && self.file.length + wide(frame.len()) <= self.bounds.max_bytes);
        self.state.apply(entry, reports);
        if self.is_in_memory_only() {
            return;
        }
        let Some(frame) = frame else {
            return self.rewrite();
        };
        if let Err(error) = self.file.append(&frame) {
            self.troubles.fault = Some(format!("{error:#}"));
        }
    }

    /// Waits until the disk has everything that was written. Blocks.
    pub fn sync(&mut self) {
        match self.file.sync() {
            Ok(waited) => self.totals.syncs += u64::from(waited),
            // The kernel forgets which pages it could not write (fsync(2)): only a new file can be trusted.
            Err(error) => self.troubles.fault = Some(format!("{error:#}")),
        }
    }

    /// Whether a power cut could still take something that [`Self::sync`] would save.
    pub const fn is_dirty(&self) -> bool {
        self.file.is_dirty
    }

    /// Tries to write what is only in memory. Returns whether everything is on disk. Blocks.
    pub fn restore(&mut self) -> bool {
        if self.is_in_memory_only() {
            match self.open_again() {
                Ok(()) => self.rewrite(),
                Err(error) => self.troubles.fault = Some(format!("{error:#}")),
            }
        }
        !self.is_in_memory_only()
    }

    /// Opens the log if that was not possible before. One that is there was not read at the start, and is not overwritten.
    fn open_again(&mut self) -> Result<()> {
        if !self.file.is_open && self.file.open()?.is_some() {
            let aside = self.file.set_aside()?;
            self.troubles.opening = Some(format!(
                "a log of OOM kills turned up after the start, too late to be read; it is now {}",
                aside.display()
            ));
        }
        Ok(())
    }

    /// What is wrong, for people.
    pub fn problem(&self) -> Option<String> {
        let fault = self.troubles.fault.as_ref().map(|fault| {
            format!(
                "OOM reports are kept in memory only, {} of them are not delivered: {fault}; check that stateDir is writable \
                 and has free space",
                self.pending()
            )
        });
        let long = self.troubles.long_checkpoint.map(|length| {
            format!("the position in the log of OOM kills takes {length} bytes and is not kept; raise spoolMaxBytes")
        });
        let all = [fault, self.troubles.opening.clone(), long];
        let all: Vec<_> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Whether nothing is written at present.
    pub const fn is_in_memory_only(&self) -> bool {
        self.troubles.fault.is_some()
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

fn empty(bounds: &Bounds) -> State {
    State::new(LATEST.min(bounds.max_reports / 4), bounds.max_reports)
}

/// Reports of 4 GiB are cut down long before.
fn length_of(json: &[u8]) -> u32 {
    u32::try_from(json.len()).unwrap_or(u32::MAX)
}

/// A length in memory is at most 64 bits wide.
const fn wide(length: usize) -> u64 {
    length as u64
}
