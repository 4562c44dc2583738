//! Keeps the spool within its bounds: folds the oldest detail into counts, and leaves behind what is settled.

use std::sync::Arc;

use super::commit::{append_step, length_of};
use super::index::{Place, Slot};
use super::step::{Head, Stored, write_report};
use super::{Home, Journal, JournalError, Spool, wide};
use crate::report::content::Report;
use crate::report::destination::Destinations;
use crate::report::fold::{Folder, Grain, Kept};

/// The reports of one step of a rewritten journal; more are spread over several.
const STEP_REPORTS: usize = 256;
/// A shorter journal is not worth rewriting.
const SMALL: u64 = 4 << 20;

/// Where rewritten reports lie, by number.
type Places = Vec<(u64, u64)>;

impl Spool {
    /// Folds, if there is more than the bounds allow, until a quarter of the room is free: first the older half of what
    /// nobody can have got, by container, then all of it, then by node. If all that is not enough, what somebody may have
    /// got is folded, too, and they may be told of it twice.
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
        for (grain, everything, divisor) in stages {
            self.fold(grain, everything, divisor);
            if self.fits(3, 4) {
                break;
            }
        }
        tracing::warn!(
            reports = self.index.len(),
            folded = self.totals.folded,
            "the spool of OOM reports is full: the oldest are only counted from now on"
        );
        self.rewrite();
    }

    /// Whether what is pending takes at most this part of the room for it.
    fn fits(&self, numerator: u64, denominator: u64) -> bool {
        let within = |taken: u64, room: u64| taken <= room / denominator * numerator;
        within(self.index.bytes(), self.bounds.max_bytes / 2)
            && within(wide(self.index.len()), wide(self.bounds.max_reports.max(4)))
    }

    fn fold(&mut self, grain: Grain, everything: bool, divisor: usize) {
        let mut numbers = self.index.foldable(everything);
        numbers.truncate(numbers.len().div_ceil(divisor));
        let mut folder = Folder::new(grain);
        let mut detailed = 0u64;
        for number in &numbers {
            match (self.read(*number), self.index.get(*number)) {
                (Some(report), Some(slot)) => {
                    detailed += u64::from(matches!(report, Report::Kill(_)));
                    folder.add(*number, slot.owed, report);
                }
                (None, _) | (_, None) => self.lose(*number),
            }
        }
        let kept = folder.finish();
        let still: Vec<_> = kept
            .iter()
            .filter(|kept| !kept.changed)
            .map(|kept| kept.number)
            .collect();
        for number in numbers.iter().filter(|number| still.binary_search(number).is_err()) {
            self.index.remove(*number);
        }
        for kept in kept {
            detailed -= u64::from(matches!(kept.report, Report::Kill(_)));
            if kept.changed {
                self.put(&kept, everything);
            }
        }
        self.totals.folded += detailed;
    }

    fn put(&mut self, kept: &Kept, everything: bool) {
        let Ok(json) = write_report(&kept.report) else {
            self.totals.lost += 1;
            return;
        };
        // Nobody has asked for anything after the number of what could not have been got. Of the rest somebody has.
        let number = if everything {
            self.index.take_number()
        } else {
            kept.number
        };
        let slot = Slot {
            owed: kept.owed,
            lent: Destinations::NONE,
            length: length_of(&json),
            checksum: crc32fast::hash(&json),
            place: Place::Memory(Arc::from(json)),
        };
        self.index.insert(number, slot);
    }

    /// Rewrites a journal that is mostly about settled reports.
    pub(super) fn compact_if_wasteful(&mut self) {
        let small = SMALL.min(self.bounds.max_bytes / 4);
        let wasteful = |journal: &Journal| {
            journal.length() > small && journal.length() / 4 > self.index.bytes() + wide(self.checkpoint.len())
        };
        if self.troubles.fault.is_none() && self.journal.as_ref().is_some_and(wasteful) {
            self.rewrite();
        }
    }

    /// Writes all that is pending into a new journal, which takes the place of the old one. If that fails, everything
    /// stays where it is, and nothing more is written until [`Spool::restore`] succeeds.
    pub(super) fn rewrite(&mut self) {
        let Some(home) = self.home.take() else { return };
        match self.rewritten(&home) {
            Ok((journal, places)) => {
                self.journal = Some(journal);
                self.troubles.fault = None;
                self.totals.syncs += 1;
                for (number, place) in places {
                    self.index.moved(number, place);
                }
            }
            Err(error) => {
                home.abandon();
                self.troubles.fault = Some(error.to_string());
            }
        }
        self.home = Some(home);
    }

    fn rewritten(&mut self, home: &Home) -> Result<(Journal, Places), JournalError> {
        let mut journal = home.begin()?;
        let head = Head {
            checkpoint: Some(self.checkpoint.clone()).filter(|checkpoint| !checkpoint.is_empty()),
            next: self.index.next(),
            seen: self.seen.to_bytes(),
            ..Head::default()
        };
        append_step(&mut journal, &head, &[])?;
        let mut places = Vec::with_capacity(self.index.len());
        for numbers in self.index.numbers().chunks(STEP_REPORTS) {
            let (mut stored, mut texts) = (Vec::new(), Vec::new());
            for number in numbers {
                match (self.read_text(*number), self.index.get(*number)) {
                    (Some(text), Some(slot)) => {
                        stored.push(Stored {
                            number: *number,
                            owed: slot.owed.bits(),
                            length: slot.length,
                        });
                        texts.push(text);
                    }
                    (None, _) | (_, None) => self.lose(*number),
                }
            }
            let kept: Vec<_> = stored.iter().map(|stored| stored.number).collect();
            let head = Head {
                stored,
                ..Head::default()
            };
            let texts: Vec<_> = texts.iter().map(AsRef::as_ref).collect();
            places.extend(kept.into_iter().zip(append_step(&mut journal, &head, &texts)?));
        }
        Ok((home.replace(journal)?, places))
    }
}
