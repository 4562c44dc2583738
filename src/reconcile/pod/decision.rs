//! Brings decisions into force in the desired state. Pure.

use std::time::Duration;

use jiff::Timestamp;

use super::{Effect, NoRoomFor, Now, PodState};
use crate::model::{Cause, MemoryLimit, NamedRequirements, Reason, Target};
use crate::plan::lift_kept;
use crate::reconcile::desired::Recommended;
use crate::reconcile::worth::requests;

/// Whether a decision ends an earlier recommendation: no VPA asks for its values any more.
pub(crate) const fn ends_recommendation(reason: Reason) -> bool {
    matches!(reason, Reason::NoVpa | Reason::NotActedOn | Reason::Ignored)
}

impl PodState {
    pub(crate) fn recommendation(&self, now: Timestamp) -> Option<Recommended> {
        self.decision.change().map(|(_, targets)| Recommended {
            vpa: self.decision.vpa.clone(),
            at: now,
            targets: targets.to_vec(),
        })
    }

    /// Brings the decision into force, and makes a pass due if the targets change.
    pub(super) fn follow(&mut self, refused: Option<String>, cause: Option<Cause>, delay: Duration, now: Now) {
        let known = self.no_room.take();
        let recommended = self.recommendation(now.wall);
        if recommended.is_none() && !ends_recommendation(self.decision.reason) {
            self.end_overtaken();
            return;
        }
        let before = self.desired.targets(&self.pod);
        match (recommended, refused) {
            (Some(Recommended { targets, .. }), Some(why)) => {
                let recorded = known.is_some_and(|known| known.recorded && known.targets == targets);
                self.no_room = Some(NoRoomFor { targets, why, recorded });
            }
            (Some(recommended), None) => {
                let had = || requests(&before.clone().unwrap_or_else(|| self.pod.requirements()));
                self.desired.before.get_or_insert_with(had);
                self.desired.recommended = Some(recommended);
            }
            (None, _) => self.desired.end_recommendation(),
        }
        let after = self.desired.targets(&self.pod);
        if before != after {
            let mut in_force = before.unwrap_or_else(|| self.pod.requirements());
            lift_kept(&self.holds(now.wall), &mut in_force);
            self.start_over();
            let lowered = lowered(&in_force, after.as_deref().unwrap_or_default());
            self.shrink.put_off(&lowered, now.wall);
            if after.is_some()
                && let Some(cause) = cause
            {
                self.work.request_pass_after(cause, delay, now.instant);
            }
        }
        self.end_overtaken();
    }

    /// Ends temporary limits that are not above the decided limits any more.
    fn end_overtaken(&mut self) {
        for limit in self.desired.end_overtaken(&self.pod) {
            tracing::info!(
                pod = self.pod.full_name(),
                container = limit.container,
                limit = limit.to,
                "a temporary limit is recommended now"
            );
        }
    }

    /// Records once for each value that an annotation of the VPA cannot be parsed, if the pod runs.
    pub(super) fn record_unreadable(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let unreadable = self.decision.unreadable();
        if self.live.is_none() || unreadable == self.unreadable {
            return;
        }
        self.unreadable.clone_from(&unreadable);
        if let (Some(why), Some(vpa)) = (unreadable, self.decision.vpa.clone()) {
            let cause = Cause::Recommendation {
                vpa,
                resource_version: String::new(),
                reason: self.decision.reason,
            };
            self.record_refusal(cause, why, now, effects);
        }
    }

    /// Records once for each recommendation that the node has no room for it.
    pub(super) fn record_no_room(&mut self, cause: Option<Cause>, now: Now, effects: &mut Vec<Effect>) {
        let Some(no_room) = self.no_room.as_mut().filter(|no_room| !no_room.recorded) else {
            return;
        };
        no_room.recorded = true;
        let reason = no_room.why.clone();
        if let (Some(cause), Some(_)) = (cause, &self.live) {
            tracing::warn!(pod = self.pod.full_name(), %cause, "not done: {reason}");
            self.record_refusal(cause, reason, now, effects);
        }
    }
}

/// The containers whose memory limit comes down, and their limit before.
fn lowered(before: &[NamedRequirements], after: &[NamedRequirements]) -> Vec<(Target, MemoryLimit)> {
    let limit = |named: &NamedRequirements| {
        let limit = named.resources.limits.memory;
        limit.map_or(MemoryLimit::Max, |limit| MemoryLimit::Bytes(limit.get()))
    };
    let lowered = after.iter().filter_map(|after| {
        let before = limit(before.iter().find(|before| before.name == after.name)?);
        (limit(after) < before).then(|| (Target::Container(after.name.clone()), before))
    });
    lowered.collect()
}
