//! Keeps the log within its bounds: aggregates the oldest detail, and drops what is acknowledged from the file.

use std::io;
use std::sync::Arc;

use super::KillLog;
use super::aggregate::{Aggregated, Grain, aggregate};
use super::commit::append_entry;
use super::entry::{Entry, Stored, to_json};
use super::file::{LogFile, NewLog, wide};
use super::index::{Place, Slot};
use crate::report::content::Report;

/// The reports of one entry of a rewritten log; more are spread over several.
const ENTRY_REPORTS: usize = 256;
/// A shorter file is not worth rewriting.
const SMALL: u64 = 4 << 20;

impl KillLog {
    /// Aggregates, if there is more than the bounds allow, until a quarter of the room is free: first the older half of
    /// the reports that no destination can have received, by container, then all of them, then by node. If that is not
    /// enough, reports that a destination may have received are aggregated, too, and it may be told of them twice.
    pub(super) fn make_room(&mut self) {
        if self.fits(1, 1) {
            return;
        }
        let stages = [
            (Grain::Container, false, 2),
            (Grain::Container, false, 1),
            (Grain::Node, false, 1),
            (Grain::Node, true, 1),
        ];
        for (grain, all, divisor) in stages {
            self.aggregate(grain, all, divisor);
            if self.fits(3, 4) {
                break;
            }
        }
        tracing::warn!(
            pending = self.pending(),
            folded = self.totals.folded,
            "the log of OOM kills is full: the oldest are only counted from now on"
        );
        self.rewrite();
    }

    /// Whether what is not acknowledged takes at most this part of the room for it.
    fn fits(&self, numerator: u64, denominator: u64) -> bool {
        let usage = self.usage();
        let within = |taken: u64, room: u64| taken <= room / denominator * numerator;
        within(usage.pending_bytes, self.bounds.max_bytes / 2)
            && within(wide(usage.pending), wide(self.bounds.max_reports.max(4)))
    }

    fn aggregate(&mut self, grain: Grain, all: bool, divisor: usize) {
        let mut numbers = self.index.aggregatable(all);
        numbers.truncate(numbers.len().div_ceil(divisor));
        let (mut unreadable, mut detailed) = (Vec::new(), 0u64);
        let reports = numbers.iter().filter_map(|number| {
            let (Some(report), Some(slot)) = (self.read(*number), self.index.get(*number)) else {
                unreadable.push(*number);
                return None;
            };
            detailed += u64::from(matches!(report, Report::Kill(_)));
            Some((*number, slot.pending, report))
        });
        let aggregated = aggregate(reports, grain);
        unreadable.into_iter().for_each(|number| self.give_up(number));
        let unchanged: Vec<u64> = aggregated
            .iter()
            .filter(|one| !one.changed)
            .map(|one| one.number)
            .collect();
        let changed = numbers.iter().filter(|number| unchanged.binary_search(number).is_err());
        changed.for_each(|number| drop(self.index.remove(*number)));
        for one in aggregated {
            detailed -= u64::from(matches!(one.report, Report::Kill(_)));
            if one.changed {
                self.put(&one, all);
            }
        }
        self.totals.folded += detailed;
    }

    fn put(&mut self, aggregated: &Aggregated, all: bool) {
        let Ok(json) = to_json(&aggregated.report) else {
            self.totals.lost += 1;
            return;
        };
        // A destination that may have received one of the reports has asked for those after its number already.
        let number = if all {
            self.index.next_number()
        } else {
            aggregated.number
        };
        let slot = Slot::new(aggregated.pending, &json, Place::Memory(Arc::from(json.as_slice())));
        self.index.insert(number, slot, false);
    }

    /// Rewrites a file that is mostly about reports nobody needs any more.
    pub(super) fn compact(&mut self) {
        let small = SMALL.min(self.bounds.max_bytes / 4);
        let is_long = |file: &LogFile| file.length() > small;
        if self.is_in_memory_only() || !self.file.as_ref().is_some_and(is_long) {
            return;
        }
        let needed = self.usage().bytes + wide(self.checkpoint.len());
        if self.file.as_ref().is_some_and(|file| file.length() / 4 > needed) {
            self.rewrite();
        }
    }

    /// Writes everything that is needed into a new file, which replaces the old one. If that fails, everything stays where
    /// it is, and nothing more is written until [`KillLog::restore`] succeeds.
    pub(super) fn rewrite(&mut self) {
        let Some(directory) = self.directory.take() else {
            return;
        };
        let mut places = Vec::new();
        let replaced = directory.replace(|new| {
            places = self.write_all(new)?;
            Ok(())
        });
        match replaced {
            Ok(file) => {
                self.file = Some(file);
                self.troubles.fault = None;
                self.totals.syncs += 1;
                for (number, place) in places {
                    self.index.relocate(number, place);
                }
            }
            Err(error) => self.troubles.fault = Some(error.to_string()),
        }
        self.directory = Some(directory);
    }

    fn write_all(&mut self, new: &mut NewLog<'_>) -> io::Result<Vec<(u64, Place)>> {
        let entry = Entry {
            checkpoint: Some(self.checkpoint.clone()).filter(|checkpoint| !checkpoint.is_empty()),
            last_number: self.index.last_number(),
            known_ids: self.seen.to_bytes(),
            ..Entry::default()
        };
        append_entry(new, &entry, &[])?;
        let mut places = Vec::new();
        for numbers in self.index.numbers().chunks(ENTRY_REPORTS) {
            let (mut stored, mut texts) = (Vec::new(), Vec::new());
            for number in numbers {
                match (self.read_json(*number), self.index.get(*number)) {
                    (Some(json), Some(slot)) => {
                        stored.push(Stored {
                            number: *number,
                            pending: slot.pending.bits(),
                            length: slot.length,
                        });
                        texts.push(json);
                    }
                    (None, _) | (_, None) => self.give_up(*number),
                }
            }
            let numbers: Vec<_> = stored.iter().map(|stored| stored.number).collect();
            let entry = Entry {
                stored,
                ..Entry::default()
            };
            let texts: Vec<_> = texts.iter().map(AsRef::as_ref).collect();
            places.extend(numbers.into_iter().zip(append_entry(new, &entry, &texts)?));
        }
        Ok(places)
    }
}
