//! The content of the log: reports and the destinations that have not acknowledged them, the ids stored lately, the last
//! checkpoint. Pure.
//!
//! A report stays while a destination has not acknowledged it, or while it is one of the latest kills, which operators list.
//! Numbers of reports only ascend; each agent numbers the reports that it finds anew.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use anyhow::Result;
use indexmap::IndexSet;

use super::frame::{Acknowledged, Entry, Stored};
use crate::oom::OomReport;
use crate::report::content::Report;
use crate::report::destination::{Destination, Destinations, from_bits};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) slots: BTreeMap<u64, Slot>,
    /// How many of the latest kills stay though every destination has them.
    pub(super) most_latest: usize,
    pub(super) last_number: u64,
    pub(super) seen: SeenIds,
    /// The last checkpoint.
    pub(super) checkpoint: Option<Vec<u8>>,
}

/// A report of the log.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) report: Report,
    /// The destinations that have not acknowledged the report.
    pub(super) pending: Destinations,
    /// The destinations that may have received the report without an acknowledgement. To aggregate the report would count
    /// its kill for them twice.
    pub(super) in_flight: Destinations,
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
            most_latest,
            seen: SeenIds::new(most_ids),
            ..Self::default()
        }
    }

    /// Takes in a frame of a log.
    pub(super) fn replay_entry(&mut self, payload: &[u8]) -> Result<()> {
        let (entry, reports) = Entry::read(payload)?;
        self.seen.insert_bytes(&entry.known_ids);
        for (stored, report) in entry.stored.iter().zip(reports) {
            self.seen.insert(IdHash::of(&report.id()));
            let slot = Slot::new(report, from_bits(stored.pending));
            self.insert(stored.number, slot);
        }
        for Acknowledged { destinations, numbers } in entry.acknowledged {
            let destinations = from_bits(destinations);
            for number in numbers {
                self.acknowledge(destinations, number);
            }
        }
        self.checkpoint = entry.checkpoint.or(self.checkpoint.take());
        Ok(())
    }

    /// Takes in the content of a log, for the selected destinations: the reports whose ids are new, the ids, and the last
    /// checkpoint unless this state has one. Returns how many reports have no selected destination any more.
    pub(super) fn take_in(&mut self, found: Self, selected: Destinations) -> usize {
        let is_new = |slot: &Slot| !self.seen.ids.contains(&IdHash::of(&slot.report.id()));
        let slots: Vec<Slot> = found.slots.into_values().filter(is_new).collect();
        for id in found.seen.ids {
            self.seen.insert(id);
        }
        self.checkpoint = self.checkpoint.take().or(found.checkpoint);
        let mut forgotten = 0;
        for slot in slots {
            let pending = slot.pending & selected;
            forgotten += usize::from(pending.is_empty() && !slot.pending.is_empty());
            self.seen.insert(IdHash::of(&slot.report.id()));
            self.push(Slot { pending, ..slot });
        }
        forgotten
    }

    /// The frames of a file that holds this state and nothing else.
    pub(super) fn frames(&self) -> impl Iterator<Item = io::Result<Vec<u8>>> {
        let head = Entry {
            checkpoint: self.checkpoint.clone(),
            known_ids: self.seen.to_bytes(),
            ..Entry::default()
        };
        let reports = self.slots.iter().map(|report| frame(Entry::default(), [report]));
        std::iter::once(head.frame(&[])).chain(reports)
    }

    /// Adds a report under the next number.
    pub(super) fn push(&mut self, slot: Slot) {
        self.insert(self.last_number + 1, slot);
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
    pub(super) fn oldest_latest(&self) -> u64 {
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

    /// Removes these destinations from those that need the report. Returns whether one of them needed it.
    pub(super) fn acknowledge(&mut self, destinations: Destinations, number: u64) -> bool {
        let Some(slot) = self.slots.get_mut(&number) else {
            return false;
        };
        let was_pending = slot.pending.intersects(destinations);
        slot.pending.remove(destinations);
        slot.in_flight.remove(destinations);
        self.remove_unless_needed(number);
        was_pending
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

    /// The reports that some destination has not acknowledged.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values().filter(|slot| !slot.pending.is_empty())
    }
}

/// The frame of this entry and these reports.
pub(super) fn frame<'a>(
    mut entry: Entry,
    reports: impl IntoIterator<Item = (&'a u64, &'a Slot)>,
) -> io::Result<Vec<u8>> {
    let mut json = Vec::new();
    for (number, slot) in reports {
        serde_json::to_writer(&mut json, &slot.report)?;
        entry.stored.push(Stored {
            number: *number,
            pending: slot.pending.bits().into(),
            length: slot.length,
        });
    }
    entry.frame(&json)
}

