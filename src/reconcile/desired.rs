//! The desired state of a pod: the recommendation in force, an operator's override, temporary limits, or the way
//! back to the spec. Pure.
//!
//! An override wins over the recommendation until the override ends. When nothing is desired any more, the agent leaves
//! the pod's values as they are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::overrides::{Override, check_names, check_result, overlay};
use super::savings::{Avoided, requests};
use crate::decide::PodDecision;
use crate::model::objects::{Pod, ResizePhase};
use crate::model::{
    Cause, ChangeRecord, ContainerId, ContainerName, CpuBurst, LivePod, Outcome, PageSize, PodAmounts, Reason,
    Resource, ResourceList, micros,
};
use crate::plan::WriteScope;
use crate::resize::Resize;

mod temporary;

pub(crate) use temporary::{Denied, TemporaryLimit};

/// The desired state of one pod, as the state file has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DesiredState {
    pub(crate) recommended: Option<Recommended>,
    pub(crate) overridden: Option<Override>,
    /// The pod is on its way back to its spec. Limits that an override added where the spec declares none are removed, too.
    pub(super) returning: bool,
    /// Limits that the guard has grown.
    #[serde(rename = "leases")]
    pub(crate) temporary: Vec<TemporaryLimit>,
    /// The pod's own amounts, while overrides and temporary limits change its spec through the API server.
    pub(super) origin: Option<PodAmounts>,
    /// The sum of the containers' requests before the first recommendation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<ResourceList>,
    /// The burst of the pod's cgroups, from the first one on that the agent wanted. Zero once no burst is wanted any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) burst: Option<CpuBurst>,
    /// What the kernel had counted when a container got its burst, by container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) burst_starts: BTreeMap<ContainerName, BurstStart>,
    /// A pass has brought a recommendation into force.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) resized: bool,
    /// The values that passes may write. A state file without this field means all values.
    #[serde(default = "WriteScope::all")]
    pub(crate) scope: WriteScope,
}

/// The throttling of a container when it got its burst.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BurstStart {
    pub(crate) id: ContainerId,
    pub(crate) at: Timestamp,
    /// For how long the kernel had throttled the container, in microseconds.
    pub(crate) throttled_us: u64,
    /// Microseconds of throttling per hour before; None if the container ran too short for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<u64>,
}

/// A rate over a shorter time says little.
const LEAST_TIME: SignedDuration = SignedDuration::from_mins(1);

/// Microseconds of throttling in this time, per hour.
pub(crate) fn per_hour(throttled_us: u64, time: SignedDuration) -> Option<u64> {
    let seconds = u128::try_from(time.as_secs()).ok().filter(|_| time >= LEAST_TIME)?;
    u64::try_from(u128::from(throttled_us) * 3600 / seconds).ok()
}

/// A recommendation in force, until another one replaces it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recommended {
    /// The VPA's name; `None` where the values of a deleted VPA are taken back.
    pub(crate) vpa: Option<String>,
    pub(crate) at: Timestamp,
    pub(crate) targets: PodAmounts,
    /// Files of version 0.1 do not have this field.
    #[serde(default, skip_serializing_if = "InForce::is_nothing")]
    pub(crate) in_force: InForce,
}

/// The targets of a VPA that a pass has written, or that the API server has accepted. Only these survive a restart: before the
/// sources have answered, an agent keeps them and starts nothing new. An agent that only observes brings nothing into force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum InForce {
    #[default]
    Nothing,
    /// The recommended targets.
    Recommended,
    /// The targets of an earlier recommendation.
    Earlier(PodAmounts),
}

impl InForce {
    fn is_nothing(&self) -> bool {
        *self == Self::Nothing
    }
}

impl Recommended {
    /// The recommendation of a decision. It is not in force yet.
    pub(crate) fn of(decision: &PodDecision, now: Timestamp) -> Option<Self> {
        decision.change().map(|(_, targets)| Self {
            vpa: decision.vpa.clone(),
            at: now,
            targets: targets.clone(),
            in_force: InForce::Nothing,
        })
    }

    /// The recommendation as the state file has it: with the targets in force.
    pub(crate) fn in_force(&self) -> Option<Self> {
        let targets = match &self.in_force {
            InForce::Nothing => return None,
            InForce::Recommended => &self.targets,
            InForce::Earlier(targets) => targets,
        };
        Some(Self {
            vpa: self.vpa.clone(),
            at: self.at,
            targets: targets.clone(),
            in_force: InForce::Recommended,
        })
    }
}

