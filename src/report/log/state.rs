//! The content of the log: reports and the destinations that have not acknowledged them, the ids stored lately, the last
//! checkpoint. Pure.
//!
//! [`State::apply`] takes in an entry that the log writes, and one that it reads from a file, so both lead to the same state.
//! A report stays while a destination has not acknowledged it, or while it is one of the latest kills, which operators list.
//! Numbers of reports only ascend.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use super::frame::{self, Acknowledged, Entry, Header, Stored};
use super::length_of;
use crate::oom::OomReport;
use crate::report::content::Report;
use crate::report::destination::{Destination, Destinations};

#[derive(Debug)]
pub(super) struct State {
    pub(super) slots: BTreeMap<u64, Slot>,
    /// How many of the latest kills stay though every destination has them.
    most_latest: usize,
    pub(super) last_number: u64,
    pub(super) seen: SeenIds,
    /// The last checkpoint; empty before the first.
    pub(super) checkpoint: Vec<u8>,
}

/// A report of the log.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) report: Report,
    /// The destinations that have not acknowledged the report.
    pub(super) pending: Destinations,
    /// The destinations that may have received the report without an acknowledgement. To aggregate the report would count
    /// its kill for them twice.
    in_flight: Destinations,
    /// The length of its JSON in bytes.
    pub(super) length: u32,
}

/// A report that a destination has not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Queues deliver reports in the order of their numbers, and acknowledge them by number.
    pub number: u64,
    pub report: Report,
}