impl Slot {
    /// A report that no destination has received yet.
    pub(super) fn new(report: Report, pending: Destinations) -> Self {
        // A report without JSON takes no room.
        let length = serde_json::to_vec(&report).map_or(0, |json| u32::try_from(json.len()).unwrap_or(u32::MAX));
        Self {
            report,
            pending,
            in_flight: Destinations::empty(),
            length,
        }
    }
}

#[cfg(any(test, fuzzing))]
#[path = "../../../fuzz/inputs/kills.rs"]
pub(crate) mod fuzz;

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
#[derive(Debug, Default)]
pub(super) struct SeenIds {
    most: usize,
    pub(super) ids: IndexSet<IdHash>,
}

impl SeenIds {
    pub(crate) fn new(most: usize) -> Self {
        let (most, ids) = (most.max(1), IndexSet::new());
        Self { most, ids }
    }

    /// Remembers an id. Returns whether it was new.
    pub(crate) fn insert(&mut self, id: IdHash) -> bool {
        let is_new = !self.ids.contains(&id);
        if is_new && self.ids.len() >= self.most {
            // To remove the oldest moves all others: an eighth of them goes at once.
            self.ids.drain(..self.most.div_ceil(8));
        }
        is_new && self.ids.insert(id)
    }

    /// The hashes as on disk, oldest first.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.ids.iter().flat_map(|id| id.0.to_le_bytes()).collect()
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
    use crate::report::log::room::Grain;
    use crate::report::testing::kill_of;

    fn state(most_latest: usize, pending: &[u32]) -> State {
        let mut state = State::new(most_latest, 9);
        for (number, pending) in (1..).zip(pending) {
            let kill = kill_of("web", number).into();
            state.insert(number, Slot::new(kill, from_bits(*pending)));
        }
        state
    }

    fn numbers(state: &State) -> Vec<u64> {
        state.slots.keys().copied().collect()
    }

    #[test]
    fn a_report_stays_until_all_acknowledged_it() {
        let mut state = state(0, &[5]);
        state.acknowledge(Destinations::from_iter([Destination::PodEvents]), 1);
        assert_eq!(state.slots[&1].pending, Destinations::from(Destination::Grpc));
        assert_eq!(state.send_after(Destination::PodEvents, 0, 9), []);
        assert_eq!(state.send_after(Destination::Grpc, 0, 9).len(), 1);
        state.acknowledge(from_bits(7), 1);
        assert_eq!(numbers(&state), [0; 0]);
    }

    #[test]
    fn the_latest_kills_stay() {
        let mut state = state(2, &[4, 0, 0]);
        assert_eq!(numbers(&state), [1, 2, 3]);
        state.acknowledge(from_bits(4), 1);
        assert_eq!(numbers(&state), [2, 3]);
        assert_eq!((state.latest().len(), state.pending().count()), (2, 0));
    }

    #[test]
    fn sent_reports_are_not_aggregated() {
        let mut state = state(1, &[4, 4, 4, 4]);
        assert_eq!(state.send_after(Destination::Grpc, 1, 1).len(), 1);
        assert_eq!(state.aggregate(Grain::Node, false, 1), 2, "1 and 3");
        assert_eq!(numbers(&state), [1, 2, 4]);
        assert_eq!(state.aggregate(Grain::Node, true, 1), 2, "all");
        assert_eq!(numbers(&state), [5]);
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
