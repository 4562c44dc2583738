//! Which shrinks failed, and how long the agent waits before it tries each again.

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
    /// Whether the agent still keeps the limit. A wait longer than [`LONGEST_WAIT`] means that the clock was set back.
    fn is_in_force(&self, now: Timestamp) -> bool {
        now < self.until && self.until <= later(now, LONGEST_WAIT)
    }
}

impl FailedShrinks {
    /// Notes that a limit was lowered from `before` and should not have been. Returns when the agent may try again.
    pub fn note(&mut self, target: &Target, before: MemoryLimit, why: &str, now: Timestamp) -> Timestamp {
        let times = self.of(target).map_or(0, |failed| failed.times);
        let wait = FIRST_WAIT.saturating_mul(1 << times.min(16)).min(LONGEST_WAIT);
        self.forgive(target);
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

    /// Keeps the limit `before` until it is the pod's turn, unless the agent keeps a limit already.
    pub fn put_off(&mut self, target: &Target, before: MemoryLimit, now: Timestamp) {
        let known = self.of(target);
        if known.is_some_and(|failed| failed.is_in_force(now)) {
            return;
        }
        let times = known.map_or(0, |failed| failed.times);
        self.note(target, before, "other pods of the workload go first", now);
        if let Some(failed) = self.0.last_mut() {
            (failed.times, failed.until) = (times, later(now, LONGEST_WAIT));
            failed.waits = true;
        }
    }

    /// Whether the pod keeps limits until it is its turn.
    pub fn waits(&self, now: Timestamp) -> bool {
        self.0.iter().any(|failed| failed.waits && failed.is_in_force(now))
    }

    /// Ends the wait: it is the pod's turn, or no lower limit is wanted any more.
    pub fn end_waiting(&mut self) {
        self.0.retain(|failed| !failed.waits || failed.times > 0);
        for failed in &mut self.0 {
            if std::mem::take(&mut failed.waits) {
                failed.until = Timestamp::MIN;
            }
        }
    }

    /// Forgets the failures of a shrink that went well.
    pub fn forgive(&mut self, target: &Target) {
        self.0.retain(|failed| failed.target != *target);
    }

    /// The limits that the agent keeps now.
    pub fn holds(&self, now: Timestamp) -> Holds {
        let held = self.0.iter().filter(|failed| failed.is_in_force(now));
        let limit = |failed: &FailedShrink| failed.limit.map_or(MemoryLimit::Max, MemoryLimit::Bytes);
        held.map(|failed| (failed.target.clone(), limit(failed))).collect()
    }

    /// The failed shrink that the agent may try again first.
    pub fn next(&self, now: Timestamp) -> Option<&FailedShrink> {
        let held = self.0.iter().filter(|failed| !failed.waits && failed.is_in_force(now));
        held.min_by_key(|failed| failed.until)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn of(&self, target: &Target) -> Option<&FailedShrink> {
        self.0.iter().find(|failed| failed.target == *target)
    }
}

/// Saturates at the largest time.
fn later(at: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
