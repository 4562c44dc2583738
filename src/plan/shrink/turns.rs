//! Which pods of a workload may lower their memory limits now: a few at a time, and no more once one has failed.

use std::collections::BTreeMap;

/// How many pods of one workload may try lower memory limits at the same time on a node.
const AT_ONCE: usize = 3;

/// The progress of a pod's lower memory limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The limits wait for the pod's turn.
    Waits,
    /// The agent writes or watches the limits.
    Tried,
    /// The agent has undone the limits, and waits before it tries again.
    Undone,
}

/// The indices of the pods whose turn it is. Each pod comes with its workload.
pub fn next_turns<W: Ord>(pods: &[(W, Progress)]) -> Vec<usize> {
    let mut free: BTreeMap<&W, usize> = pods.iter().map(|(workload, _)| (workload, AT_ONCE)).collect();
    for (workload, progress) in pods {
        let left = match progress {
            Progress::Waits => continue,
            Progress::Tried => 1,
            Progress::Undone => AT_ONCE,
        };
        free.entry(workload)
            .and_modify(|free| *free = free.saturating_sub(left));
    }
    let waiting = pods.iter().enumerate().filter(|(_, pod)| pod.1 == Progress::Waits);
    let turns = waiting.filter(|(_, (workload, _))| {
        let free = free.entry(workload).or_default();
        let has_turn = *free > 0;
        *free = free.saturating_sub(1);
        has_turn
    });
    turns.map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_pods() -> impl Strategy<Value = Vec<(u8, Progress)>> {
        let progress = prop_oneof![
            4 => Just(Progress::Waits),
            2 => Just(Progress::Tried),
            1 => Just(Progress::Undone),
        ];
        prop::collection::vec((0_u8..4, progress), 0..30)
    }

    proptest! {
        #[test]
        fn a_few_at_a_time_and_none_beside_one_that_failed(pods in any_pods()) {
            let turns = next_turns(&pods);
            prop_assert!(turns.iter().all(|index| pods[*index].1 == Progress::Waits));
            for workload in 0..4 {
                let count = |progress| pods.iter().filter(|pod| **pod == (workload, progress)).count();
                let given = turns.iter().filter(|index| pods[**index].0 == workload).count();
                let (waiting, tried) = (count(Progress::Waits), count(Progress::Tried));
                if count(Progress::Undone) > 0 {
                    prop_assert_eq!(given, 0);
                } else {
                    // As many as there is room for, so that nobody waits for nothing.
                    prop_assert_eq!(given, waiting.min(AT_ONCE.saturating_sub(tried)));
                }
            }
        }

        #[test]
        fn where_all_go_well_all_have_their_turn(count in 0_usize..40) {
            let mut pods = vec![((), Progress::Waits); count];
            let mut rounds = 0;
            while !pods.is_empty() {
                for index in next_turns(&pods) {
                    pods[index].1 = Progress::Tried;
                }
                // Those that were tried are content.
                pods.retain(|(_, progress)| *progress == Progress::Waits);
                rounds += 1;
            }
            prop_assert_eq!(rounds, count.div_ceil(AT_ONCE));
        }
    }
}
