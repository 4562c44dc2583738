//! A pod's cgroup that was left below its containers. Pure.

use super::{Effect, Now, PodState};
use crate::actuate::{Grown, JobDone};
use crate::model::{BoundPod, Cause, Outcome, Resource};
use crate::plan::LowPodLevel;

impl PodState {
    /// Takes in whether the pod's cgroup allows less memory than its containers' do together. Where a pass is about the pod's
    /// memory, it writes both levels; elsewhere the pod's is raised if `repair` says so.
    pub(super) fn take_pod_level(
        &mut self,
        low: Option<LowPodLevel>,
        repair: bool,
        now: Now,
        effects: &mut Vec<Effect>,
    ) {
        let known = std::mem::replace(&mut self.low_pod_level, low) == low;
        let bound = self.live.as_ref().and_then(|live| BoundPod::new(&self.pod, live));
        let (Some(low), Some(bound)) = (low, bound) else { return };
        let written_by_passes = !self.desired.is_empty() && self.desired.scope.resources.contains(&Resource::Memory);
        if written_by_passes {
            self.work.request_pass(Cause::PodLevel, false, now.instant);
        } else if repair {
            effects.push(Effect::RaisePodLevel(bound, low));
        } else if !known {
            let reason = format!("{low}; it is raised where repairPodLevel is true");
            self.record_refusal(Cause::PodLevel, reason, now, effects);
        }
    }

    /// Takes in what became of raising the pod's memory limit.
    pub(super) fn take_raised_pod_level(&mut self, raised: Grown, now: Now, effects: &mut Vec<Effect>) {
        let Some(live) = self.live.clone() else { return };
        if raised.outcome == Outcome::Applied {
            self.low_pod_level = None;
        }
        let done = JobDone {
            steps: raised.steps,
            ..JobDone::ended(raised.outcome)
        };
        self.record(&live.id, Cause::PodLevel, done, None, now, effects);
    }
}
