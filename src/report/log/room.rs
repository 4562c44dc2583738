//! Keeps the log within its bounds: aggregates the oldest detail, and drops what is acknowledged from the file.

use std::io::{self, Write as _};

use super::aggregate::{Grain, aggregate};
use super::state::Slot;
use super::{KillLog, length_of, wide};

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
        let status = self.status();
        let within = |taken: u64, room: u64| taken <= room / denominator * numerator;
        within(status.bytes, self.bounds.max_bytes / 2)
            && within(wide(status.reports), wide(self.bounds.max_reports.max(4)))
    }

    fn aggregate(&mut self, grain: Grain, all: bool, divisor: usize) {
        let mut numbers = self.state.aggregatable(all);
        numbers.truncate(numbers.len().div_ceil(divisor));
        let slots = numbers
            .iter()
            .filter_map(|number| Some((*number, self.state.slots.get(number)?)));
        let reports = slots.map(|(number, slot)| (number, slot.pending, slot.report.clone()));
        let (changed, unchanged): (Vec<_>, Vec<_>) = aggregate(reports, grain).into_iter().partition(|one| one.changed);
        numbers.retain(|number| unchanged.binary_search_by_key(number, |one| one.number).is_err());
        for number in numbers {
            let removed = self.state.slots.remove(&number);
            self.totals.folded += u64::from(removed.is_some_and(|slot| slot.is_kill()));
        }
        for one in changed {
            // A destination that may have received one of the reports has asked for those after its number already.
            let number = if all { self.state.next_number() } else { one.number };
            // A length that cannot be known counts for nothing.
            let length = serde_json::to_vec(&one.report).map_or(0, |json| length_of(&json));
            self.state.insert(number, Slot::new(one.report, one.pending, length));
        }
    }

    /// Rewrites a file that is mostly about reports nobody needs any more.
    pub(super) fn compact(&mut self) {
        let small = SMALL.min(self.bounds.max_bytes / 4);
        if self.is_in_memory_only() || self.file.length() <= small {
            return;
        }
        let lengths = self.state.slots.values().map(|slot| u64::from(slot.length));
        let needed = lengths.sum::<u64>() + wide(self.state.checkpoint.len());
        if self.file.length() / 4 > needed {
            self.rewrite();
        }
    }

    /// Writes everything that is needed into a new file, which replaces the old one. If that fails, nothing more is written
    /// until [`KillLog::restore`] succeeds.
    pub(super) fn rewrite(&mut self) {
        if !self.file.is_open() {
            return;
        }
        let state = &self.state;
        let replaced = self.file.replace(|new| {
            for entry in state.entries() {
                let (entry, texts) = entry?;
                new.write_all(&entry.frame(&texts).ok_or(io::ErrorKind::FileTooLarge)?)?;
            }
            Ok(())
        });
        self.troubles.fault = replaced.err().map(|error| format!("{error:#}"));
        self.totals.syncs += u64::from(self.troubles.fault.is_none());
    }
}
