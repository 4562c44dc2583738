//! Detail → counts, for when there is no more room for detail. Pure.
//!
//! In come reports, oldest first, with who is still owed them; out come fewer. The sum of their counts is the same for
//! every destination: nothing is dropped, and nothing is counted for somebody who has it already.

use std::collections::BTreeMap;

use super::content::{Folded, Report};
use super::destination::Destinations;

/// What is kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grain {
    /// Containers of pods, and levels.
    Container,
    /// Nothing: one count for the node.
    Node,
}

/// Folds reports one by one, so that they need not be held all at once.
#[derive(Debug)]
pub(super) struct Folder {
    grain: Grain,
    groups: BTreeMap<Key, Group>,
}

/// What is folded together. A report that not the same destinations are owed is never in the same group.
type Key = (Destinations, Option<[String; 5]>);

#[derive(Debug)]
struct Group {
    number: u64,
    report: Report,
    /// How many reports it is made of.
    of: usize,
}

/// One report after folding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The number of the oldest in it, which is its own now.
    pub(super) number: u64,
    /// Who is owed it.
    pub(super) owed: Destinations,
    /// The report. A single one keeps its detail.
    pub(super) report: Report,
    /// Whether it is another than before.
    pub(super) changed: bool,
}

impl Folder {
    /// Nothing folded yet.
    pub(super) const fn new(grain: Grain) -> Self {
        Self {
            grain,
            groups: BTreeMap::new(),
        }
    }

    /// Folds one in. The numbers must ascend.
    pub(super) fn add(&mut self, number: u64, owed: Destinations, report: Report) {
        let key = (owed, (self.grain == Grain::Container).then(|| container(&report)));
        let Some(group) = self.groups.remove(&key) else {
            self.groups.insert(key, Group { number, report, of: 1 });
            return;
        };
        let mut folded = self.prepared(group.report.folded());
        folded.count_in(self.prepared(report.folded()));
        let group = Group {
            report: Report::Folded(Box::new(folded)),
            of: group.of + 1,
            ..group
        };
        self.groups.insert(key, group);
    }

    /// What there is now, oldest first.
    pub(super) fn finish(self) -> Vec<Kept> {
        let mut kept: Vec<_> = self
            .groups
            .into_iter()
            .map(|((owed, _), group)| Kept {
                number: group.number,
                owed,
                report: group.report,
                changed: group.of > 1,
            })
            .collect();
        kept.sort_by_key(|kept| kept.number);
        kept
    }

    fn prepared(&self, folded: Folded) -> Folded {
        match self.grain {
            Grain::Container => folded,
            Grain::Node => folded.coarsened(),
        }
    }
}

/// Whose kill it was, and at which level.
fn container(report: &Report) -> [String; 5] {
    let (pod, container) = (report.pod(), report.container());
    [
        pod.map_or(String::new(), |pod| pod.uid.clone()),
        pod.map_or(String::new(), |pod| pod.namespace.clone()),
        pod.map_or(String::new(), |pod| pod.name.clone()),
        container.map_or(String::new(), |container| container.name.clone()),
        report.level().as_str().to_owned(),
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
        let mut folder = Folder::new(Grain::Container);
        for number in 1..=3 {
            let mut kill = kill_of("web", number);
            kill.limit.usage_bytes = Some(100 - number);
            folder.add(number, grpc(), kill.into());
        }
        folder.add(4, grpc(), kill_of("other", 4).into());
        let kept = folder.finish();
        assert_eq!(kept.len(), 2);
        let Report::Folded(folded) = &kept[0].report else {
            panic!("not folded: {kept:?}")
        };
        assert_eq!((kept[0].number, folded.count, kept[0].changed), (1, 3, true));
        assert_eq!(folded.limit.usage_bytes, Some(99));
        assert_eq!(folded.pod.as_ref().unwrap().name, "web");
        assert!(
            matches!(kept[1].report, Report::Kill(_)),
            "a single one keeps its detail"
        );
    }

    #[test]
    fn at_the_coarsest_nothing_claims_to_be_about_one_pod() {
        let mut folder = Folder::new(Grain::Node);
        folder.add(1, grpc(), kill_of("web", 1).into());
        folder.add(2, grpc(), kill_of("other", 2).into());
        let kept = folder.finish();
        assert_eq!(kept.len(), 1);
        assert_eq!(
            (kept[0].report.count(), kept[0].report.pod(), kept[0].report.container()),
            (2, None, None)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn folding_loses_no_kill_for_any_destination(
            kills in prop::collection::vec((arbitrary_kill(), 1u32..8), 0..60),
            coarse: bool,
            twice: bool,
        ) {
            let mut before = [0u64; 3];
            let mut folder = Folder::new(if coarse { Grain::Node } else { Grain::Container });
            for (number, (kill, owed)) in (1..).zip(&kills) {
                let owed = Destinations::from_bits(*owed);
                owed.iter().for_each(|one| before[one.index()] += 1);
                folder.add(number, owed, kill.clone().into());
            }
            let mut kept = folder.finish();
            if twice {
                let mut again = Folder::new(Grain::Node);
                kept.into_iter().for_each(|kept| again.add(kept.number, kept.owed, kept.report));
                kept = again.finish();
                prop_assert!(kept.len() <= 7);
            }
            let mut after = [0u64; 3];
            for one in &kept {
                one.owed.iter().for_each(|to| after[to.index()] += one.report.count());
                prop_assert!(one.report.first() <= one.report.last());
            }
            prop_assert_eq!(before, after);
            prop_assert!(kept.windows(2).all(|pair| pair[0].number < pair[1].number));
        }
    }
}
