//! Which reports the log holds, where they lie, and which destinations have not acknowledged them. Pure.
//!
//! A report stays while a destination has not acknowledged it, or while it is one of the latest kills, which operators
//! list. Reports have numbers that only ascend.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::report::destination::{Destination, Destinations};

#[derive(Debug)]
pub(super) struct Index {
    slots: BTreeMap<u64, Slot>,
    /// The numbers of the latest kills, ascending.
    latest: VecDeque<u64>,
    most_latest: usize,
    last_number: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// The destinations that have not acknowledged the report.
    pub(super) pending: Destinations,
    /// The destinations that may have received the report without an acknowledgement. To aggregate it would tell
    /// them of its kill twice.
    pub(super) in_flight: Destinations,
    pub(super) place: Place,
    /// The length of its JSON in bytes.
    pub(super) length: u32,
    /// The checksum of its JSON.
    pub(super) checksum: u32,
}

/// Where the JSON of a report lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// At this offset in the file.
    File(u64),
    Memory(Arc<[u8]>),
}

/// The numbers of reports and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::report) struct Usage {
    /// Reports that some destination has not acknowledged, and the bytes of their JSON.
    pub(in crate::report) pending: usize,
    pub(in crate::report) pending_bytes: u64,
    /// The bytes of all reports.
    pub(in crate::report) bytes: u64,
    /// Reports that each destination has not acknowledged.
    pub(in crate::report) pending_for: [usize; Destination::ALL.len()],
}

impl Slot {
    /// A report that no destination has received yet.
    pub(super) fn new(pending: Destinations, json: &[u8], place: Place) -> Self {
        Self {
            pending,
            in_flight: Destinations::NONE,
            place,
            length: length_of(json),
            checksum: crc32fast::hash(json),
        }
    }
}

impl Index {
    /// Keeps so many of the latest kills whatever was acknowledged.
    pub(super) const fn new(most_latest: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            latest: VecDeque::new(),
            most_latest,
            last_number: 0,
        }
    }

    pub(super) const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) const fn last_number(&self) -> u64 {
        self.last_number
    }

    /// No report gets this number or a lower one from now on.
    pub(super) fn reserve_up_to(&mut self, number: u64) {
        self.last_number = self.last_number.max(number);
    }

    pub(super) fn insert(&mut self, number: u64, slot: Slot, is_kill: bool) {
        self.reserve_up_to(number);
        self.slots.insert(number, slot);
        if is_kill {
            self.latest.push_back(number);
        }
        if self.latest.len() > self.most_latest
            && let Some(oldest) = self.latest.pop_front()
        {
            self.remove_unless_needed(oldest);
        }
        self.remove_unless_needed(number);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Slot> {
        self.slots.remove(&number)
    }

    fn remove_unless_needed(&mut self, number: u64) {
        let acknowledged = self.get(number).is_some_and(|slot| slot.pending.is_empty());
        if acknowledged && !self.is_latest(number) {
            self.slots.remove(&number);
        }
    }

    fn is_latest(&self, number: u64) -> bool {
        self.latest.binary_search(&number).is_ok()
    }

    /// Removes these destinations from those that need the report. Returns whether any of them was among them.
    pub(super) fn acknowledge(&mut self, destinations: Destinations, number: u64) -> bool {
        let Some(slot) = self.slots.get_mut(&number) else {
            return false;
        };
        let acknowledged = slot.pending.both(destinations);
        for one in acknowledged.iter() {
            slot.pending.remove(one);
            slot.in_flight.remove(one);
        }
        self.remove_unless_needed(number);
        !acknowledged.is_empty()
    }

    /// The next numbers after `after` that a destination has not acknowledged, oldest first.
    pub(super) fn pending_after(&self, destination: Destination, after: u64, most: usize) -> Vec<u64> {
        self.slots
            .range((Bound::Excluded(after), Bound::Unbounded))
            .filter(|(_, slot)| slot.pending.contains(destination))
            .map(|(number, _)| *number)
            .take(most)
            .collect()
    }

    pub(super) fn mark_in_flight(&mut self, destination: Destination, numbers: &[u64]) {
        for number in numbers {
            if let Some(slot) = self.slots.get_mut(number) {
                slot.in_flight.insert(destination);
            }
        }
    }

    /// The pending reports whose detail may be given up, oldest first: those that no destination can have received and
    /// that are not among the latest kills; or all of them.
    pub(super) fn aggregatable(&self, all: bool) -> Vec<u64> {
        let may_be = |number: u64, slot: &Slot| {
            !slot.pending.is_empty() && (all || (slot.in_flight.is_empty() && !self.is_latest(number)))
        };
        let found = self.slots.iter().filter(|(number, slot)| may_be(**number, slot));
        found.map(|(number, _)| *number).collect()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Slot> {
        self.slots.get(&number)
    }

    /// Records where the report lies now.
    pub(super) fn relocate(&mut self, number: u64, place: Place) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.place = place;
        }
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.slots.keys().copied().collect()
    }

    /// The numbers of the latest kills, ascending.
    pub(super) fn latest(&self) -> Vec<u64> {
        self.latest.iter().copied().collect()
    }

    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for slot in self.slots.values() {
            usage.bytes += u64::from(slot.length);
            if !slot.pending.is_empty() {
                usage.pending += 1;
                usage.pending_bytes += u64::from(slot.length);
            }
            slot.pending.iter().for_each(|one| usage.pending_for[one.index()] += 1);
        }
        usage
    }
}

/// Reports of 4 GiB are cut down long before they come here.
pub(super) fn length_of(json: &[u8]) -> u32 {
    u32::try_from(json.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(pending: u32) -> Slot {
        Slot::new(Destinations::from_bits(pending), b"0123456789", Place::File(0))
    }

    #[test]
    fn a_report_stays_until_every_destination_acknowledged_it() {
        let mut index = Index::new(0);
        let number = index.next_number();
        index.insert(number, slot(5), true);
        let pods: Destinations = [Destination::PodEvents].into_iter().collect();
        assert!(index.acknowledge(pods, number));
        assert!(!index.acknowledge(pods, number), "twice does nothing");
        assert_eq!(index.pending_after(Destination::Grpc, 0, 9), [number]);
        assert_eq!(index.pending_after(Destination::PodEvents, 0, 9), [0; 0]);
        index.acknowledge(Destinations::from_bits(7), number);
        assert_eq!((index.numbers(), index.usage()), (Vec::new(), Usage::default()));
    }

    #[test]
    fn the_latest_kills_stay_whatever_is_acknowledged() {
        let mut index = Index::new(2);
        (1..=4).for_each(|number| index.insert(number, slot(if number == 1 { 4 } else { 0 }), number != 3));
        assert_eq!((index.latest(), index.numbers()), (vec![2, 4], vec![1, 2, 4]));
        index.acknowledge(Destinations::from_bits(4), 1);
        assert_eq!(index.numbers(), [2, 4]);
        assert_eq!((index.usage().pending, index.usage().bytes), (0, 20));
    }

    #[test]
    fn what_a_destination_may_have_received_is_not_aggregated() {
        let mut index = Index::new(1);
        (1..=4).for_each(|number| index.insert(number, slot(4), true));
        index.mark_in_flight(Destination::Grpc, &[2]);
        assert_eq!(index.aggregatable(false), [1, 3]);
        assert_eq!(index.aggregatable(true), [1, 2, 3, 4]);
    }
}
