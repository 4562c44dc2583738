//! Keeps the log within its bounds: where the reports take too much room, the oldest become counts. The sum of the counts stays
//! the same for every destination: the log drops no kill, and counts none for a destination that has acknowledged it.

use std::collections::BTreeMap;

use super::state::{Slot, State};
use super::{Bounds, KillLog, LATEST, wide};
use crate::report::content::Report;
use crate::report::destination::Destinations;

impl KillLog {
    /// Aggregates reports, if there is more than the bounds allow.
    pub(super) fn make_room(&mut self) {
        if self.state.fits(self.bounds, 1, 1) {
            return;
        }
        self.totals.folded += self.state.make_room(self.bounds);
        tracing::warn!(
            pending = self.pending(),
            folded = self.totals.folded,
            "the log of OOM kills is full: the oldest are only counted from now on"
        );
        self.rewrite();
    }
}

/// Makes fewer reports of the same kills, as a full log of `most` reports does. No destination has received them.
pub fn aggregate(reports: Vec<Report>, most: usize) -> Vec<Report> {
    let mut state = State::new(LATEST.min(most / 4), 0);
    let slots = reports.into_iter().map(|report| Slot::new(report, Destinations::all()));
    slots.for_each(|slot| state.push(slot));
    state.make_room(Bounds {
        max_reports: most,
        ..Bounds::default()
    });
    state.slots.into_values().map(|slot| slot.report).collect()
}

/// Which kills share a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grain {
    /// Those of one container at one level.
    Container,
    Node,
}

impl State {
    /// Whether the reports that are not acknowledged take at most this part of their room.
    fn fits(&self, bounds: Bounds, numerator: u64, denominator: u64) -> bool {
        let within = |taken: u64, room: u64| taken <= room / denominator * numerator;
        let bytes = self.pending().map(|slot| u64::from(slot.length)).sum();
        within(bytes, bounds.max_bytes / 2) && within(wide(self.pending().count()), wide(bounds.max_reports.max(4)))
    }

    /// Aggregates until a quarter of the room is free: first the older half of the reports that no destination can have
    /// received, by container, then all of them, then by node. If that is not enough, also reports that a destination may have
    /// received, and may get twice. Returns how many kills lost their detail.
    fn make_room(&mut self, bounds: Bounds) -> u64 {
        let mut folded = 0;
        for (grain, all, divisor) in [
            (Grain::Container, false, 2),
            (Grain::Container, false, 1),
            (Grain::Node, false, 1),
            (Grain::Node, true, 1),
        ] {
            folded += self.aggregate(grain, all, divisor);
            if self.fits(bounds, 3, 4) {
                break;
            }
        }
        folded
    }

