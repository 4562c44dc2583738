//! Which shrinks were undone, and how long each is left alone.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::{MemoryLimit, Target};

/// How long a shrink is left alone that was undone for the first time; twice as long after each further time.
const FIRST_WAIT: Duration = Duration::from_secs(2 * 60);
const LONGEST_WAIT: Duration = Duration::from_secs(4 * 60 * 60);

/// The limits that are kept for now, although lower ones are wanted.
pub type Holds = BTreeMap<Target, MemoryLimit>;

/// One shrink that was undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Regret {
    pub target: Target,
    /// The limit in bytes it had and has again; none was unbounded.
    limit: Option<u64>,
    /// How often this has happened without a shrink that went well in between.
    pub times: u32,
    /// When it may be tried again.
    pub until: Timestamp,
    pub why: String,
    /// Nothing went wrong the last time: other pods of the workload go first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
}

/// Every shrink of one pod that was undone and not made good since.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Regrets(Vec<Regret>);

impl Regret {
    /// Whether its limit is still left alone. Nothing is for longer than the longest wait: where it seems so, the clock was
    /// set back since, and would be believed for as long as it had been wrong.
    fn is_in_force(&self, now: Timestamp) -> bool {
        now < self.until && self.until <= later(now, LONGEST_WAIT)
    }
}

impl Regrets {
    /// Notes that a limit was lowered from `before` and should not have been; returns when it may be tried again.
    pub fn note(&mut self, target: &Target, before: MemoryLimit, why: &str, now: Timestamp) -> Timestamp {
        let times = self.of(target).map_or(0, |regret| regret.times);
        let wait = FIRST_WAIT.saturating_mul(1 << times.min(16)).min(LONGEST_WAIT);
        let until = later(now, wait);
        self.0.retain(|regret| regret.target != *target);
        self.0.push(Regret {
            target: target.clone(),
            limit: match before {
                MemoryLimit::Max => None,
                MemoryLimit::Bytes(bytes) => Some(bytes),
            },
            times: times + 1,
            until,
            why: why.to_owned(),
            waits: false,
        });
        until
    }

    /// Notes that a limit is to be lowered from `before` once it is the pod's turn. What is left alone already stays so.
    pub fn put_off(&mut self, target: &Target, before: MemoryLimit, now: Timestamp) {
        if self.of(target).is_some_and(|regret| regret.is_in_force(now)) {
            return;
        }
        let times = self.of(target).map_or(0, |regret| regret.times);
        self.note(target, before, "other pods of the workload go first", now);
        if let Some(regret) = self.0.iter_mut().find(|regret| regret.target == *target) {
            (regret.times, regret.until) = (times, later(now, LONGEST_WAIT));
            regret.waits = true;
        }
    }

    /// Whether limits are kept until it is the pod's turn.
    pub fn waits(&self, now: Timestamp) -> bool {
        self.0.iter().any(|regret| regret.waits && regret.is_in_force(now))
    }

    /// It is the pod's turn, or nothing lower is wanted any more.
    pub fn end_waiting(&mut self) {
        self.0.retain(|regret| !regret.waits || regret.times > 0);
        for regret in &mut self.0 {
            if std::mem::take(&mut regret.waits) {
                regret.until = Timestamp::MIN;
            }
        }
    }

    /// A shrink went well: what was before is forgotten.
    pub fn forgive(&mut self, target: &Target) {
        self.0.retain(|regret| regret.target != *target);
    }

    /// The limits that are kept at this moment.
    pub fn holds(&self, now: Timestamp) -> Holds {
        let held = self.0.iter().filter(|regret| regret.is_in_force(now));
        held.map(|regret| {
            (
                regret.target.clone(),
                regret.limit.map_or(MemoryLimit::Max, MemoryLimit::Bytes),
            )
        })
        .collect()
    }

    /// The shrink among those undone and left alone now that may be tried first.
    pub fn next(&self, now: Timestamp) -> Option<&Regret> {
        let held = self.0.iter().filter(|regret| !regret.waits && regret.is_in_force(now));
        held.min_by_key(|regret| regret.until)
    }

    /// Whether there is nothing to remember.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn of(&self, target: &Target) -> Option<&Regret> {
        self.0.iter().find(|regret| regret.target == *target)
    }
}

/// A moment later, at the end of time at the latest.
fn later(at: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
