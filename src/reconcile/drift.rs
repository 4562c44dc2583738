//! How the latest pass left a pod's files and its runtime. Pure.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::pod::Now;
use crate::actuate::ForeignWriters;
use crate::model::{Cause, ChangeRecord, ControlFile, Outcome, Target};
use crate::pace::Backoff;
use crate::plan::LowPodLevel;

/// The pause after the first failed attempt to raise the memory limit of a pod's cgroup. Doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// How the latest pass left the pod's files and its runtime.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drift {
    is_in_sync: bool,
    owes_runtime: bool,
    low_pod_level: Option<LowPodLevel>,
    /// Spaces attempts to raise the pod's cgroup, and when the next one may come; `None` unless the latest one failed.
    raises: Option<(Backoff, Instant)>,
    writers: ForeignWriters,
    reason: String,
}

impl Drift {
    /// Whether every file had its desired value. A file that differs later was changed by another process.
    pub(crate) const fn is_in_sync(&self) -> bool {
        self.is_in_sync
    }

    /// Whether the runtime's stored spec is still to be updated.
    pub(crate) const fn owes_runtime(&self) -> bool {
        self.owes_runtime
    }

    /// How much less memory the pod's cgroup allows than its containers' cgroups do together, if it does.
    pub(crate) const fn low_pod_level(&self) -> Option<LowPodLevel> {
        self.low_pod_level
    }

    /// Other processes that change the pod's values.
    pub(crate) const fn writers(&self) -> &ForeignWriters {
        &self.writers
    }

    /// Why the latest pass did not succeed; empty where it did.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// The values that other processes keep changing and that are left alone now, and until when.
    pub(crate) fn paused(&self, now: Timestamp) -> impl Iterator<Item = (&Target, ControlFile, Timestamp)> {
        self.writers.all_paused(now)
    }

    /// Every date that is compared with the wall clock.
    pub(crate) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.writers.dates()
    }

    /// What keeps changing a value that is left alone now.
    pub(crate) fn detail(&self, now: Timestamp) -> Option<String> {
        let (target, file, until) = self.paused(now).next()?;
        Some(format!(
            "another program keeps changing {file} of {target}; left alone until {until}"
        ))
    }

    /// When a value that is left alone is looked at again, as a sentence.
    pub(crate) fn next_step(&self, now: Timestamp) -> Option<String> {
        let (target, file, until) = self.paused(now).next()?;
        Some(format!("{file} of {target} is checked again at {until:.0}."))
    }

    /// Whether nothing is to be done about files and runtime until another input arrives.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_in_sync && !self.owes_runtime && self.writers.is_empty()
    }

    /// Forgets what passes found for other targets.
    pub(crate) fn start_over(&mut self) {
        self.writers.forget();
        self.is_in_sync = false;
    }

    /// The cause of a pass with this record. For one that only checked the pod, that is the drift which it found, if any: this agent, or
    /// the kubelet at its request, may have written the files that the kernel reported. Where no other process `has_flipped` a value, a
    /// kubelet that `is_resizing` the pod wrote them.
    pub(crate) fn cause_of(&self, record: &ChangeRecord, has_flipped: bool, is_resizing: bool) -> Cause {
        let has_patched = record.steps.iter().any(|step| !step.change.writes_cgroups());
        let has_repaired = self.is_in_sync && !record.steps.is_empty() && !has_patched;
        match &record.cause {
            Cause::Drift | Cause::Sweep if has_flipped => Cause::Drift,
            Cause::Drift | Cause::Sweep if has_repaired && is_resizing => Cause::DriftInFlight,
            Cause::Drift | Cause::Sweep => Cause::Sweep,
            cause => cause.clone(),
        }
    }

    /// Notes the outcome of a pass. One that `is_current` had the present targets.
    pub(crate) fn ended(&mut self, outcome: &Outcome, foreign: ForeignWriters, is_current: bool) {
        self.owes_runtime = matches!(outcome, Outcome::RuntimeOwed(_));
        if is_current {
            (self.is_in_sync, self.writers) = (outcome.is_kept(), foreign);
        }
    }

    /// Notes why the latest attempt to change the pod did not succeed, if it did not.
    pub(crate) fn note_reason(&mut self, reason: Option<&str>) {
        reason.unwrap_or_default().clone_into(&mut self.reason);
    }

    /// Notes whether the pod's cgroup is below its containers. Returns whether that was known.
    pub(crate) fn read_pod_level(&mut self, low: Option<LowPodLevel>) -> bool {
        let is_known = std::mem::replace(&mut self.low_pod_level, low) == low;
        self.raises.take_if(|_| !is_known);
        is_known
    }

    /// Whether the agent may raise the pod's cgroup: not for a while after a failed attempt.
    pub(crate) fn may_raise(&self, now: Instant) -> bool {
        self.raises.as_ref().is_none_or(|(_, at)| *at <= now)
    }

    /// Notes a failed attempt to raise the pod's cgroup.
    pub(crate) fn raise_failed(&mut self, now: Now) {
        let first = (Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), now.instant);
        let (backoff, at) = self.raises.get_or_insert(first);
        *at = now.instant + backoff.next_at(None, now.fraction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bytes;

    #[test]
    fn a_pod_level_that_stays_low_is_raised_ever_later() {
        let low = |needs| LowPodLevel {
            holds: Bytes::new(1),
            needs: Bytes::new(needs),
        };
        let (mut drift, now) = (Drift::default(), Now::read());
        let may_raise = |drift: &Drift, seconds| drift.may_raise(now.instant + Duration::from_secs(seconds));
        for (failures, pause) in [(0, 0), (1, 60), (2, 120), (3, 240)] {
            assert!(!drift.read_pod_level(Some(low(2))) || failures > 0);
            assert!(pause == 0 || !may_raise(&drift, pause / 2 - 1), "{failures}");
            assert!(may_raise(&drift, pause), "{failures}");
            drift.raise_failed(now);
        }
        drift.read_pod_level(Some(low(3)));
        assert!(may_raise(&drift, 0), "it needs something else now");
    }

    #[test]
    fn each_outcome_leaves_its_drift() {
        let why = String::new;
        for (outcome, is_in_sync, owes, is_settled) in [
            (Outcome::Applied, true, false, true),
            (Outcome::RuntimeOwed(why()), true, true, false),
            (Outcome::Refused(why()), false, false, false),
        ] {
            let mut drift = Drift::default();
            drift.ended(&outcome, ForeignWriters::default(), false);
            assert_eq!(
                (drift.is_in_sync, drift.owes_runtime),
                (false, owes),
                "of an earlier state"
            );
            drift.ended(&outcome, ForeignWriters::default(), true);
            assert_eq!((drift.is_in_sync, drift.is_settled()), (is_in_sync, is_settled));
            drift.start_over();
            assert_eq!((drift.is_in_sync, drift.owes_runtime), (false, owes));
        }
    }

    #[test]
    fn a_value_that_keeps_changing_settles_nothing() {
        let (mut drift, now) = (Drift::default(), Timestamp::now());
        let mut writers = ForeignWriters::default();
        writers.flipped(&Target::Pod, ControlFile::MemoryMax, now);
        drift.ended(&Outcome::Applied, writers, true);
        assert!(drift.is_in_sync && !drift.is_settled());
        drift.start_over();
        assert!(drift.writers.is_empty());
    }
}