impl State {
    /// Keeps so many of the latest kills and remembers so many ids.
    pub(super) fn new(most_latest: usize, most_ids: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            most_latest,
            last_number: 0,
            seen: SeenIds::new(most_ids),
            checkpoint: Vec::new(),
        }
    }

    /// Takes in a log with this header up to the first damage. Returns the end of the last good entry and the damage of
    /// the rest, as [`frame::read`] does.
    pub(super) fn replay(&mut self, header: &Header, bytes: &[u8]) -> (usize, Option<String>) {
        frame::read(header, bytes, |payload| {
            let (entry, reports) = Entry::read(payload)?;
            self.apply(entry, reports);
            Ok(())
        })
    }

    /// Takes in an entry and its reports.
    pub(super) fn apply(&mut self, entry: Entry, reports: Vec<Report>) {
        self.seen.insert_bytes(&entry.known_ids);
        self.last_number = self.last_number.max(entry.last_number);
        for (stored, report) in entry.stored.iter().zip(reports) {
            self.seen.insert(IdHash::of(&report.id()));
            let pending = Destinations::from_bits(stored.pending);
            self.insert(stored.number, Slot::new(report, pending, stored.length));
        }
        for Acknowledged { destinations, numbers } in entry.acknowledged {
            let destinations = Destinations::from_bits(destinations);
            numbers
                .into_iter()
                .for_each(|number| self.acknowledge(destinations, number));
        }
        if let Some(checkpoint) = entry.checkpoint {
            self.checkpoint = checkpoint;
        }
    }

    /// The frames of a file that holds this state and nothing else.
    pub(super) fn frames(&self) -> impl Iterator<Item = io::Result<Vec<u8>>> {
        let head = Entry {
            checkpoint: Some(self.checkpoint.clone()).filter(|checkpoint| !checkpoint.is_empty()),
            last_number: self.last_number,
            known_ids: self.seen.to_bytes(),
            ..Entry::default()
        };
        let reports = self.slots.iter().map(|(number, slot)| {
            let stored = Stored {
                number: *number,
                pending: slot.pending.bits(),
                length: slot.length,
            };
            let entry = Entry {
                stored: vec![stored],
                ..Entry::default()
            };
            entry.frame(&serde_json::to_vec(&slot.report)?)
        });
        std::iter::once(head.frame(&[])).chain(reports)
    }

    /// A number that no report has yet.
    pub(super) const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn insert(&mut self, number: u64, slot: Slot) {
        self.last_number = self.last_number.max(number);
        let is_kill = slot.report.kill().is_some();
        self.slots.insert(number, slot);
        self.remove_unless_needed(number);
        // With a new kill another one stops being one of the latest.
        let kill_after_the_latest = || self.kills().nth(self.most_latest).map(|(number, _)| number);
        if let Some(replaced) = is_kill.then(kill_after_the_latest).flatten() {
            self.remove_unless_needed(replaced);
        }
    }

    /// The kills whose detail is left, with their numbers, youngest first.
    fn kills(&self) -> impl Iterator<Item = (u64, &Arc<OomReport>)> {
        let youngest_first = self.slots.iter().rev();
        youngest_first.filter_map(|(number, slot)| Some((*number, slot.report.kill()?)))
    }

    /// The latest kills, oldest first.
    pub(super) fn latest(&self) -> Vec<Arc<OomReport>> {
        let mut latest: Vec<_> = self.kills().take(self.most_latest).collect();
        latest.reverse();
        latest.into_iter().map(|(_, kill)| Arc::clone(kill)).collect()
    }

    /// The number of the oldest of the latest kills.
    fn oldest_latest(&self) -> u64 {
        let oldest = self.kills().take(self.most_latest).last();
        oldest.map_or(u64::MAX, |(number, _)| number)
    }

    fn remove_unless_needed(&mut self, number: u64) {
        if let Some(slot) = self.slots.get(&number)
            && slot.pending.is_empty()
            && (slot.report.kill().is_none() || number < self.oldest_latest())
        {
            self.slots.remove(&number);
        }
    }

    /// Removes these destinations from those that need the report.
    pub(super) fn acknowledge(&mut self, destinations: Destinations, number: u64) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.pending = slot.pending.without(destinations);
            slot.in_flight = slot.in_flight.without(destinations);
            self.remove_unless_needed(number);
        }
    }

    /// Gives up the deliveries to all other destinations. Returns how many reports have no selected one.
    pub(super) fn forget_all_but(&mut self, selected: Destinations) -> usize {
        let before = self.pending().count();
        let numbers: Vec<u64> = self.slots.keys().copied().collect();
        let others = Destinations::from_iter(Destination::ALL).without(selected);
        numbers.into_iter().for_each(|number| self.acknowledge(others, number));
        before - self.pending().count()
    }

    /// Whether a destination has not acknowledged the report.
    pub(super) fn is_pending(&self, destination: Destination, number: u64) -> bool {
        let slot = self.slots.get(&number);
        slot.is_some_and(|slot| slot.pending.contains(destination))
    }

    /// The next reports after `after` that a destination has not acknowledged, oldest first. From now on the
    /// destination may have received them.
    pub(super) fn send_after(&mut self, destination: Destination, after: u64, most: usize) -> Vec<Pending> {
        let later = self.slots.range_mut((Bound::Excluded(after), Bound::Unbounded));
        let pending = later.filter(|(_, slot)| slot.pending.contains(destination));
        let sent = pending.take(most).map(|(number, slot)| {
            slot.in_flight.insert(destination);
            Pending {
                number: *number,
                report: slot.report.clone(),
            }
        });
        sent.collect()
    }

    /// The pending reports that may become counts, oldest first: those that no destination can have received and that are not
    /// among the latest kills; or all of them.
    pub(super) fn aggregatable(&self, all: bool) -> Vec<u64> {
        let oldest_latest = self.oldest_latest();
        let pending = self.slots.iter().filter(|(_, slot)| !slot.pending.is_empty());
        let found = pending.filter(|(number, slot)| {
            all || (slot.in_flight.is_empty() && (slot.report.kill().is_none() || **number < oldest_latest))
        });
        found.map(|(number, _)| *number).collect()
    }

    /// The reports that some destination has not acknowledged.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values().filter(|slot| !slot.pending.is_empty())
    }
}

impl Slot {
    /// Measures a report that no destination has received yet.
    pub(super) fn measured(report: Report, pending: Destinations) -> Self {
        // A report without JSON takes no room.
        let length = serde_json::to_vec(&report).map_or(0, |json| length_of(&json));
        Self::new(report, pending, length)
    }

    const fn new(report: Report, pending: Destinations, length: u32) -> Self {
        Self {
            report,
            pending,
            in_flight: Destinations::NONE,
            length,
        }
    }
}

/// A target of the fuzzer: a log of kills.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_log(bytes: &[u8]) {
    let header = bytes.first_chunk().copied().unwrap_or_default();
    let (end, _) = State::new(64, 64).replay(&header, bytes);
    assert!(end <= bytes.len());
}

