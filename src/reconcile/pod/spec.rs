//! The pod's object, and changes that other clients make to its spec. Pure.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Effect, Now, PodState};
use crate::model::objects::Pod;
use crate::model::{Cause, NamedRequirements};
use crate::plan::lift_kept;
use crate::plan::resize::{self, Phase};

impl PodState {
    /// Replaces the pod's object, and makes a pass due when the kubelet has answered in it.
    pub(super) fn describe(&mut self, pod: Arc<Pod>, now: Now, effects: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.pod, pod);
        self.resize.observe_settled(&self.pod);
        self.resize.recognise(&self.pod);
        if before.metadata.annotations != self.pod.metadata.annotations {
            self.update_hooks(true);
        }
        if !self.desired.is_empty() && resize::supports_in_place_resize(&self.pod) {
            self.take_kubelet_answer(&before, now);
        }
        self.yield_to_spec(now, effects);
    }

    fn take_kubelet_answer(&mut self, before: &Pod, now: Now) {
        let pod = &self.pod;
        // Init containers and pod-level resources count for the pod's cgroup.
        let news =
            Phase::of(before) != Phase::of(pod) || before.spec != pod.spec || !resize::supports_in_place_resize(before);
        // A failed pass patched the spec and took the patch back. Its echo is no reason to retry at once.
        let takes_its_course = matches!(Phase::of(pod), Phase::Accepted | Phase::InProgress | Phase::Settled);
        let echo = takes_its_course && self.resize.is_spec_of(pod);
        if news && !(self.work.has_failed() && echo) {
            // The kernel keeps its values until the pass that follows this answer.
            self.work.request_pass(Cause::Kubelet, true, now.instant);
        }
    }

    /// The targets of the next pass. Where the kubelet resizes in place, they include limits that are kept for now
    /// although lower ones are desired.
    pub(crate) fn targets(&self, now: Timestamp) -> Option<Vec<NamedRequirements>> {
        let mut targets = self.desired.targets(&self.pod)?;
        if resize::supports_in_place_resize(&self.pod) {
            lift_kept(&self.holds(now), &mut targets);
        }
        Some(targets)
    }

    /// Where another client has changed the spec since the agent's last patch, that change counts: the override and the
    /// recommendation that were in force end. The amounts of the agent in the spec do not become the pod's own.
    pub(super) fn yield_to_spec(&mut self, now: Now, effects: &mut Vec<Effect>) {
        // A pass that runs may have patched the spec, and has not said so yet.
        if !resize::supports_in_place_resize(&self.pod) || self.work.running.is_some() {
            return;
        }
        let (spec, targets) = (self.pod.requirements(), self.targets(now.wall));
        if targets.as_ref().is_some_and(|targets| resize::same(targets, &spec)) {
            return;
        }
        let is_overtaken = self.resize.is_overtaken_by(&self.pod);
        // Targets that no patch has had yet are newer than the other client's change.
        let has_answer = |targets| self.resize.is_answered(&self.pod, targets) && self.desired.overridden.is_none();
        if !is_overtaken && !targets.as_deref().is_some_and(has_answer) {
            return;
        }
        let own = self.resize.own_amounts(&self.pod, &self.desired.base(&self.pod));
        self.desired.yield_to(own, &spec);
        self.resize.forget();
        if is_overtaken {
            let why = "somebody else changed the pod's resources meanwhile, and that counts";
            self.record_lost_change(why.to_owned(), now, effects);
        } else {
            tracing::info!(pod = %self.pod.full_name(), "somebody else changed the spec: that counts now");
            self.restart(Cause::Kubelet, now);
        }
    }

    /// Records that a change which was made while the API server was away is lost.
    pub(super) fn record_lost_change(&mut self, reason: String, now: Now, effects: &mut Vec<Effect>) {
        tracing::warn!(pod = %self.pod.full_name(), reason, "what was set while the API server was away is lost");
        self.restart(Cause::ChangeLost, now);
        self.record_refusal(Cause::ChangeLost, reason, now, effects);
    }

    /// The pod as the VPA's rules see it: its spec without overrides, temporary limits and kept limits
    /// that the agent has patched.
    pub(crate) fn without_own_changes(&self) -> Cow<'_, Pod> {
        // The watch brings an accepted patch a moment later. Until then the pod's object has the spec before the patch.
        let unseen = self.resize.unseen(&self.pod);
        let ours = self.desired.recommended.is_some() && (unseen.is_some() || self.resize.is_spec_of(&self.pod));
        if self.desired.origin.is_none() && !ours {
            let accepted = unseen.map(|accepted| Cow::Owned(self.pod.with_requirements(&accepted.targets)));
            return accepted.unwrap_or(Cow::Borrowed(&self.pod));
        }
        Cow::Owned(self.pod.with_requirements(&self.desired.base(&self.pod)))
    }
}
