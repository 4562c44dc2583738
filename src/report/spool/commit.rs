//! What goes in and out: kills with a checkpoint, reports for a destination, acknowledgements.

use std::sync::Arc;

use super::index::{Place, Slot};
use super::step::{Head, Settled, Stored, read_report, write_report};
use super::{Journal, JournalError, Spool, wide};
use crate::oom::OomReport;
use crate::report::content::Report;
use crate::report::destination::{Destination, Destinations};
use crate::report::journal::frame;
use crate::report::seen::IdHash;

/// A report with a longer text loses its detail: what may have been sent cannot be folded, so it must not fill the spool.
const LONGEST_REPORT: usize = 8 << 10;

/// What happens together: these kills, and the watcher's position after them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commit {
    /// Kills, oldest first.
    pub reports: Vec<OomReport>,
    /// What the watcher wants to find again; `None` leaves the last one.
    pub checkpoint: Option<Vec<u8>>,
}

/// What became of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Committed {
    /// New reports.
    pub stored: usize,
    /// Reports whose ids were stored before: they were dropped.
    pub duplicates: usize,
    /// Whether it survives this process; if not, it is in memory, and [`Spool::problem`] says why.
    pub on_disk: bool,
}

/// A report that a destination is owed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owed {
    /// Its number, to acknowledge it by; reports are told in the order of their numbers.
    pub number: u64,
    /// The report.
    pub report: Report,
}

/// A new report.
struct New {
    number: u64,
    json: Vec<u8>,
}

impl Spool {
    /// Stores all of this in one step; of the checkpoints the last counts. Blocks.
    pub fn commit(&mut self, commits: Vec<Commit>) -> Vec<Committed> {
        let mut done = Vec::with_capacity(commits.len());
        let (mut new, mut checkpoint) = (Vec::new(), None);
        for commit in commits {
            let mut committed = Committed::default();
            for report in commit.reports {
                if self.seen.insert(IdHash::of(&report.id)) {
                    committed.stored += 1;
                    new.extend(self.prepared(report));
                } else {
                    committed.duplicates += 1;
                }
            }
            checkpoint = commit.checkpoint.or(checkpoint);
            done.push(committed);
        }
        let checkpoint = checkpoint.and_then(|checkpoint| self.short_enough(checkpoint));
        let moved = checkpoint
            .as_ref()
            .is_some_and(|checkpoint| *checkpoint != self.checkpoint);
        if moved || !new.is_empty() {
            self.take_in(&new, checkpoint);
        }
        for committed in &mut done {
            committed.on_disk = !self.is_in_memory_only();
        }
        done
    }

    /// The next reports after `after` for a destination, oldest first, at most so many. It may have got them from now on.
    /// Blocks.
    pub fn take(&mut self, destination: Destination, after: u64, most: usize) -> Vec<Owed> {
        let mut taken = Vec::new();
        for number in self.index.owed_after(destination, after, most) {
            match self.read(number) {
                Some(report) => taken.push(Owed { number, report }),
                None => self.lose(number),
            }
        }
        let numbers: Vec<_> = taken.iter().map(|owed| owed.number).collect();
        self.index.lend(destination, &numbers);
        taken
    }

    /// A destination has these, and does not need them again. How many of them it was owed. Blocks.
    pub fn settle(&mut self, destination: Destination, numbers: &[u64]) -> usize {
        let only = Destinations::from_iter([destination]);
        let settled: Vec<_> = numbers
            .iter()
            .copied()
            .filter(|number| self.index.settle(only, *number))
            .collect();
        if !settled.is_empty() {
            let count = settled.len();
            let head = Head {
                settled: vec![Settled {
                    destinations: only.bits(),
                    numbers: settled,
                }],
                ..Head::default()
            };
            self.append(&head, &[]);
            self.compact_if_wasteful();
            return count;
        }
        0
    }

    /// A report as text, with a number. `None` if nobody is to be told.
    fn prepared(&mut self, report: OomReport) -> Option<New> {
        if self.selected.is_empty() {
            return None;
        }
        let id = report.id.clone();
        let report = Report::from(report);
        let written = match write_report(&report) {
            Ok(json) if json.len() > LONGEST_REPORT => {
                self.totals.folded += 1;
                write_report(&Report::Folded(Box::new(report.folded())))
            }
            written => written,
        };
        match written {
            Ok(json) => Some(New {
                number: self.index.take_number(),
                json,
            }),
            Err(error) => {
                tracing::error!(id, %error, "a report cannot be written");
                self.totals.lost += 1;
                None
            }
        }
    }

