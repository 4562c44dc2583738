//! A journal's bytes → what was pending when it was written last. Pure.
//!
//! Everything up to the first damage counts, nothing after it does: a step is believed only together with all before.
//! Reports that only destinations wait for which are not selected any more are given up, and counted.

use super::index::{Index, Place, Slot};
use super::step::{Head, read_report};
use super::{KIND, wide};
use crate::report::destination::{Destination, Destinations};
use crate::report::journal::frame::{self, OVERHEAD, Tail};
use crate::report::seen::{IdHash, Seen};

/// What a journal says.
#[derive(Debug)]
pub(super) struct Replayed {
    /// What is pending.
    pub(super) index: Index,
    /// Which ids were stored.
    pub(super) seen: Seen,
    /// The last checkpoint.
    pub(super) checkpoint: Option<Vec<u8>>,
    /// How many reports nobody who is selected is owed.
    pub(super) forgotten: usize,
    /// Where the last step ends: what comes after is worthless.
    pub(super) end: usize,
    /// What is wrong with the rest, if it is more than a torn end.
    pub(super) damage: Option<String>,
}

/// Reads a journal for these destinations; the others are not owed anything any more.
pub(super) fn replay(bytes: &[u8], selected: Destinations, remembered: usize) -> Replayed {
    let scanned = frame::scan(&KIND.header, bytes);
    let mut replayed = Replayed {
        index: Index::default(),
        seen: Seen::new(remembered),
        checkpoint: None,
        forgotten: 0,
        end: scanned.end,
        damage: None,
    };
    for payload in scanned.payloads {
        if let Err(reason) = replayed.take_step(&bytes[payload.clone()], payload.start) {
            replayed.end = payload.start - OVERHEAD;
            replayed.damage = Some(format!("at byte {}: {reason}", replayed.end));
            break;
        }
    }
    if replayed.damage.is_none() && scanned.tail == Tail::Damaged {
        replayed.damage = Some(match scanned.end {
            0 => "it is no journal of the version this agent writes".to_owned(),
            at => format!("at byte {at}: not what was written"),
        });
    }
    replayed.forget_all_but(selected);
    replayed.lend_what_may_have_been_sent(selected);
    replayed
}

impl Replayed {
    fn take_step(&mut self, payload: &[u8], at: usize) -> Result<(), String> {
        let (head, places) = Head::read(payload).map_err(|error| error.to_string())?;
        // All of it is understood before any of it counts.
        let mut slots = Vec::with_capacity(places.len());
        for (stored, place) in head.stored.iter().zip(places) {
            let json = &payload[place.clone()];
            let report = read_report(json).map_err(|error| error.to_string())?;
            let slot = Slot {
                owed: Destinations::from_bits(stored.owed),
                lent: Destinations::NONE,
                place: Place::File(wide(at + place.start)),
                length: stored.length,
                checksum: crc32fast::hash(json),
            };
            slots.push((stored.number, IdHash::of(&report.id()), slot));
        }
        self.seen.insert_bytes(&head.seen);
        self.index.beyond(head.next);
        for (number, id, slot) in slots {
            self.seen.insert(id);
            self.index.insert(number, slot);
        }
        for settled in &head.settled {
            let destinations = Destinations::from_bits(settled.destinations);
            for number in &settled.numbers {
                self.index.settle(destinations, *number);
            }
        }
        if head.checkpoint.is_some() {
            self.checkpoint = head.checkpoint;
        }
        Ok(())
    }

    fn forget_all_but(&mut self, selected: Destinations) {
        let before = self.index.len();
        let others: Destinations = Destination::ALL
            .into_iter()
            .filter(|one| !selected.contains(*one))
            .collect();
        for number in self.index.numbers() {
            self.index.settle(others, number);
        }
        self.forgotten = before - self.index.len();
    }

    /// Which reports were on the way when the agent ended is not known; they were the oldest.
    fn lend_what_may_have_been_sent(&mut self, selected: Destinations) {
        for destination in selected.iter() {
            let oldest = self.index.owed_after(destination, 0, Destination::window(destination));
            self.index.lend(destination, &oldest);
        }
    }
}
