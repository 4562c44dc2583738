//! Keeps the log within its bounds: where the reports take too much room, the oldest become counts. The sum of the counts stays
//! the same for every destination: the log drops no kill, and counts none for a destination that has acknowledged it.

use std::collections::BTreeMap;
use std::mem::take;

use super::state::{Slot, State};
use super::{Bounds, KillLog};
use crate::oom::KillFacts;
use crate::report::content::Report;
use crate::report::destination::Destinations;

impl KillLog {
    /// Aggregates reports, if there is more than the bounds allow.
    pub(super) fn make_room(&mut self) {
        if self.state.fits(self.bounds) {
            return;
        }
        self.totals.folded.inc_by(self.state.make_room(self.bounds));
        tracing::warn!(
            pending = self.pending(),
            folded = self.totals.folded.get(),
            "the kill log is full: the oldest kills are only counted from now on"
        );
        self.rewrite();
    }
}

/// Makes fewer reports of the same kills, as a full log of `most` reports does. No destination has received them.
pub fn aggregate(reports: Vec<Report>, most: usize) -> Vec<Report> {
    let mut state = State::default();
    for (number, report) in (1..).zip(reports) {
        state.insert(number, Slot::new(report, Destinations::all()));
    }
    state.make_room(Bounds {
        max_reports: most,
        ..Bounds::default()
    });
    state.slots.into_values().map(|slot| slot.report).collect()
}

impl State {
    /// Whether the reports are within the bounds.
    fn fits(&self, bounds: Bounds) -> bool {
        let bytes: u64 = self.slots.values().map(|slot| u64::from(slot.length)).sum();
        bytes <= bounds.max_bytes / 2 && self.slots.len() <= bounds.max_reports
    }

    /// Aggregates until a quarter of the room is free. First the older half of the reports that no destination can have
    /// received, by container and then for the node; then all of these; last also reports that a destination may have
    /// received, and may get twice. Returns how many kills lost their detail.
    fn make_room(&mut self, bounds: Bounds) -> u64 {
        let enough = Bounds {
            max_bytes: bounds.max_bytes / 4 * 3,
            max_reports: bounds.max_reports / 4 * 3,
        };
        let mut folded = 0;
        for (by_container, sent_too, divisor) in
            [(true, false, 2), (false, false, 2), (false, false, 1), (false, true, 1)]
        {
            folded += self.aggregate(by_container, sent_too, divisor);
            if self.fits(enough) {
                break;
            }
        }
        folded
    }

    /// Aggregates the reports that share a count, of the oldest part of those that no destination can have received, or of
    /// all. A report that shares its count with no other keeps its detail. Returns how many kills lost theirs.
    ///
    /// A count takes the number of its oldest report, or, if it may have been sent, a new number: a destination asks for the
    /// reports after the last that it received.
    pub(super) fn aggregate(&mut self, by_container: bool, sent_too: bool, divisor: usize) -> u64 {
        let slots = self.slots.iter();
        let slots: Vec<_> = slots.filter(|(_, slot)| sent_too || !slot.is_sent()).collect();
        // Reports that are pending for different destinations never share a count.
        let mut groups: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for (number, slot) in &slots[..slots.len().div_ceil(divisor)] {
            let facts = by_container.then(|| slot.report.facts());
            let container = facts.map(|facts| {
                let container = facts.container.as_ref().map(|container| &container.name);
                format!("{:?}", (&facts.pod, container, facts.level, facts.limit_of()))
            });
            groups.entry((slot.pending, container)).or_default().push(**number);
        }
        let mut folded = 0;
        for ((pending, _), group) in groups.into_iter().filter(|(_, group)| group.len() > 1) {
            let reports = group.iter().filter_map(|number| self.slots.remove(number));
            let reports = reports.map(|slot| {
                folded += u64::from(slot.report.kill().is_some());
                slot.report
            });
            let Some(mut sum) = reports.reduce(Report::merged) else {
                continue;
            };
            if !by_container {
                let facts = sum.facts_mut();
                *facts = KillFacts {
                    node: take(&mut facts.node),
                    ..KillFacts::default()
                };
            }
            let number = if sent_too { self.last_number + 1 } else { group[0] };
            self.insert(number, Slot::new(sum, pending));
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
        let mut state = State::default();
        for (number, (pending, report)) in (1..).zip(reports) {
            state.insert(number, Slot::new(report, from_bits(pending)));
        }
        state
    }

    /// Aggregates everything.
    fn aggregate(state: &mut State, by_container: bool) -> u64 {
        state.aggregate(by_container, false, 1)
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
        assert_eq!(aggregate(&mut state, true), 3);
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
        aggregate(&mut state, false);
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
            by_container: bool,
            twice: bool,
        ) {
            let mut before = [0u64; 3];
            for (_, pending) in &kills {
                from_bits(*pending).iter().for_each(|one| before[one.index()] += 1);
            }
            let mut state = state(kills.iter().map(|(kill, to)| (*to, kill.clone().into())));
            aggregate(&mut state, by_container);
            if twice {
                aggregate(&mut state, false);
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