/// FNV-1a of 128 bits of an id (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>). Files on disk and names
/// of Events contain it, so it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::LowerHex)]
#[lower_hex("{_0:032x}")]
pub(crate) struct IdHash(u128);

const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

impl IdHash {
    pub(crate) fn of(id: &str) -> Self {
        Self(
            id.bytes()
                .fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)),
        )
    }
}

/// The ids stored last, up to a number of them.
#[derive(Debug)]
pub(crate) struct SeenIds {
    most: usize,
    order: VecDeque<IdHash>,
    known: HashSet<IdHash>,
}

impl SeenIds {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            order: VecDeque::new(),
            known: HashSet::new(),
        }
    }

    /// Remembers an id. Returns whether it was new.
    pub(crate) fn insert(&mut self, id: IdHash) -> bool {
        if !self.known.insert(id) {
            return false;
        }
        if self.order.len() == self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(id);
        true
    }

    /// The hashes as on disk, oldest first.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.order.iter().flat_map(|id| id.0.to_le_bytes()).collect()
    }

    pub(super) fn insert_bytes(&mut self, bytes: &[u8]) {
        let (hashes, _) = bytes.as_chunks::<16>();
        for hash in hashes {
            self.insert(IdHash(u128::from_le_bytes(*hash)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::kill_of;

    fn state(most_latest: usize, pending: &[u32]) -> State {
        let mut state = State::new(most_latest, 9);
        for (number, pending) in (1..).zip(pending) {
            let kill = kill_of("web", number).into();
            state.insert(number, Slot::measured(kill, Destinations::from_bits(*pending)));
        }
        state
    }

    fn numbers(state: &State) -> Vec<u64> {
        state.slots.keys().copied().collect()
    }

    #[test]
    fn a_report_stays_until_every_destination_acknowledged_it() {
        let mut state = state(0, &[5]);
        state.acknowledge(Destinations::from_iter([Destination::PodEvents]), 1);
        assert!(state.is_pending(Destination::Grpc, 1) && !state.is_pending(Destination::PodEvents, 1));
        assert_eq!(state.send_after(Destination::PodEvents, 0, 9), []);
        assert_eq!(state.send_after(Destination::Grpc, 0, 9).len(), 1);
        state.acknowledge(Destinations::from_bits(7), 1);
        assert_eq!(numbers(&state), [0; 0]);
    }

    #[test]
    fn the_latest_kills_stay_whatever_is_acknowledged() {
        let mut state = state(2, &[4, 0, 0]);
        assert_eq!(numbers(&state), [1, 2, 3]);
        state.acknowledge(Destinations::from_bits(4), 1);
        assert_eq!(numbers(&state), [2, 3]);
        assert_eq!((state.latest().len(), state.pending().count()), (2, 0));
    }

    #[test]
    fn what_a_destination_may_have_received_is_not_aggregated() {
        let mut state = state(1, &[4, 4, 4, 4]);
        assert_eq!(state.send_after(Destination::Grpc, 1, 1).len(), 1);
        assert_eq!(state.aggregatable(false), [1, 3]);
        assert_eq!(state.aggregatable(true), [1, 2, 3, 4]);
    }
}

#[cfg(test)]
mod seen_tests {
    use super::*;

    #[test]
    fn an_id_is_known_until_as_many_others_came() {
        let mut seen = SeenIds::new(2);
        let [a, b, c] = ["a", "b", "c"].map(IdHash::of);
        assert!(seen.insert(a) && seen.insert(b));
        assert!(!seen.insert(a));
        assert!(seen.insert(c));
        assert!(!seen.insert(b) && seen.insert(a), "the oldest is forgotten");
    }

    #[test]
    fn what_was_seen_comes_back_from_disk() {
        let mut seen = SeenIds::new(9);
        assert!(seen.insert(IdHash::of("a")) && seen.insert(IdHash::of("b")));
        let mut back = SeenIds::new(9);
        back.insert_bytes(&seen.to_bytes());
        assert!(!back.insert(IdHash::of("a")) && !back.insert(IdHash::of("b")));
        assert!(back.insert(IdHash::of("c")));
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // The test vector of the empty string and of "a" in the draft's reference code.
        assert_eq!(IdHash::of("").0, 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(IdHash::of("a").0, 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
