//! The bytes of a log → the state in which it was written last. Pure.
//!
//! Everything up to the first damage counts, nothing after it: an entry is believed only together with all before.

use super::entry::{Entry, from_json};
use super::file::wide;
use super::frame::{self, Header, OVERHEAD, Tail};
use super::index::{Index, Place, Slot};
use super::seen::{IdHash, SeenIds};
use crate::report::content::Report;
use crate::report::destination::{Destination, Destinations};

#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) index: Index,
    pub(super) seen: SeenIds,
    pub(super) checkpoint: Option<Vec<u8>>,
    /// The end of the last good entry; what follows is worthless.
    pub(super) end: usize,
    /// What is wrong with the rest, unless it is a torn end.
    pub(super) damage: Option<String>,
}

/// Reads a log with this header into `index` and `seen`.
pub(super) fn replay(header: &Header, bytes: &[u8], index: Index, seen: SeenIds) -> Replayed {
    let scanned = frame::scan(header, bytes);
    let mut replayed = Replayed {
        index,
        seen,
        checkpoint: None,
        end: scanned.end,
        damage: None,
    };
    for payload in scanned.payloads {
        if let Err(reason) = replayed.apply(&bytes[payload.clone()], payload.start) {
            replayed.end = payload.start - OVERHEAD;
            replayed.damage = Some(format!("at byte {}: {reason}", replayed.end));
            return replayed;
        }
    }
    if scanned.tail == Tail::Damaged {
        replayed.damage = Some(match scanned.end {
            0 => "it is no log of the version this agent writes".to_owned(),
            at => format!("at byte {at}: not what was written"),
        });
    }
    replayed
}

impl Replayed {
    fn apply(&mut self, payload: &[u8], at: usize) -> Result<(), String> {
        let (entry, places) = Entry::read(payload).map_err(|error| error.to_string())?;
        // All of it is understood before any of it counts.
        let mut slots = Vec::with_capacity(places.len());
        for (stored, place) in entry.stored.iter().zip(places) {
            let json = &payload[place.clone()];
            let report = from_json(json).map_err(|error| error.to_string())?;
            let pending = Destinations::from_bits(stored.pending);
            let slot = Slot::new(pending, json, Place::File(wide(at + place.start)));
            let is_kill = matches!(report, Report::Kill(_));
            slots.push((stored.number, slot, is_kill, IdHash::of(&report.id())));
        }
        self.seen.insert_bytes(&entry.known_ids);
        self.index.reserve_up_to(entry.last_number);
        for (number, slot, is_kill, id) in slots {
            self.seen.insert(id);
            self.index.insert(number, slot, is_kill);
        }
        for acknowledged in &entry.acknowledged {
            let destinations = Destinations::from_bits(acknowledged.destinations);
            for number in &acknowledged.numbers {
                self.index.acknowledge(destinations, *number);
            }
        }
        self.checkpoint = entry.checkpoint.or(self.checkpoint.take());
        Ok(())
    }

    /// Gives up the deliveries to destinations that are not selected any more. Returns how many reports have no other.
    pub(super) fn forget_all_but(&mut self, selected: Destinations) -> usize {
        let others: Destinations = Destination::ALL
            .into_iter()
            .filter(|one| !selected.contains(*one))
            .collect();
        let before = self.index.usage().pending;
        for number in self.index.numbers() {
            self.index.acknowledge(others, number);
        }
        before - self.index.usage().pending
    }
}
