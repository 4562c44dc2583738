//! Keeps the log within its bounds: aggregates the oldest detail, and drops what is acknowledged from the file.
//!
//! Where there is no room for all of the detail of reports they become counts ([`aggregate`]). The sum of the counts stays the same for every destination: no kill is dropped, and none is counted for a destination
//! that has acknowledged it.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use super::state::Slot;
use super::{KillLog, length_of, wide};
use crate::report::content::{Aggregate, Report};
use crate::report::destination::Destinations;

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
        if self.is_in_memory_only() || self.file.length <= small {
            return;
        }
        let lengths = self.state.slots.values().map(|slot| u64::from(slot.length));
        let needed = lengths.sum::<u64>() + wide(self.state.checkpoint.len());
        if self.file.length / 4 > needed {
            self.rewrite();
        }
    }

    /// Writes everything that is needed into a new file, which replaces the old one. If that fails, nothing more
    /// is written until [`KillLog::restore`] succeeds.
    pub(super) fn rewrite(&mut self) {
        if !self.file.is_open {
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

/// Which kills share a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grain {
    /// Those of one container at one level.
    Container,
    Node,
}

#[derive(Debug, PartialEq, Eq)]
struct Aggregated {
    /// The number of its oldest report.
    number: u64,
    pending: Destinations,
    /// A report that shares its count with no other keeps its detail.
    report: Report,
    changed: bool,
}

/// Reports that are pending for different destinations never share a count.
type Key = (Destinations, Option<[String; 6]>);

/// Aggregates reports with their numbers, which must ascend.
fn aggregate(reports: impl IntoIterator<Item = (u64, Destinations, Report)>, grain: Grain) -> Vec<Aggregated> {
    let mut groups: BTreeMap<Key, Aggregated> = BTreeMap::new();
    for (number, pending, report) in reports {
        let key = (pending, (grain == Grain::Container).then(|| container_of(&report)));
        let group = match groups.remove(&key) {
            None => Aggregated {
                number,
                pending,
                report,
                changed: false,
            },
            Some(group) => {
                let mut sum = at_grain(group.report, grain);
                sum.add(at_grain(report, grain));
                Aggregated {
                    report: Report::Aggregate(Box::new(sum)),
                    changed: true,
                    ..group
                }
            }
        };
        groups.insert(key, group);
    }
    let mut aggregated: Vec<_> = groups.into_values().collect();
    aggregated.sort_by_key(|one| one.number);
    aggregated
}

fn at_grain(report: Report, grain: Grain) -> Aggregate {
    match grain {
        Grain::Container => report.into_aggregate(),
        Grain::Node => report.into_aggregate().of_node(),
    }
}

fn container_of(report: &Report) -> [String; 6] {
    let facts = report.facts();
    let (pod, container) = (facts.pod.as_ref(), facts.container.as_ref());
    [
        pod.map_or(String::new(), |pod| pod.uid.clone()),
        pod.map_or(String::new(), |pod| pod.namespace.clone()),
        pod.map_or(String::new(), |pod| pod.name.clone()),
        container.map_or(String::new(), |container| container.name.clone()),
        facts.level.to_string(),
        facts.limit_of().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::testing::{arbitrary_kill, kill_of};

    fn grpc() -> Destinations {
        Destinations::from_bits(4)
    }

    #[test]
    fn kills_of_one_container_become_one_count_that_keeps_the_highest_usage() {
        let mut reports = Vec::new();
        for number in 1..=3 {
            let mut kill = kill_of("web", number);
            kill.facts.limit.usage_bytes = Some(100 - number);
            reports.push((number, grpc(), kill.into()));
        }
        reports.push((4, grpc(), kill_of("other", 4).into()));
        let kept = aggregate(reports, Grain::Container);
        assert_eq!(kept.len(), 2);
        let Report::Aggregate(sum) = &kept[0].report else {
            panic!("not aggregated: {kept:?}")
        };
        assert_eq!((kept[0].number, sum.count, kept[0].changed), (1, 3, true));
        assert_eq!(sum.facts.limit.usage_bytes, Some(99));
        assert_eq!(sum.facts.pod.as_ref().unwrap().name, "web");
        assert!(
            matches!(kept[1].report, Report::Kill(_)),
            "a single one keeps its detail"
        );
    }

    #[test]
    fn a_count_of_the_node_does_not_claim_to_be_about_one_pod() {
        let kills = [(1, "web"), (2, "other")].map(|(number, pod)| (number, grpc(), kill_of(pod, number).into()));
        let kept = aggregate(kills, Grain::Node);
        assert_eq!(kept.len(), 1);
        assert_eq!(
            {
                let facts = kept[0].report.facts();
                (kept[0].report.count(), &facts.pod, &facts.container)
            },
            (2, &None, &None)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn aggregation_loses_no_kill_for_any_destination(
            kills in prop::collection::vec((arbitrary_kill(), 1u32..8), 0..60),
            coarse: bool,
            twice: bool,
        ) {
            let mut before = [0u64; 3];
            for (_, pending) in &kills {
                Destinations::from_bits(*pending).iter().for_each(|one| before[one.index()] += 1);
            }
            let numbered = (1..).zip(&kills);
            let reports = numbered.map(|(number, (kill, to))| (number, Destinations::from_bits(*to), kill.clone().into()));
            let mut kept = aggregate(reports, if coarse { Grain::Node } else { Grain::Container });
            if twice {
                kept = aggregate(kept.into_iter().map(|one| (one.number, one.pending, one.report)), Grain::Node);
                prop_assert!(kept.len() <= 7);
            }
            let mut after = [0u64; 3];
            for one in &kept {
                one.pending.iter().for_each(|to| after[to.index()] += one.report.count());
                prop_assert!(one.report.first() <= one.report.last());
            }
            prop_assert_eq!(before, after);
            prop_assert!(kept.windows(2).all(|pair| pair[0].number < pair[1].number));
        }
    }
}
