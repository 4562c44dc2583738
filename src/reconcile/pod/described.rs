//! The sources' facts about the pod: its object, with changes that other clients make to its
//! spec, and the decision. Pure.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{Effect, Effects, LogLine, PodState};
use crate::model::objects::{Pod, ResizePhase};
use crate::model::{Cause, PodAmounts};
use crate::plan::hook::Hook;
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::no_room::NoRoomFor;
use crate::reconcile::overrides::Override;

impl PodState {
    /// Replaces the pod's object, and makes a pass due when the kubelet has answered in it.
    pub(super) fn describe(&mut self, pod: Arc<Pod>, effects: &mut Effects) {
        let before = std::mem::replace(&mut self.pod, pod);
        self.resize.sees(&self.pod);
        if self.resize.is_carried_out_in(&self.pod) {
            self.desired.note_carried_out();
        }
        self.take_edits(&before, effects);
        // The guard watches containers that run, and sees no quiet time of those that do not start again.
        let has_completed = |limit: &TemporaryLimit| self.pod.has_completed(&limit.container);
        for ended in self.desired.end_temporary(has_completed) {
            self.restart(ended.ended(), effects.now);
        }
        // Only manifests of a directory change the variables of a running container.
        if Hook::any(&before) != Hook::any(&self.pod) {
            let limits = self.desired.targets_or_spec(&self.pod);
            if self.hooks.update(&self.pod, self.live.as_deref(), &limits) {
                // The lower limit waits for no hook any more.
                self.restart(Cause::Sweep, effects.now);
            }
        }
        let is_withheld = matches!(ResizePhase::of(&self.pod), ResizePhase::Withheld(_));
        // A failed pass patched the spec and took the patch back. Do not retry when the watch returns that change.
        let is_echo = self.work.has_failed() && self.resize.is_spec_of(&self.pod) && !is_withheld;
        if !self.desired.is_empty() && has_answered(&before, &self.pod) && !is_echo {
            // The kernel keeps its values until the pass that follows this answer.
            self.work.request_pass(Cause::Kubelet, true, effects.now.instant);
        }
        self.yield_to_spec(None, effects);
    }

    /// The targets of the next pass. Where the kubelet resizes in place, they include limits that are kept for now
    /// although lower ones are desired.
    pub(crate) fn targets(&self, now: Timestamp) -> Option<PodAmounts> {
        let mut targets = self.desired.targets(&self.pod)?;
        if self.pod.resizes_in_place() {
            self.shrink.lift_kept(&self.pod, &self.holds(now), &mut targets);
        }
        Some(targets)
    }

    /// Takes over the amounts that another client has set in the spec since `before`: no later request of this agent puts the
    /// earlier ones back.
    pub(super) fn take_edits(&mut self, before: &Pod, effects: &mut Effects) {
        if self.desired.is_empty() || !self.pod.resizes_in_place() {
            return;
        }
        let edits = self.resize.edits_of_others(before, &self.pod);
        if !edits.is_empty() {
            let is_undone =
                |set: &&Override| set.is_in(&self.resize.spec(before)) && !set.is_in(&self.pod.requirements());
            if let Some(set) = self.desired.overridden.as_ref().filter(is_undone) {
                let (uid, pid, reason) = (set.uid, set.pid, set.reason.clone());
                let cause = Cause::OverrideKept { uid, pid, reason };
                self.work.request_pass(cause, true, effects.now.instant);
            }
            self.desired.take_edits(&edits, &self.pod.requirements());
            self.shrink.take_edits(&edits);
            effects.push(Effect::Log(LogLine::SpecChanged));
        }
    }

    /// Gives up what the cgroups were written ahead of the spec with, if the API server has `denied` it, or another client has changed
    /// the spec since. Then the override and the recommendation that were in force end, and the amounts of the agent in the spec do
    /// not become the pod's own.
    pub(super) fn yield_to_spec(&mut self, denied: Option<&str>, effects: &mut Effects) {
        let denied = denied.filter(|_| self.work.request().is_none());
        let why = if let Some((why, before)) = denied.and_then(|why| Some((why, self.resize.catch_up()?))) {
            // A denial is not about an override that was in the spec before the API server was away.
            if self.desired.overridden.as_ref().is_some_and(|set| set.is_in(&before)) {
                return;
            }
            // The operator's answer was that the spec follows.
            self.desired.end_override();
            why.to_owned()
        } else {
            // A pass that runs may have patched the spec, and its result has not arrived.
            if !self.pod.resizes_in_place() || self.work.running().is_some() {
                return;
            }
            let (targets, set) = (self.targets(effects.now.wall), self.desired.override_values());
            if !self.resize.is_overtaken(&self.pod, &targets.unwrap_or_default(), set) {
                return;
            }
            self.desired.yield_to_spec(&self.pod);
            "another client changed the pod's resources; its values apply".to_owned()
        };
        effects.push(Effect::Log(LogLine::ChangeLost(why.clone())));
        self.restart(Cause::ChangeLost, effects.now);
        self.record_refusal(Cause::ChangeLost, why.clone(), effects);
        if let Some(request) = self.work.take_override() {
            effects.list.extend(self.work.refuse(request, why));
        }
    }

