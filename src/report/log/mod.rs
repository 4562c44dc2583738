//! The log of kills: one append-only file (`stateDir/kills.log`) of kills, checkpoints of the watcher, and acknowledgements
//! of destinations.
//!
//! - One frame holds kills and the checkpoint after them: after a crash at any byte both are there or neither. So the agent
//!   decides the id of a kill once, and makes the id durable before it publishes the kill.
//! - [`KillLog::commit`] writes an entry before it returns, so the entry survives the agent. [`KillLog::sync`] makes it
//!   survive the machine; the reporter calls it soon, once for many entries. Acknowledgements do not wait for the disk: a lost
//!   one costs a second delivery of the same id.
//! - A report stays until every destination has acknowledged it; the latest [`LATEST`] kills stay for operators.
//! - At its start the agent reads the log of the agent before (`file`); the reporter or the first commit writes a new one
//!   of its content. It drops a torn end. It sets aside a file with damage before its end, and keeps the entries before the
//!   damage. It leaves a file of a newer version alone.
//! - Without room ([`Bounds`]) the oldest reports that no destination can have received become counts, for each container,
//!   or, if that is not enough, for the node.
//! - Memory holds all of the log, within the same bounds, and the disk repeats it: while the disk refuses nothing else
//!   changes, and the agent writes everything once the disk takes it.
//!
//! The log drops no report silently, and returns none that was not stored.

mod file;
mod frame;
mod room;
pub(crate) mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use frame::{Acknowledged, Entry, Header};
pub use room::aggregate;
pub use state::Pending;
use state::{Slot, State, frame};

use prometheus_client::metrics::counter::Counter;

use super::content::Report;
use super::destination::{Destination, Destinations};
use super::reporter::Link;
use crate::failpoint::failpoint;
use crate::oom::OomReport;
use crate::share::places_of_most;

/// The name of the log in the state directory.
const FILE: &str = "kills.log";
/// The first bytes of the log: its kind and its version. A change that an older agent would misread raises the version.
const HEADER: Header = *b"vskills\x01";
/// How many of the latest kills the log keeps for operators.
pub const LATEST: usize = 256;
/// A report with longer JSON loses its detail. A report that a destination may have received cannot become a count, so one
/// report must not fill the log.
const LONGEST_REPORT: u32 = 8 << 10;

/// The place of the kill that too many lose: the oldest of the namespace with most.
pub fn oldest_of_most<'a>(kills: impl Iterator<Item = &'a OomReport>) -> usize {
    let namespaces = kills.map(|kill| kill.facts.pod.as_ref().map(|pod| pod.namespace.as_str()));
    places_of_most(namespaces).map_or(0, |(oldest, _)| oldest)
}

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
#[derive(Debug, Default)]
pub struct KillLog {
    bounds: Bounds,
    selected: Destinations,
    path: PathBuf,
    /// The file that the agent has written, if any.
    file: Option<File>,
    length: u64,
    /// Whether the file is still to be written, or a power cut could take a report that was appended.
    is_dirty: bool,
    /// A longer file is rewritten.
    rewrite_above: u64,
    state: State,
    totals: Totals,
    /// Whether the agent has read the log of an earlier agent. Before, it writes nothing.
    is_recovered: bool,
    /// Why the log is in memory only.
    fault: Option<String>,
    /// What is damaged in the file of the earlier agent, until the file is set aside.
    damage: Option<String>,
    /// The problem found when opening the file.
    opening: Option<String>,
}

/// Counts since the log was opened.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Kills that lost their detail for want of room.
    pub folded: Counter,
    /// Damaged logs, whose reports behind the damage are lost.
    pub lost: Counter,
    /// Waits for the disk.
    pub syncs: Counter,
}

/// The state of the log at one moment: for metrics, and for the list of problems.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// Reports that some destination has not acknowledged.
    pub reports: usize,
    pub bytes: u64,
    /// A sentence for people, if anything is wrong.
    pub problem: Option<String>,
    pub(super) pending_for: [usize; Destination::ALL.len()],
    /// The number of the last report.
    pub(super) last_number: u64,
    /// Whether the disk lacks something, or a power cut could take it.
    pub(super) is_unsaved: bool,
    /// Whether each destination can be reached, from the first attempt on.
    pub links: BTreeMap<Destination, Link>,
}

impl LogStatus {
    /// Reports that a destination has not acknowledged.
    pub const fn pending_for(&self, destination: Destination) -> usize {
        self.pending_for[destination.index()]
    }

    /// Present problems, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::from_iter(self.problem.clone());
        for (to, link) in &self.links {
            if let Link::Waiting { error, until } = link {
                let (name, pending) = (to.as_str(), self.pending_for(*to));
                problems.push(format!(
                    "{name}: {error}; {pending} reports wait, the next attempt is at {until:.0}"
                ));
            }
        }
        problems
    }
}

/// The content of the log from an earlier agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The last checkpoint; `None` in a new or unreadable log.
    pub checkpoint: Option<Vec<u8>>,
    /// The latest kills, oldest first.
    pub latest: Vec<Arc<OomReport>>,
    /// A sentence for people, if anything is wrong.
    pub problem: Option<String>,
}