    fn short_enough(&mut self, checkpoint: Vec<u8>) -> Option<Vec<u8>> {
        let fits = wide(checkpoint.len()) <= self.bounds.max_bytes / 4;
        self.troubles.long_checkpoint = (!fits).then_some(checkpoint.len());
        fits.then_some(checkpoint)
    }

    /// Writes new reports and a checkpoint, and makes them pending.
    fn take_in(&mut self, new: &[New], checkpoint: Option<Vec<u8>>) {
        let head = Head {
            checkpoint: checkpoint.clone(),
            next: self.index.next(),
            stored: new.iter().map(|new| new.stored(self.selected)).collect(),
            ..Head::default()
        };
        let texts: Vec<_> = new.iter().map(|new| new.json.as_slice()).collect();
        let places = self.append(&head, &texts);
        for (at, new) in new.iter().enumerate() {
            let place = match places.as_ref().and_then(|places| places.get(at)) {
                Some(place) => Place::File(*place),
                None => Place::Memory(Arc::from(new.json.as_slice())),
            };
            self.index.insert(new.number, new.slot(self.selected, place));
        }
        if let Some(checkpoint) = checkpoint {
            self.checkpoint = checkpoint;
        }
        self.make_room();
        self.compact_if_wasteful();
    }

    /// Appends a step, and says where its reports lie. `None` if the disk did not take it.
    fn append(&mut self, head: &Head, texts: &[&[u8]]) -> Option<Vec<u64>> {
        if self.is_in_memory_only() {
            return None;
        }
        let length: usize = texts.iter().map(|text| text.len()).sum();
        let full = |journal: &Journal| journal.length() + wide(length) > self.bounds.max_bytes;
        if self.journal.as_ref().is_some_and(full) {
            self.rewrite();
            if self.is_in_memory_only() {
                return None;
            }
        }
        match append_step(self.journal.as_mut()?, head, texts) {
            Ok(places) => Some(places),
            Err(error) => {
                self.troubles.fault = Some(error.to_string());
                None
            }
        }
    }

    /// Reads a pending report back.
    pub(super) fn read(&self, number: u64) -> Option<Report> {
        let json = self.read_text(number)?;
        read_report(&json).ok()
    }

    /// The text of a pending report, if it is still what was written.
    pub(super) fn read_text(&self, number: u64) -> Option<Arc<[u8]>> {
        let slot = self.index.get(number)?;
        let text = match &slot.place {
            Place::Memory(text) => Arc::clone(text),
            Place::File(at) => {
                let length = usize::try_from(slot.length).ok()?;
                match self.journal.as_ref()?.read_at(*at, length) {
                    Ok(text) => text.into(),
                    Err(error) => {
                        tracing::error!(number, %error, "a report could not be read back");
                        return None;
                    }
                }
            }
        };
        (crc32fast::hash(&text) == slot.checksum).then_some(text)
    }

    /// Gives up a report that cannot be read back.
    pub(super) fn lose(&mut self, number: u64) {
        if self.index.remove(number).is_some() {
            tracing::error!(
                number,
                "a report is lost: the disk does not give it back as it was written"
            );
            self.totals.lost += 1;
        }
    }
}

impl New {
    fn stored(&self, owed: Destinations) -> Stored {
        Stored {
            number: self.number,
            owed: owed.bits(),
            length: length_of(&self.json),
        }
    }

    fn slot(&self, owed: Destinations, place: Place) -> Slot {
        Slot {
            owed,
            lent: Destinations::NONE,
            place,
            length: length_of(&self.json),
            checksum: crc32fast::hash(&self.json),
        }
    }
}

/// No report is longer than [`LONGEST_REPORT`] by much.
pub(super) fn length_of(json: &[u8]) -> u32 {
    u32::try_from(json.len()).unwrap_or(u32::MAX)
}

/// Appends a step to a journal, and says where its reports lie.
///
/// # Errors
/// [`JournalError`]; then nothing was appended.
pub(super) fn append_step(journal: &mut Journal, head: &Head, texts: &[&[u8]]) -> Result<Vec<u64>, JournalError> {
    let payload = head.payload(texts);
    let texts_length: usize = texts.iter().map(|text| text.len()).sum();
    let mut offset = frame::OVERHEAD + payload.len() - texts_length;
    let at = journal.append_frame(&payload)?;
    let mut places = Vec::with_capacity(texts.len());
    for text in texts {
        places.push(at + wide(offset));
        offset += text.len();
    }
    Ok(places)
}