    /// Brings the decision into force, and makes a pass with this cause due after this delay if the targets change. Ends temporary
    /// limits that are not above the decided limits any more.
    pub(super) fn follow(&mut self, refused: Option<String>, due: (Option<Cause>, Duration), effects: &mut Effects) {
        let (now, (cause, delay)) = (effects.now, due);
        // Until that pass has ended well, the cgroups may have other amounts than the spec.
        let is_in_place = self.live.is_some() && self.pod.resizes_in_place();
        let is_being_followed = is_in_place && self.work.follows(&self.desired, &self.pod, &self.resize);
        let before = self.desired.targets(&self.pod);
        let has_other_burst = self.desired.set_burst(self.decision.burst);
        let (decision, known, is_refused) = (&self.decision, self.no_room.take(), refused.is_some());
        self.desired
            .follow(decision, is_refused, &self.pod, &mut self.resize, now.wall);
        let no_room = decision.change().zip(refused);
        self.no_room = no_room.map(|((_, targets), why)| NoRoomFor::after(known, targets.clone(), why, now.wall));
        // Where such a limit was all that was desired, the spec may have others of the agent still: a pass takes them back.
        let overtaken = self.desired.end_overtaken(&self.pod);
        let after = self.desired.targets(&self.pod);
        if before != after || has_other_burst || !overtaken.is_empty() {
            let mut in_force = before.unwrap_or_else(|| self.pod.requirements());
            self.shrink.lift_kept(&self.pod, &self.holds(now.wall), &mut in_force);
            self.start_over();
            self.shrink.put_off(&in_force, &after.unwrap_or_default(), now.wall);
            if !self.desired.is_empty() {
                // The VPA may be gone.
                self.work
                    .request_pass_after(cause.unwrap_or(Cause::Sweep), delay, now.instant);
            }
        }
        if is_being_followed && !self.desired.has_amounts() {
            // A pass gives the cgroups what the spec has without requests that the kubelet has not allocated, in place of that pass.
            self.work.cancel();
            let own = self.resize.without_requests(&self.pod);
            let cause = own.as_ref().map_or(Cause::Sweep, |_| Cause::Withdrawn);
            self.desired
                .return_to(own.unwrap_or_else(|| self.resize.spec(&self.pod)));
            self.restart(cause, now);
        }
        let overtaken = overtaken.into_iter().map(LogLine::LimitRecommended);
        effects.list.extend(overtaken.map(Effect::Log));
    }

    /// Records once for each value that an annotation of the VPA cannot be parsed, if the pod runs.
    pub(super) fn record_unreadable(&mut self, effects: &mut Effects) {
        let unreadable = self.decision.unreadable();
        if self.live.is_none() || unreadable == self.unreadable {
            return;
        }
        self.unreadable.clone_from(&unreadable);
        if let (Some(why), Some(vpa)) = (unreadable, self.decision.vpa.clone()) {
            let cause = Cause::Recommendation {
                vpa,
                version: String::new(),
                reason: self.decision.reason,
            };
            self.record_refusal(cause, why, effects);
        }
    }

    /// Records once for each recommendation that the node has no room for it, if the pod runs. Logs the first.
    pub(super) fn record_no_room(&mut self, cause: Option<Cause>, effects: &mut Effects) {
        let no_room = self.no_room.as_mut().filter(|_| self.live.is_some());
        let Some((cause, (reason, for_log))) = cause.zip(no_room.and_then(NoRoomFor::take_news)) else {
            return;
        };
        if for_log {
            let (cause, why) = (cause.clone(), reason.clone());
            effects.push(Effect::Log(LogLine::NoRoom { cause, why }));
        }
        self.record_refusal(cause, reason, effects);
    }
}

/// Whether the kubelet that resizes `pod` has answered since `before`, or the spec is another one. Init containers and pod-level
/// resources count for the pod's cgroup.
fn has_answered(before: &Pod, pod: &Pod) -> bool {
    let is_news = ResizePhase::of(before) != ResizePhase::of(pod) || before.spec != pod.spec;
    pod.resizes_in_place() && (is_news || !before.resizes_in_place())
}
