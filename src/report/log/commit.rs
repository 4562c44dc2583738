//! Writing to and reading from the log: kills with a checkpoint, reports for a destination, acknowledgements.

use std::sync::Arc;

use super::entry::{Acknowledged, Entry, Stored, from_json, to_json};
use super::file::{AppendFrame, LogFile, wide};
use super::index::{Place, Slot, length_of};
use super::{IdHash, KillLog};
use crate::oom::OomReport;
use crate::report::content::Report;
use crate::report::destination::{Destination, Destinations};

/// A report with longer JSON loses its detail: what may have been received cannot be aggregated, so it
/// must not fill the log.
const LONGEST_REPORT: usize = 8 << 10;

/// What is stored together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commit {
    pub reports: Vec<OomReport>,
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

struct New {
    number: u64,
    json: Vec<u8>,
    is_kill: bool,
}

impl KillLog {
    /// Stores all of this in one entry; of the checkpoints the last counts. Blocks.
    pub fn commit(&mut self, commits: Vec<Commit>) -> Vec<Committed> {
        let mut done = Vec::with_capacity(commits.len());
        let (mut new, mut checkpoint) = (Vec::new(), None);
        for commit in commits {
            let mut committed = Committed::default();
            for report in commit.reports {
                if self.seen.insert(IdHash::of(&report.id)) {
                    committed.stored += 1;
                    new.extend(self.prepare(report.into()));
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
            self.store(&new, checkpoint);
        }
        for committed in &mut done {
            committed.on_disk = !self.is_in_memory_only();
        }
        done
    }

    /// The next reports after `after` that a destination has not acknowledged, oldest first. From now on the destination
    /// may have received them. Blocks.
    pub fn next_for(&mut self, destination: Destination, after: u64, most: usize) -> Vec<Pending> {
        let mut next = Vec::new();
        for number in self.index.pending_after(destination, after, most) {
            match self.read(number) {
                Some(report) => next.push(Pending { number, report }),
                None => self.give_up(number),
            }
        }
        let numbers: Vec<_> = next.iter().map(|pending| pending.number).collect();
        self.index.mark_in_flight(destination, &numbers);
        next
    }

    /// A destination acknowledged these. Returns how many of them were pending for it. Blocks.
    pub fn acknowledge(&mut self, destination: Destination, numbers: &[u64]) -> usize {
        let only = Destinations::from_iter([destination]);
        let numbers = numbers.iter().copied();
        let numbers: Vec<_> = numbers.filter(|number| self.index.acknowledge(only, *number)).collect();
        let count = numbers.len();
        if count > 0 {
            let entry = Entry {
                acknowledged: vec![Acknowledged {
                    destinations: only.bits(),
                    numbers,
                }],
                ..Entry::default()
            };
            self.append(&entry, &[]);
            self.compact();
        }
        count
    }

    /// Gives a report a number and its text.
    fn prepare(&mut self, report: Report) -> Option<New> {
        let id = report.id().into_owned();
        let mut is_kill = true;
        let json = match to_json(&report) {
            Ok(json) if json.len() > LONGEST_REPORT => {
                self.totals.folded += 1;
                is_kill = false;
                to_json(&Report::Aggregate(Box::new(report.into_aggregate())))
            }
            json => json,
        };
        match json {
            Ok(json) => Some(New {
                number: self.index.next_number(),
                json,
                is_kill,
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

    /// Writes new reports with a checkpoint, and makes them pending.
    fn store(&mut self, new: &[New], checkpoint: Option<Vec<u8>>) {
        let entry = Entry {
            checkpoint: checkpoint.clone(),
            last_number: self.index.last_number(),
            stored: new.iter().map(|new| new.stored(self.selected)).collect(),
            ..Entry::default()
        };
        let texts: Vec<_> = new.iter().map(|new| new.json.as_slice()).collect();
        let mut places = self.append(&entry, &texts).unwrap_or_default().into_iter();
        for new in new {
            let in_memory = || Place::Memory(Arc::from(new.json.as_slice()));
            let place = places.next().unwrap_or_else(in_memory);
            let slot = Slot::new(self.selected, &new.json, place);
            self.index.insert(new.number, slot, new.is_kill);
        }
        if let Some(checkpoint) = checkpoint {
            self.checkpoint = checkpoint;
        }
        self.make_room();
        self.compact();
    }

    /// Appends an entry. Returns where its reports lie; `None` if the disk did not take it.
    fn append(&mut self, entry: &Entry, texts: &[&[u8]]) -> Option<Vec<Place>> {
        if self.is_in_memory_only() {
            return None;
        }
        let length = wide(texts.iter().map(|text| text.len()).sum());
        let fits = |file: &LogFile| file.is_in_place() && file.length() + length <= self.bounds.max_bytes;
        if !self.file.as_ref().is_some_and(fits) {
            self.rewrite();
            if self.is_in_memory_only() {
                return None;
            }
        }
        match append_entry(self.file.as_mut()?, entry, texts) {
            Ok(places) => Some(places),
            Err(error) => {
                self.troubles.fault = Some(error.to_string());
                None
            }
        }
    }

    pub(super) fn read(&self, number: u64) -> Option<Report> {
        from_json(&self.read_json(number)?).ok()
    }

    /// The JSON of a report, if it is still what was written.
    pub(super) fn read_json(&self, number: u64) -> Option<Arc<[u8]>> {
        let slot = self.index.get(number)?;
        let json = match &slot.place {
            Place::Memory(json) => Arc::clone(json),
            Place::File(at) => {
                let length = usize::try_from(slot.length).ok()?;
                match self.file.as_ref()?.read_at(*at, length) {
                    Ok(json) => json.into(),
                    Err(error) => {
                        tracing::error!(number, %error, "a report could not be read back");
                        return None;
                    }
                }
            }
        };
        (crc32fast::hash(&json) == slot.checksum).then_some(json)
    }

    /// Gives up a report that cannot be read back.
    pub(super) fn give_up(&mut self, number: u64) {
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
    fn stored(&self, pending: Destinations) -> Stored {
        Stored {
            number: self.number,
            pending: pending.bits(),
            length: length_of(&self.json),
        }
    }
}

/// Appends an entry with its reports. Returns where the reports lie.
pub(super) fn append_entry<F: AppendFrame>(
    file: &mut F,
    entry: &Entry,
    texts: &[&[u8]],
) -> Result<Vec<Place>, F::Error> {
    let (payload, first) = entry.payload(texts);
    let mut at = file.append_frame(&payload)? + wide(first);
    let mut places = Vec::with_capacity(texts.len());
    for text in texts {
        places.push(Place::File(at));
        at += wide(text.len());
    }
    Ok(places)
}
