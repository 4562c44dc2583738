//! The pod's object as its source describes it, and who else changes it. Pure.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Effect, Now, PodState};
use crate::model::objects::Pod;
use crate::model::{Cause, NamedRequirements};
use crate::plan::lift_kept;
use crate::plan::resize::{self, Phase};

impl PodState {
    /// Takes over a newer description of the pod, and makes a pass due when the kubelet has answered in it.
    pub(super) fn describe(&mut self, pod: Arc<Pod>, now: Now, effects: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.pod, pod);
        self.resize.observe_settled(&self.pod);
        self.resize.recognise(&self.pod);
        if before.metadata.annotations != self.pod.metadata.annotations {
            self.meet_hooked(true);
        }
        if !self.desired.is_empty() && resize::supports_in_place_resize(&self.pod) {
            self.take_kubelet_answer(&before, now);
        }
        self.yield_to_spec(now, effects);
    }

    fn take_kubelet_answer(&mut self, before: &Pod, now: Now) {
        let pod = &self.pod;
        // Init containers and what the pod has of its own count for the pod's cgroup.
        let news =
            Phase::of(before) != Phase::of(pod) || before.spec != pod.spec || !resize::supports_in_place_resize(before);
        // What a failed pass asked for and took back comes by again, and is no reason to try at once.
        let takes_its_course = matches!(Phase::of(pod), Phase::Accepted | Phase::InProgress | Phase::Settled);
        let echo = takes_its_course && self.resize.is_spec_of(pod);
        if news && !(self.work.has_failed() && echo) {
            // What is held stays so, but another answer may call for something else.
            self.work.request_pass(Cause::Kubelet, true, now.instant);
        }
    }

    /// What the next pass aims at. Where the kubelet resizes in place, limits that are kept for now although lower ones are
    /// wanted are asked for as well.
    pub(crate) fn targets(&self, now: Timestamp) -> Option<Vec<NamedRequirements>> {
        let mut targets = self.desired.targets(&self.pod)?;
        if resize::supports_in_place_resize(&self.pod) {
            lift_kept(&self.holds(now), &mut targets);
        }
        Some(targets)
    }

    /// Where somebody else has changed the spec since it was last asked for anything, what they wrote is the truth: the
    /// recommendation acted on before counts no longer.
    pub(super) fn yield_to_spec(&mut self, now: Now, effects: &mut Vec<Effect>) {
        // While a pass runs nobody knows yet what it was that it asked for.
        if !resize::supports_in_place_resize(&self.pod) || self.work.running.is_some() {
            return;
        }
        let spec = self.pod.requirements();
        let wanted = self
            .targets(now.wall)
            .is_some_and(|targets| resize::same(&targets, &spec));
        if self.resize.is_overtaken_by(&self.pod) && !wanted {
            self.desired.overridden = None;
            self.desired.yield_to(spec);
            self.resize.forget();
            let why = "somebody else changed the pod's resources meanwhile, and that counts";
            return self.lose_change(why.to_owned(), now, effects);
        }
        if self.desired.overridden.is_some() {
            return;
        }
        let (Some(targets), Some(accepted)) = (self.targets(now.wall), &self.resize.accepted) else {
            return;
        };
        // What was not asked for yet is newer than whatever they wrote.
        let answered = accepted.generation < self.pod.metadata.generation && resize::same(&accepted.targets, &targets);
        if answered && !resize::same(&targets, &spec) {
            tracing::info!(pod = %self.pod.full_name(), "somebody else changed the spec: that counts now");
            self.desired.yield_to(spec);
            self.resize.forget();
            self.restart(Cause::Kubelet, now);
        }
    }

    /// What was set while the API server was away does not count any more.
    pub(super) fn lose_change(&mut self, reason: String, now: Now, effects: &mut Vec<Effect>) {
        tracing::warn!(pod = %self.pod.full_name(), reason, "what was set while the API server was away is lost");
        self.restart(Cause::ChangeLost, now);
        self.record_refusal(Cause::ChangeLost, reason, now, effects);
    }

    /// The pod as the VPA's rules see it: the spec without what an override, a temporary limit or a limit that is kept has
    /// changed in it through the API server.
    pub(crate) fn undisturbed(&self) -> Cow<'_, Pod> {
        // What the API server has accepted comes by a moment later: until then the spec that is known is the one before.
        let unseen = self.resize.unseen(&self.pod);
        let ours = self.desired.recommended.is_some() && (unseen.is_some() || self.resize.is_spec_of(&self.pod));
        if self.desired.origin.is_none() && !ours {
            let accepted = unseen.map(|accepted| Cow::Owned(self.pod.with_requirements(&accepted.targets)));
            return accepted.unwrap_or(Cow::Borrowed(&self.pod));
        }
        Cow::Owned(self.pod.with_requirements(&self.desired.base(&self.pod)))
    }
}