    /// Aggregates the oldest pending reports that share a count: those that no destination can have received and that are not
    /// among the latest kills, or all of them; of these a part. A report that shares its count with no other keeps its detail.
    /// Returns how many kills lost theirs.
    ///
    /// A count takes the number of its oldest report, or, with all, a new number: a destination that may have received one of
    /// the reports asks for those after it.
    pub(super) fn aggregate(&mut self, grain: Grain, all: bool, divisor: usize) -> u64 {
        let oldest_latest = self.oldest_latest();
        let pending = self.slots.iter().filter(|(_, slot)| !slot.pending.is_empty());
        let found = pending.filter(|(number, slot)| {
            all || (slot.in_flight.is_empty() && (slot.report.kill().is_none() || **number < oldest_latest))
        });
        // Reports that are pending for different destinations never share a count.
        let counts = found.map(|(number, slot)| {
            let facts = (grain == Grain::Container).then(|| slot.report.facts());
            let container = facts.map(|facts| {
                let container = facts.container.as_ref().map(|container| &container.name);
                format!("{:?}", (&facts.pod, container, facts.level, facts.limit_of()))
            });
            (*number, (slot.pending, container))
        });
        let counts: Vec<_> = counts.collect();
        let part = counts.len().div_ceil(divisor);
        let mut groups: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for (number, count) in counts.into_iter().take(part) {
            groups.entry(count).or_default().push(number);
        }
        let mut folded = 0;
        for ((pending, _), group) in groups.into_iter().filter(|(_, group)| group.len() > 1) {
            let number = if all { self.last_number + 1 } else { group[0] };
            let reports = group.iter().filter_map(|number| self.slots.remove(number));
            let counts = reports.map(|slot| {
                folded += u64::from(slot.report.kill().is_some());
                let count = slot.report.into_aggregate();
                if grain == Grain::Node { count.of_node() } else { count }
            });
            let sum = counts.reduce(|mut sum, younger| {
                sum.add(younger);
                sum
            });
            if let Some(sum) = sum {
                self.insert(number, Slot::new(Report::Aggregate(Box::new(sum)), pending));
            }
        }
        folded
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::destination::from_bits;
    use crate::report::testing::{arbitrary_kill, kill_of};

    /// Reports that are pending for these destinations, numbered from 1.
    fn state(reports: impl IntoIterator<Item = (u32, Report)>) -> State {
        let mut state = State::new(0, 99);
        for (number, (pending, report)) in (1..).zip(reports) {
            state.insert(number, Slot::new(report, from_bits(pending)));
        }
        state
    }

    /// Aggregates everything.
    fn aggregate(state: &mut State, grain: Grain) -> u64 {
        state.aggregate(grain, false, 1)
    }

    #[test]
    fn kills_of_a_container_become_one_count() {
        let mut reports = Vec::new();
        for number in 1..=3 {
            let mut kill = kill_of("web", number);
            kill.facts.limit.usage_bytes = Some(100 - number);
            reports.push((4, kill.into()));
        }
        reports.push((4, kill_of("other", 4).into()));
        let mut state = state(reports);
        assert_eq!(aggregate(&mut state, Grain::Container), 3);
        let kept: Vec<_> = state.slots.iter().collect();
        assert_eq!(kept.len(), 2);
        let (1, Report::Aggregate(sum)) = (*kept[0].0, &kept[0].1.report) else {
            panic!("not aggregated: {kept:?}")
        };
        assert_eq!(sum.count, 3);
        assert_eq!(sum.facts.limit.usage_bytes, Some(99));
        assert_eq!(sum.facts.pod.as_ref().unwrap().name, "web");
        assert!(
            matches!(kept[1].1.report, Report::Kill(_)),
            "a single one keeps its detail"
        );
    }

    #[test]
    fn a_count_of_the_node_names_no_pod() {
        let mut state = state([(1, "web"), (2, "other")].map(|(number, pod)| (4, kill_of(pod, number).into())));
        aggregate(&mut state, Grain::Node);
        assert_eq!(state.slots.len(), 1);
        let report = &state.slots[&1].report;
        let facts = report.facts();
        assert_eq!((report.count(), &facts.pod, &facts.container), (2, &None, &None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn aggregation_loses_no_kill(
            kills in prop::collection::vec((arbitrary_kill(), 1u32..8), 0..60),
            coarse: bool,
            twice: bool,
        ) {
            let mut before = [0u64; 3];
            for (_, pending) in &kills {
                from_bits(*pending).iter().for_each(|one| before[one.index()] += 1);
            }
            let mut state = state(kills.iter().map(|(kill, to)| (*to, kill.clone().into())));
            aggregate(&mut state, if coarse { Grain::Node } else { Grain::Container });
            if twice {
                aggregate(&mut state, Grain::Node);
                prop_assert!(state.slots.len() <= 7);
            }
            let mut after = [0u64; 3];
            for slot in state.slots.values() {
                slot.pending.iter().for_each(|to| after[to.index()] += slot.report.count());
                prop_assert!(slot.report.first() <= slot.report.last());
            }
            prop_assert_eq!(before, after);
        }
    }
}
