//! Which shrinks failed, how long the agent waits before it tries each again, and which pods of a workload may lower their
//! memory limits now: a few at a time, and no more once one has failed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::{Bytes, MemoryLimit, Target};

/// The wait after the first failure. Each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(2 * 60);
const LONGEST_WAIT: Duration = Duration::from_secs(4 * 60 * 60);

/// The limits that the agent keeps for now, although lower ones are wanted.
pub type Holds = BTreeMap<Target, MemoryLimit>;

/// One failed shrink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedShrink {
    pub target: Target,
    /// The limit in bytes that the cgroup had before and has again. None was unbounded.
    limit: Option<u64>,
    /// The number of failures since the last shrink that went well.
    pub times: u32,
    /// When the agent may try again.
    pub until: Timestamp,
    pub why: String,
    /// The agent did not try: other pods of the workload go first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
}

/// The failed shrinks of one pod, without those that went well later.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FailedShrinks(Vec<FailedShrink>);

impl FailedShrink {
    /// Whether the agent still keeps the limit: until it is the pod's turn, or for a time after a failure. A wait longer than [`LONGEST_WAIT`] means that the clock was set back.
    fn is_in_force(&self, now: Timestamp) -> bool {
        self.waits || (now < self.until && self.until <= later(now, LONGEST_WAIT))
    }

    fn kept(&self) -> MemoryLimit {
        self.limit.map_or(MemoryLimit::Max, MemoryLimit::Bytes)
    }
}

impl FailedShrinks {
    /// Notes that a limit was lowered from `before` and should not have been. Returns when the agent may try again.
    pub fn note(&mut self, target: &Target, before: MemoryLimit, why: &str, now: Timestamp) -> Timestamp {
        let earlier = self.0.iter().find(|failed| !failed.waits && failed.target == *target);
        let times = earlier.map_or(0, |failed| failed.times);
        let wait = FIRST_WAIT.saturating_mul(1 << times.min(16)).min(LONGEST_WAIT);
        self.0.retain(|failed| failed.waits || failed.target != *target);
        let until = later(now, wait);
        self.0.push(FailedShrink {
            target: target.clone(),
            limit: before.bounded().map(Bytes::get),
            times: times + 1,
            until,
            why: why.to_owned(),
            waits: false,
        });
        until
    }

    /// Keeps these limits, and no others, until it is the pod's turn, beside those that the agent keeps after a failure.
    pub fn put_off(&mut self, lowered: &[(Target, MemoryLimit)], now: Timestamp) {
        self.end_waiting();
        self.0.extend(lowered.iter().map(|(target, before)| FailedShrink {
            target: target.clone(),
            limit: before.bounded().map(Bytes::get),
            times: 0,
            // The end of the wait for an agent of the version before.
            until: later(now, LONGEST_WAIT),
            why: "other pods of the workload go first".to_owned(),
            waits: true,
        }));
    }

    /// The limit in bytes that this one keeps until it is the pod's turn.
    pub fn put_off_limit(&self, target: &Target) -> Option<u64> {
        let mut waiting = self.0.iter().filter(|failed| failed.waits);
        waiting.find(|failed| failed.target == *target)?.limit
    }

    /// Whether the pod keeps limits until it is its turn.
    pub fn waits(&self) -> bool {
        self.0.iter().any(|failed| failed.waits)
    }

    /// Ends the wait: it is the pod's turn, or no lower limit is wanted any more.
    pub fn end_waiting(&mut self) {
        self.0.retain(|failed| !failed.waits);
    }

    /// Whether a shrink failed, and none went well since.
    pub fn has_failed(&self) -> bool {
        self.0.iter().any(|failed| !failed.waits)
    }

    /// Forgets the failures of a shrink that went well: the limit came down to `to`, below the one that the agent kept. A lower limit
    /// that waits for the pod's turn since then still waits.
    pub fn forgive(&mut self, target: &Target, to: MemoryLimit) {
        self.0
            .retain(|failed| failed.waits || failed.target != *target || failed.kept() <= to);
        self.0.shrink_to_fit();
    }

    /// Forgets a shrink that failed, and one that waits.
    pub fn forget(&mut self, target: &Target) {
        self.0.retain(|failed| failed.target != *target);
        self.0.shrink_to_fit();
    }

    /// The limits that the agent keeps now.
    pub fn holds(&self, now: Timestamp) -> Holds {
        let mut holds = Holds::new();
        for failed in self.0.iter().filter(|failed| failed.is_in_force(now)) {
            let highest = holds.entry(failed.target.clone()).or_insert(failed.kept());
            *highest = failed.kept().max(*highest);
        }
        holds
    }

    /// The failed shrink that the agent may try again first.
    pub fn next(&self, now: Timestamp) -> Option<&FailedShrink> {
        let held = self.0.iter().filter(|failed| !failed.waits && failed.is_in_force(now));
        held.min_by_key(|failed| failed.until)
    }

    /// When the agent may try each shrink again.
    pub fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.0.iter_mut().map(|failed| &mut failed.until)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Saturates at the largest time.
fn later(at: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

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
        fn few_shrink_at_once_none_beside_a_failure(pods in any_pods()) {
            let turns = next_turns(&pods);
            prop_assert!(turns.iter().all(|index| pods[*index].1 == Progress::Waits));
            for workload in 0..4 {
                let count = |progress| pods.iter().filter(|pod| **pod == (workload, progress)).count();
                let given = turns.iter().filter(|index| pods[**index].0 == workload).count();
                let (waiting, tried) = (count(Progress::Waits), count(Progress::Tried));
                if count(Progress::Undone) > 0 {
                    prop_assert_eq!(given, 0);
                } else {
                    // Start as many shrinks as the limit allows.
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
