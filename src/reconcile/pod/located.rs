//! Where the pod runs, the state that an earlier agent saved for it, and repairs of its cgroup. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Effect, Effects, PodState, not_running};
use crate::actuate::Grown;
use crate::guard::LatestLimits;
use crate::model::objects::PodUid;
use crate::model::{BoundPod, Cause, LivePod, Outcome, Resource};
use crate::plan::LowPodLevel;
use crate::reconcile::store::{SavedPod, SavedTargets};

/// The facts of discovery about a pod, with the state that an earlier agent saved for the pod.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) live: Option<Arc<LivePod>>,
    /// The saved state of this pod.
    pub(crate) saved: Option<SavedPod>,
    /// Memory limits by container that the guard grew, that are still in force and that may be in no state file. `None`
    /// where the guard grew no limit, or the state file is complete.
    pub(crate) unsaved_limits: Option<LatestLimits>,
}

impl PodState {
    /// Notes which pod runs now, and where, and makes a pass due.
    pub(super) fn locate(&mut self, located: Located, effects: &mut Effects) {
        let now = effects.now;
        let earlier = std::mem::replace(&mut self.live, located.live);
        self.shrink.live_changed(earlier.as_deref(), self.live.as_deref());
        self.start_over();
        let Some(live) = self.live.clone() else {
            self.hooks.forget_announced();
            return self.stop_running(&not_running(&self.pod), effects);
        };
        let earlier = self.identity.replace(live.id.clone());
        if earlier.is_some_and(|earlier| earlier.uid != live.id.uid) {
            // Of the other pod's state only the passes stay: one of them may run still.
            self.stop_running(&not_running(&self.pod), effects);
            let mut new = Self::new(Arc::clone(&self.pod), self.decision.clone());
            new.decision.canary.waits = None;
            (new.live, new.identity, new.work) =
                (self.live.take(), self.identity.take(), std::mem::take(&mut self.work));
            *self = new;
            effects.push(Effect::Decide);
        }
        let Located {
            saved, unsaved_limits, ..
        } = located;
        let (is_restored, is_known) = (saved.is_some(), saved.is_some() || unsaved_limits.is_some());
        self.restore(saved, unsaved_limits, effects);
        let desired = self.desired.targets(&self.pod).filter(|_| is_restored);
        let limits = desired.unwrap_or_else(|| self.pod.requirements());
        self.hooks.update(&self.pod, Some(&live), &limits);
        if !self.desired.is_empty() {
            let cause = if is_known {
                Cause::AgentStarted
            } else {
                Cause::ContainerStarted
            };
            self.work.request_pass(cause, true, now.instant);
        }
        self.record_unreadable(effects);
    }

    /// Applies the saved state of an earlier agent, if there is one, and the limits of its guard that are not saved.
    fn restore(&mut self, saved: Option<SavedPod>, unsaved: Option<LatestLimits>, effects: &mut Effects) {
        let now = effects.now.wall;
        let before = saved.map(|saved| {
            let SavedPod {
                pod: _,
                described,
                state: SavedTargets { desired, resize },
                failed_shrinks,
                pauses,
                evidence_at,
                waits,
            } = saved;
            self.growth.restore(pauses);
            self.hooks.restore(evidence_at);
            self.decision.canary.waits = waits.or(self.decision.canary.waits.take());
            let is_followed = self.decision.change().is_some() && self.no_room.is_none();
            // The API server may have been asked for the targets of the saved recommendation.
            let asked = resize.has_asked_for(&desired.targets(&self.pod).unwrap_or_default());
            self.desired.restore(desired, asked, is_followed);
            self.resize = resize;
            // The clock may have been set back while no agent ran: what would begin in the future begins now.
            let starts = self.desired.latest_start().into_iter();
            let starts = starts.chain(self.hooks.dates().map(|at| *at));
            let latest = starts.fold(now, Timestamp::max);
            self.shrink.restore(failed_shrinks, latest);
            self.move_dates(now.duration_since(latest));
            described.unwrap_or_else(|| Arc::clone(&self.pod))
        });
        if let Some(limits) = unsaved {
            self.desired
                .recover(limits, &self.pod, &self.resize, &self.holds(now), now);
        }
        let Some(before) = before else { return };
        effects.push(Effect::Decide);
        // A request that was taken back leaves limits in the spec that the guard had raised.
        self.resize
            .restored(&self.pod, |undone| self.desired.with_temporary(undone));
        self.take_edits(&before, effects);
        if self.resize.is_ahead() {
            self.yield_to_spec(None, effects);
        }
    }

    /// Notes whether the pod's cgroup allows less memory than its containers' do together. A pass that owns the pod's
    /// memory writes both levels; for other pods, `repair` raises the pod's level alone.
    pub(super) fn take_pod_level(&mut self, low: Option<LowPodLevel>, repair: bool, effects: &mut Effects) {
        let known = self.drift.read_pod_level(low);
        let bound = self.live.as_ref().and_then(|live| BoundPod::new(&self.pod, live));
        let (Some(low), Some(bound)) = (low, bound) else { return };
        let written_by_passes = self.desired.has_amounts() && self.desired.scope.resources.contains(&Resource::Memory);
        if written_by_passes {
            if self.is_enforced() {
                self.work.request_pass(Cause::PodLevel, false, effects.now.instant);
            }
        } else if repair {
            if self.drift.may_raise(effects.now.instant) {
                effects.push(Effect::RaisePodLevel { bound, low });
            }
        } else if !known {
            let reason = format!("{low}; set repairPodLevel: true to have vscaled raise it");
            self.record_refusal(Cause::PodLevel, reason, effects);
        }
    }

    /// Records the attempt to raise the pod's memory limit.
    pub(super) fn take_raised_pod_level(&mut self, uid: &PodUid, raised: Grown, effects: &mut Effects) {
        let Some(live) = self.live.clone().filter(|live| live.id.uid == *uid) else {
            return;
        };
        if raised.outcome == Outcome::Applied {
            self.drift.read_pod_level(None);
        } else {
            self.drift.raise_failed(effects.now);
        }
        let record = raised.record(live.id.clone(), Cause::PodLevel);
        self.record(record, None, true, effects);
    }
}
