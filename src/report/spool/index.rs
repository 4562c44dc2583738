//! What is pending: which reports there are, where they lie, and who is owed them. Pure.
//!
//! In come stored reports and acknowledgements; out go answers to "what is next for this destination" and "what can be
//! folded". A report is there as long as anybody is owed it. Reports are known by their numbers, which only ascend.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::report::destination::{Destination, Destinations};

/// Every pending report.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: BTreeMap<u64, Slot>,
    next: u64,
    bytes: u64,
    owed: [usize; Destination::ALL.len()],
}

/// One pending report.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// Who is owed it.
    pub(super) owed: Destinations,
    /// Who may have got it already, and has not said so. It cannot be folded without telling them of it twice.
    pub(super) lent: Destinations,
    /// Where it lies.
    pub(super) place: Place,
    /// The length of its JSON in bytes.
    pub(super) length: u32,
    /// The checksum of its JSON.
    pub(super) checksum: u32,
}

/// Where a report lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In the journal, so far from its beginning.
    File(u64),
    /// Only here.
    Memory(Arc<[u8]>),
}

impl Index {
    /// The number for a new report.
    pub(super) const fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The number the next report gets, at least.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// No report gets this number or a lower one any more.
    pub(super) fn beyond(&mut self, number: u64) {
        self.next = self.next.max(number);
    }

    /// Puts a report in. One that nobody is owed is not kept.
    pub(super) fn insert(&mut self, number: u64, slot: Slot) {
        self.beyond(number);
        self.remove(number);
        if slot.owed.is_empty() {
            return;
        }
        self.bytes += u64::from(slot.length);
        slot.owed.iter().for_each(|one| self.owed[one.index()] += 1);
        self.slots.insert(number, slot);
    }

    /// Takes a report out, whoever is owed it.
    pub(super) fn remove(&mut self, number: u64) -> Option<Slot> {
        let slot = self.slots.remove(&number)?;
        self.bytes -= u64::from(slot.length);
        slot.owed.iter().for_each(|one| self.owed[one.index()] -= 1);
        Some(slot)
    }

    /// These destinations do not need the report any more. Whether any of them was owed it.
    pub(super) fn settle(&mut self, destinations: Destinations, number: u64) -> bool {
        let Some(slot) = self.slots.get_mut(&number) else {
            return false;
        };
        let settled = slot.owed.both(destinations);
        for one in settled.iter() {
            slot.owed.remove(one);
            slot.lent.remove(one);
            self.owed[one.index()] -= 1;
        }
        if slot.owed.is_empty() {
            self.bytes -= u64::from(slot.length);
            self.slots.remove(&number);
        }
        !settled.is_empty()
    }

    /// The next numbers after `after` that a destination is owed, oldest first.
    pub(super) fn owed_after(&self, destination: Destination, after: u64, most: usize) -> Vec<u64> {
        self.slots
            .range((Bound::Excluded(after), Bound::Unbounded))
            .filter(|(_, slot)| slot.owed.contains(destination))
            .map(|(number, _)| *number)
            .take(most)
            .collect()
    }

    /// A destination may have got these from now on.
    pub(super) fn lend(&mut self, destination: Destination, numbers: &[u64]) {
        for number in numbers {
            if let Some(slot) = self.slots.get_mut(number) {
                slot.lent.insert(destination);
            }
        }
    }

    /// What nobody can have got yet, oldest first; or everything.
    pub(super) fn foldable(&self, everything: bool) -> Vec<u64> {
        self.slots
            .iter()
            .filter(|(_, slot)| everything || slot.lent.is_empty())
            .map(|(number, _)| *number)
            .collect()
    }

    /// One report.
    pub(super) fn get(&self, number: u64) -> Option<&Slot> {
        self.slots.get(&number)
    }

    /// One report, to say where it lies now.
    pub(super) fn moved(&mut self, number: u64, to: u64) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.place = Place::File(to);
        }
    }

    /// All numbers, oldest first.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.slots.keys().copied().collect()
    }

    /// How many reports there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many bytes they take.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them a destination is owed.
    pub(super) const fn owed(&self, destination: Destination) -> usize {
        self.owed[destination.index()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(owed: u32) -> Slot {
        Slot {
            owed: Destinations::from_bits(owed),
            lent: Destinations::NONE,
            place: Place::File(0),
            length: 10,
            checksum: 0,
        }
    }

    #[test]
    fn a_report_stays_until_everybody_has_it() {
        let mut index = Index::default();
        let number = index.take_number();
        index.insert(number, slot(5));
        let pods: Destinations = [Destination::PodEvents].into_iter().collect();
        assert!(index.settle(pods, number));
        assert!(!index.settle(pods, number), "twice does nothing");
        assert_eq!(index.owed_after(Destination::Grpc, 0, 9), [number]);
        assert_eq!(index.owed_after(Destination::PodEvents, 0, 9), [0; 0]);
        index.settle(Destinations::from_bits(7), number);
        assert_eq!((index.len(), index.bytes()), (0, 0));
    }

    #[test]
    fn what_somebody_may_have_got_is_not_foldable() {
        let mut index = Index::default();
        (1..=3).for_each(|number| index.insert(number, slot(4)));
        index.lend(Destination::Grpc, &[2]);
        assert_eq!(index.foldable(false), [1, 3]);
        assert_eq!(index.foldable(true), [1, 2, 3]);
    }

    proptest! {
        #[test]
        fn counts_agree_with_what_is_there(
            steps in prop::collection::vec((any::<bool>(), 1u64..20, 0u32..8), 0..80),
        ) {
            let mut index = Index::default();
            for (store, number, destinations) in steps {
                if store {
                    index.insert(number, slot(destinations));
                } else {
                    index.settle(Destinations::from_bits(destinations), number);
                }
                for one in Destination::ALL {
                    prop_assert_eq!(index.owed(one), index.owed_after(one, 0, usize::MAX).len());
                }
                prop_assert_eq!(index.bytes(), 10 * u64::try_from(index.len()).unwrap());
                prop_assert!(index.numbers().iter().all(|number| !index.get(*number).unwrap().owed.is_empty()));
            }
        }
    }
}
