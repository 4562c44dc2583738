//! Reports in detail → counts, for when there is no room for all of the detail. Pure.
//!
//! The sum of the counts stays the same for every destination: no kill is dropped, and none is counted for a destination
//! that has acknowledged it.

use std::collections::BTreeMap;

use crate::report::content::{Aggregate, Report};
use crate::report::destination::Destinations;

/// Which kills share a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grain {
    /// Those of one container at one level.
    Container,
    Node,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Aggregated {
    /// The number of its oldest report.
    pub(super) number: u64,
    pub(super) pending: Destinations,
    /// A report that shares its count with no other keeps its detail.
    pub(super) report: Report,
    pub(super) changed: bool,
}

/// Reports that are pending for different destinations never share a count.
type Key = (Destinations, Option<[String; 6]>);

/// Aggregates reports with their numbers, which must ascend.
pub(super) fn aggregate(
    reports: impl IntoIterator<Item = (u64, Destinations, Report)>,
    grain: Grain,
) -> Vec<Aggregated> {
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