impl KillLog {
    /// Reads the log in the state directory for these destinations. Never fails: without a usable disk it keeps the log in
    /// memory, and [`Self::problem`] says why. Leaves the file as it is until [`Self::sync`] or a commit. Blocks.
    pub fn open(directory: &Path, bounds: Bounds, selected: Destinations) -> (Self, Recovered) {
        let mut log = Self {
            bounds,
            selected,
            path: directory.join(FILE),
            ..Self::default()
        };
        log.recover_once();
        let recovered = Recovered {
            checkpoint: log.state.checkpoint.clone(),
            latest: log.state.latest(),
            problem: log.problem(),
        };
        (log, recovered)
    }

    /// Stores kills and the position of the watcher after them in one entry: together or not at all. No checkpoint leaves the
    /// last one. What the disk refuses, memory has ([`Self::problem`]). Blocks.
    pub fn commit(&mut self, reports: Vec<Report>, checkpoint: Option<Vec<u8>>) {
        let mut stored = Vec::new();
        for report in reports {
            let mut slot = Slot::new(report, self.selected);
            if slot.length > LONGEST_REPORT {
                let count = Report::Aggregate(Box::new(slot.report.into_aggregate()));
                slot = Slot::new(count, self.selected);
            }
            if slot.report.kill().is_none() {
                self.totals.folded.inc_by(slot.report.count());
            }
            let number = self.state.last_number + 1;
            self.state.insert(number, slot.clone());
            stored.push((number, slot));
        }
        let checkpoint = checkpoint.filter(|checkpoint| self.state.checkpoint.as_ref() != Some(checkpoint));
        if checkpoint.is_some() || !stored.is_empty() {
            failpoint("kills.seen");
            let frame = frame(checkpoint.clone(), &stored);
            self.state.checkpoint = checkpoint.or(self.state.checkpoint.take());
            self.append(frame, !stored.is_empty());
            failpoint("kills.appended");
            self.make_room();
        }
    }

    /// The next reports after `after` that a destination has not acknowledged and `admits` takes, oldest first. From now on
    /// the destination may have received them.
    pub fn next_for(
        &mut self,
        destination: Destination,
        after: u64,
        most: usize,
        mut admits: impl FnMut(u64, &Report) -> bool,
    ) -> Vec<Pending> {
        let later = self.state.slots.range_mut((Bound::Excluded(after), Bound::Unbounded));
        let pending = later
            .filter(|(number, slot)| slot.pending.contains(destination) && admits(**number, &slot.report))
            .take(most);
        let sent = pending.map(|(number, slot)| {
            slot.sent.insert(destination);
            Pending {
                number: *number,
                report: slot.report.clone(),
            }
        });
        sent.collect()
    }

    /// A destination acknowledges the reports with these numbers. Returns how many were pending for it. Blocks.
    pub fn acknowledge(&mut self, destination: Destination, numbers: &[u64]) -> usize {
        let destinations = Destinations::from(destination);
        let numbers = numbers.iter().copied();
        let acknowledged: Vec<u64> = numbers
            .filter(|number| self.state.acknowledge(destinations, *number))
            .collect();
        let count = acknowledged.len();
        if count > 0 {
            let entry = Entry {
                acknowledged: vec![Acknowledged {
                    destinations: destinations.bits().into(),
                    numbers: acknowledged,
                }],
                ..Entry::default()
            };
            failpoint("kills.acknowledged");
            self.append(entry.frame(&[]), false);
        }
        count
    }

    /// Reads the log of the agent before, unless that is done.
    fn recover_once(&mut self) {
        if !self.is_recovered
            && let Err(error) = self.recover()
        {
            self.fault = Some(format!("{error:#}"));
        }
    }

    /// A sentence for people, if anything is wrong.
    pub fn problem(&self) -> Option<String> {
        let fault = self.fault.as_ref().map(|fault| {
            format!(
                "reports of OOM kills are kept in memory only, {} of them are not delivered: {fault}; check that stateDir is writable \
                 and has free space",
                self.pending()
            )
        });
        let problems: Vec<_> = [fault, self.opening.clone()].into_iter().flatten().collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Whether the disk lacks entries, and gets no more.
    pub const fn is_in_memory_only(&self) -> bool {
        self.fault.is_some()
    }

    /// The number of reports that some destination has not acknowledged.
    pub fn pending(&self) -> usize {
        self.state.slots.len()
    }

    /// The counts of this log, for metrics.
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(super) fn status(&self) -> LogStatus {
        let mut status = LogStatus {
            reports: self.pending(),
            problem: self.problem(),
            last_number: self.state.last_number,
            is_unsaved: self.is_dirty || self.is_in_memory_only(),
            ..LogStatus::default()
        };
        for slot in self.state.slots.values() {
            status.bytes += u64::from(slot.length);
            slot.pending.iter().for_each(|one| status.pending_for[one.index()] += 1);
        }
        status
    }
}