impl DesiredState {
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_amounts() && self.burst.is_none()
    }

    /// Whether amounts of the pod are desired, and not a burst alone.
    pub(crate) fn has_amounts(&self) -> bool {
        self.recommended.is_some() || self.is_by_hand()
    }

    /// Whether an override or a temporary limit is in force, or is being taken back.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.overridden.is_some() || self.returning || !self.temporary.is_empty()
    }

    /// The targets of the pod, if amounts are desired.
    pub(crate) fn targets(&self, pod: &Pod) -> Option<PodAmounts> {
        if !self.has_amounts() {
            return None;
        }
        Some(self.with_temporary(self.without_temporary(pod)))
    }

    /// The targets of the pod, or else the amounts of its spec.
    pub(crate) fn targets_or_spec(&self, pod: &Pod) -> PodAmounts {
        self.targets(pod).unwrap_or_else(|| pod.requirements())
    }

    /// The targets, where an operator or the guard has set some of them. A recommendation waits, unless the kubelet has allocated it.
    pub(crate) fn targets_by_hand(&self, pod: &Pod, resize: &Resize) -> Option<PodAmounts> {
        let is_allocated = resize.unseen(pod).is_none() && !ResizePhase::of(pod).is_open();
        let recommended = self.recommended.as_ref().filter(|_| is_allocated);
        let recommended = recommended.and_then(Recommended::in_force);
        let desired = self.clone().with_recommended(recommended);
        desired.targets(pod).filter(|_| self.is_by_hand())
    }

    /// The `pod` as the VPA's rules see it: its spec without overrides, temporary limits and kept limits that the agent has patched.
    pub(crate) fn without_own_changes<'a>(&self, pod: &'a Pod, resize: &Resize) -> Cow<'a, Pod> {
        // The watch brings an accepted patch a moment later. Until then the pod's object has the spec before the patch.
        let unseen = resize.unseen(pod);
        let ours = self.recommended.is_some() && (unseen.is_some() || resize.is_spec_of(pod));
        let known = match unseen {
            _ if self.origin.is_some() || ours => self.base(pod),
            Some(accepted) => accepted.targets.clone(),
            None => return Cow::Borrowed(pod),
        };
        Cow::Owned(pod.with_requirements(&known))
    }

    /// The targets without temporary limits.
    pub(crate) fn without_temporary(&self, pod: &Pod) -> PodAmounts {
        overlay(self.base(pod), self.override_values())
    }

    /// The same state with this recommendation.
    #[must_use]
    pub(crate) fn with_recommended(self, recommended: Option<Recommended>) -> Self {
        Self { recommended, ..self }
    }

    /// The recommendation with the targets in force. A patch without an answer may have brought its targets into force.
    pub(crate) fn recommended_in_force(&self, pod: &Pod, resize: &Resize) -> Option<Recommended> {
        let mut recommended = self.recommended.clone()?;
        if resize.has_asked_for(&self.targets(pod).unwrap_or_default()) {
            recommended.in_force = InForce::Recommended;
        }
        recommended.in_force()
    }

    /// Applies the saved state of an earlier agent. A saved override always holds. Of two recommendations the newer one does, or the
    /// saved one unless one `is_followed` now. The API server may have been `asked` for the targets of the saved one.
    pub(crate) fn restore(&mut self, saved: Self, asked: bool, is_followed: bool) {
        // A file of version 0.1 also has recommendations that an agent only observed. The API server's answer tells them apart.
        let before = saved.recommended.as_ref().and_then(|before| {
            let known = before.in_force();
            known.or_else(|| asked.then(|| before.clone()))
        });
        let recommended = match (self.recommended.take(), before) {
            // If the VPA has gone meanwhile, the next decision ends the recommendation.
            (_, before) if !is_followed => before,
            // The next decision compares with the saved recommendation: a difference within the bounds changes nothing.
            (Some(decided), Some(before)) if decided.vpa == before.vpa => Some(before),
            // This decision took amounts for the pod's own that an operator or the guard had set.
            (decided, _) => decided.filter(|_| saved.origin.is_none()),
        };
        *self = saved.with_recommended(recommended);
    }

    /// Sets the burst that a decision wants. Returns whether it is another one than before.
    pub(crate) fn set_burst(&mut self, burst: Option<CpuBurst>) -> bool {
        let before = std::mem::replace(&mut self.burst, burst);
        if burst == Some(CpuBurst::ZERO) {
            self.burst_starts.clear();
        }
        before != burst
    }

    /// Follows a decision. There may be no room for what it recommends: then it `is_refused`.
    pub(crate) fn follow(
        &mut self,
        decision: &PodDecision,
        is_refused: bool,
        pod: &Pod,
        resize: &mut Resize,
        now: Timestamp,
    ) {
        match Recommended::of(decision, now) {
            Some(Recommended { targets, .. }) if is_refused => self.refuse(&targets, pod, resize),
            Some(recommended) => self.recommend(recommended, pod, resize),
            None if decision.reason.ends_recommendation() => self.end_recommendation(pod, resize),
            None if matches!(decision.reason, Reason::KubeletRefuses | Reason::SourcesSilent) => {
                self.keep_in_force(pod, resize);
            }
            None => {}
        }
    }

    /// Replaces the recommendation. The new one is not in force yet, unless the one before has the same targets in force.
    fn recommend(&mut self, mut recommended: Recommended, pod: &Pod, resize: &Resize) {
        let before = || requests(&self.targets_or_spec(pod));
        self.before = Some(self.before.unwrap_or_else(before));
        recommended.in_force = match self.recommended_in_force(pod, resize) {
            None => InForce::Nothing,
            Some(before) if before.targets == recommended.targets => InForce::Recommended,
            Some(before) => InForce::Earlier(before.targets),
        };
        self.recommended = Some(recommended);
    }

    /// Notes a pass with this record. One that brought a recommendation into force has avoided an eviction, in which the containers
    /// would have started again: for the first recommendation all, for later ones none.
    pub(crate) fn note_resized(&mut self, record: &ChangeRecord, live: &LivePod) -> Option<Avoided> {
        let is_applied = matches!(record.outcome, Outcome::Applied | Outcome::RuntimeOwed(_));
        if !is_applied || !matches!(record.cause, Cause::Recommendation { .. }) {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.resized, true);
        let restarts = if is_first { live.containers.len() as u64 } else { 0 };
        Some(Avoided::Eviction { restarts })
    }

    /// Begins the way back to the spec if no amounts are desired.
    pub(crate) fn begin_return_unless_desired(&mut self) {
        self.returning |= !self.has_amounts();
    }

    /// Begins the way back to these amounts of the pod.
    pub(crate) fn return_to(&mut self, own: PodAmounts) {
        (self.origin, self.returning) = (Some(own), true);
    }

    /// Takes an override back to the state `before` it. The spec has the override all the same if it `is_ours`: a patch that failed may
    /// have been carried out.
    pub(crate) fn undo_override(&mut self, before: Self, is_ours: bool) {
        (self.overridden, self.returning) = (before.overridden, before.returning);
        self.restore_temporary(before.temporary);
        if !self.is_by_hand() {
            self.returning = is_ours;
            self.origin.take_if(|_| !is_ours);
        }
    }

    /// The targets without override and temporary limits.
    pub(crate) fn base(&self, pod: &Pod) -> PodAmounts {
        match &self.recommended {
            Some(recommended) => recommended.targets.clone(),
            None => self.origin.clone().unwrap_or_else(|| pod.requirements()),
        }
    }

    /// Sets an override; the values of an earlier one stay where the new one has none.
    ///
    /// Errors: a sentence, when the pod could not run with the result. Nothing changes then.
    pub(crate) fn set_override(&mut self, pod: &Pod, mut wanted: Override, page: PageSize) -> Result<(), String> {
        check_names(pod, &wanted.values)?;
        wanted.values = overlay(self.override_values().clone(), &wanted.values);
        let result = overlay(self.base(pod), &wanted.values);
        check_result(pod, &wanted.values, &result, page)?;
        self.put_override(wanted);
        Ok(())
    }

    /// Puts an override in place of the one before, and of the temporary limits of what it sets.
    pub(crate) fn put_override(&mut self, overridden: Override) {
        let is_set = |limit: &TemporaryLimit| overridden.values.limit(&limit.container, limit.resource).is_some();
        self.temporary.retain(|limit| !is_set(limit));
        self.overridden = Some(overridden);
        self.returning = false;
    }

    /// Ends the override, and returns it if there is one: the values of the recommendation or of the spec come back.
    pub(crate) fn end_override(&mut self) -> Option<Override> {
        let ended = self.overridden.take();
        self.returning |= ended.is_some();
        ended
    }

    /// Keeps the pod's own amounts before an override or a temporary limit changes the spec. A recommendation in force is not the pod's own
    /// before the kubelet has allocated it.
    pub(crate) fn remember_origin(&mut self, pod: &Pod, resize: &Resize) {
        if pod.resizes_in_place() && self.origin.is_none() {
            let in_force = self.recommended.as_ref().and_then(Recommended::in_force);
            let in_force = in_force.map(|in_force| in_force.targets);
            let own = in_force.filter(|targets| resize.is_allocated(pod, targets));
            let own = own.or_else(|| resize.without_requests(pod));
            self.origin = Some(own.unwrap_or_else(|| pod.requirements()));
        }
    }

    /// Notes that a pass has brought the targets of a recommendation into force: the present one if the pass `is_current`, else one
    /// before.
    pub(crate) fn bring_into_force(&mut self, targets: Option<PodAmounts>, is_current: bool) {
        match (&mut self.recommended, targets) {
            (Some(recommended), _) if is_current => recommended.in_force = InForce::Recommended,
            (Some(recommended), Some(earlier)) => recommended.in_force = InForce::Earlier(earlier),
            _ => {}
        }
    }

    /// Notes that the kubelet has carried out what was requested. A recommendation in force then stays without its VPA, also where the
    /// pod's own amounts are from before it.
    pub(crate) fn note_carried_out(&mut self) {
        let recommended = self.recommended.as_ref();
        let in_force = recommended.filter(|recommended| recommended.in_force == InForce::Recommended);
        if let (Some(in_force), Some(origin)) = (in_force, &mut self.origin) {
            origin.clone_from(&in_force.targets);
        }
    }

    /// Ends the recommendation when its VPA no longer has it. The amounts in force become the pod's own once the kubelet has allocated
    /// all of them. Otherwise the pod's own amounts stay those from before the recommendation.
    pub(crate) fn end_recommendation(&mut self, pod: &Pod, resize: &mut Resize) {
        let Some(ended) = self.recommended.take() else { return };
        let Some(origin) = &self.origin else { return };
        // In a file of version 0.1 a refused override, whose request the API server may have carried out, left the pod's own amounts
        // without a way back to them.
        self.returning |= !self.has_amounts();
        if self.returning {
            resize.returns_to(origin);
        }
        let in_force = ended.in_force().map(|in_force| in_force.targets);
        let allocated = in_force.filter(|targets| resize.is_allocated(pod, targets));
        self.origin = allocated.or(self.origin.take());
    }

    /// Keeps what is in force where there is no room for these targets any more: a quota has come to allow less before the spec was
    /// patched.
    fn refuse(&mut self, targets: &PodAmounts, pod: &Pod, resize: &Resize) {
        let recommended = self.recommended.as_ref();
        if recommended.is_some_and(|recommended| recommended.targets == *targets) {
            self.recommended = self.recommended_in_force(pod, resize);
        }
    }

    /// Keeps what is in force of a recommendation that is refused for good, or whose VPA is not known any more. A request of its targets
    /// that was accepted, or has no answer, keeps them desired.
    fn keep_in_force(&mut self, pod: &Pod, resize: &Resize) {
        if !resize.has_asked_for(&self.targets(pod).unwrap_or_default()) {
            self.recommended = self.recommended.as_ref().and_then(Recommended::in_force);
        }
    }

    /// Takes over the amounts `edits` that another client has set in the `spec`, wherever amounts of the pod are kept.
    pub(crate) fn take_edits(&mut self, edits: &PodAmounts, spec: &PodAmounts) {
        let kept = self.recommended.iter_mut().flat_map(|recommended| {
            let earlier = match &mut recommended.in_force {
                InForce::Earlier(targets) => Some(targets),
                InForce::Nothing | InForce::Recommended => None,
            };
            [&mut recommended.targets].into_iter().chain(earlier)
        });
        for (of, resources) in kept.chain(&mut self.origin).flat_map(PodAmounts::iter_mut) {
            if let (Some(edit), Some(spec)) = (edits.get(of), spec.get(of)) {
                *resources = edit.or(*resources).valid_or(spec);
            }
        }
    }

    /// Notes the throttling of containers that a pass gave their burst.
    pub(crate) fn note_bursts(
        &mut self,
        pod: &Pod,
        live: &LivePod,
        bursts: Vec<(ContainerName, Duration)>,
        now: Timestamp,
    ) {
        for (name, throttled) in bursts {
            let Some(container) = live.containers.get(&name) else {
                continue;
            };
            let state = pod.container_status(&name).map(|status| &status.state);
            let started = state.and_then(|state| state.running.as_ref()?.started_at);
            let throttled_us = micros(throttled);
            let before = started.and_then(|started| per_hour(throttled_us, now.duration_since(started)));
            // That of a container before a restart says more.
            let known = self.burst_starts.get(&name).and_then(|start| start.before);
            let start = BurstStart {
                id: container.id.clone(),
                at: now,
                throttled_us,
                before: known.or(before),
            };
            self.burst_starts.insert(name, start);
        }
    }

    /// Yields to another client that has changed the spec of `pod`. The pod gets its own amounts, with the temporary limits on
    /// top; an override and a recommendation end.
    pub(crate) fn yield_to_spec(&mut self, pod: &Pod) {
        let own = self.base(pod);
        (self.overridden, self.recommended) = (None, None);
        self.origin = (!self.temporary.is_empty() || !own.same(&pod.requirements())).then_some(own);
        // An earlier pass may have written its values after the kubelet wrote those of the other client.
        self.returning = true;
    }

    /// Ends the way back to the spec. Where nothing of an operator or the guard is left, the pod has its own amounts.
    pub(crate) fn end_return(&mut self, resize: &mut Resize) {
        self.returning = false;
        let is_over = !self.is_by_hand();
        let own = self.origin.take_if(|_| is_over);
        if !self.has_amounts() {
            resize.end_return();
        } else if let Some(own) = own {
            resize.returns_to(&own);
        }
    }

    /// What happens to the override next, as a sentence.
    pub(crate) fn override_next_step(&self) -> Option<String> {
        self.overridden.as_ref()?;
        Some(match self.override_ends_at() {
            Some(until) => format!(
                "The override ends at {until:.0}, and the decided values come back; until then its values are enforced."
            ),
            None => {
                "The override holds until `vscalectl release` ends it; until then its values are enforced.".to_owned()
            }
        })
    }

    /// What happens to the desired values next, as a sentence, if nothing is about to.
    pub(crate) fn next_step(&self) -> String {
        if self.is_empty() {
            return "Nothing: the pod keeps the values of its spec.".to_owned();
        }
        let Some(TemporaryLimit { container, .. }) = self.temporary.first() else {
            return "Its values are enforced until the VPA's next change is due.".to_owned();
        };
        format!(
            "The temporary limit of container {container} ends once the container has been quiet for long enough, or the recommendation has caught up."
        )
    }

    pub(crate) fn override_ends_at(&self) -> Option<Timestamp> {
        self.overridden.as_ref().and_then(|overridden| overridden.until)
    }

    /// When the override or a denied temporary limit ends.
    pub(crate) fn next_end(&self) -> Option<Timestamp> {
        let denied = self.temporary.iter();
        let denied = denied.filter_map(|limit| Some(limit.denied.as_ref()?.ends));
        denied.chain(self.override_ends_at()).min()
    }

    /// Every date that is compared with the wall clock.
    pub(crate) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let of_override = self.overridden.iter_mut().flat_map(Override::dates);
        let of_bursts = self.burst_starts.values_mut().map(|start| &mut start.at);
        let of_temporary = self.temporary.iter_mut().flat_map(TemporaryLimit::dates);
        of_override.chain(of_temporary).chain(of_bursts)
    }

    /// When the override or the newest temporary limit began.
    pub(crate) fn latest_start(&self) -> Option<Timestamp> {
        let overridden = self.overridden.iter().map(|overridden| overridden.since);
        overridden.chain(self.temporary.iter().map(|limit| limit.renewed)).max()
    }

    /// Whether an operator has set this limit.
    pub(crate) fn is_overridden(&self, container: &str, resource: Resource) -> bool {
        self.override_values().limit(container, resource).is_some()
    }

    /// The amounts that an operator has set.
    pub(crate) fn override_values(&self) -> &PodAmounts {
        let set = self.overridden.as_ref();
        set.map_or(PodAmounts::NONE, |overridden| &overridden.values)
    }
}

#[cfg(test)]
mod temporary_tests;
#[cfg(test)]
mod tests;
