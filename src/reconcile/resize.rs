//! One pod's resize through the API server: the patches of its spec, and the kubelet's progress. Pure.
//!
//! Where the kubelet resizes in place, the pod's spec is the truth. A resize is prepared (saved before the API server
//! sees the patch), accepted, and then pending until the kubelet has answered. No other module keeps any of that.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::desired::limit_in;
use crate::actuate::ApiReport;
use crate::model::objects::{Container, Pod};
use crate::model::{NamedRequirements, Outcome, Resource, Withheld};
use crate::plan::resize::{self, AcceptedResize, Phase, ResizeDecision};

/// The resize of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Resize {
    /// The patch that the API server accepted last.
    #[serde(rename = "asked")]
    pub(crate) accepted: Option<AcceptedResize>,
    /// A patch that is about to be sent, or that was sent without an answer.
    #[serde(rename = "asking", skip_serializing_if = "Option::is_none")]
    pub(crate) prepared: Option<PreparedResize>,
    /// The cgroups have targets that the spec gets once the API server is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) written_ahead: Option<WrittenAhead>,
}

/// A patch without an answer. The state file has the patch before the API server does: an agent that is killed in
/// between recognises its own patch in the spec, and does not take it for another client's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedResize {
    /// The amounts that the patch gives the spec.
    pub(crate) targets: Vec<NamedRequirements>,
    /// The kubelet's grant before the patch. The spec gets it back if the cgroups cannot hold the targets.
    pub(crate) held: Vec<NamedRequirements>,
    /// The spec before the first patch without an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) before: Vec<NamedRequirements>,
    /// The targets of earlier patches without an answer, the latest last. There are some if an agent was killed amid a pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier: Vec<Vec<NamedRequirements>>,
}

impl PreparedResize {
    /// The spec before the patches, and the amounts that each of them gives it.
    fn specs(&self) -> impl Iterator<Item = &Vec<NamedRequirements>> {
        self.earlier.iter().chain([&self.before, &self.targets])
    }

    /// The spec once the patch is taken back.
    pub(crate) fn undone(&self) -> Vec<NamedRequirements> {
        let before = resize::known_before(&self.before, &self.held);
        resize::undone(before, &self.targets, &self.held)
    }
}

/// The cgroups have targets that the spec does not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WrittenAhead {
    pub(crate) since: Timestamp,
    /// The spec at that time. Another spec is another client's change, or a patch without an answer.
    pub(crate) spec: Vec<NamedRequirements>,
}

/// How far a resize has got, by the latest pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ResizeStatus {
    /// No patch waits, and none was refused.
    #[default]
    Clear,
    /// The kubelet does not grant the targets, or the API server has not answered.
    Pending(Withheld),
    /// The spec was not patched: the node has no room.
    NoRoom,
}

impl ResizeStatus {
    /// The status after a pass with this outcome.
    pub(crate) fn after(outcome: Outcome, no_room: bool) -> Self {
        match outcome {
            Outcome::Withheld(withheld) => Self::Pending(withheld),
            _ if no_room => Self::NoRoom,
            _ => Self::Clear,
        }
    }

    /// Why the pod does not have its targets yet.
    pub(crate) const fn pending(&self) -> Option<&Withheld> {
        match self {
            Self::Pending(withheld) => Some(withheld),
            Self::Clear | Self::NoRoom => None,
        }
    }

    /// Whether the resize only waits for an API server that is away.
    pub(crate) const fn waits_for_api_server(&self) -> bool {
        matches!(self, Self::Pending(Withheld::SpecLater(_)))
    }
}

impl Resize {
    /// Notes a patch to these targets that is about to be sent, or that has no answer.
    pub(crate) fn prepare(&mut self, pod: &Pod, targets: &[NamedRequirements], held: &[NamedRequirements]) {
        let unseen = self.unseen(pod).map(|accepted| accepted.targets.clone());
        let (before, earlier) = match self.prepared.take() {
            Some(mut prepared) => {
                prepared.earlier.retain(|targets| *targets != prepared.targets);
                prepared.earlier.push(prepared.targets);
                (prepared.before, prepared.earlier)
            }
            None => (unseen.unwrap_or_else(|| pod.requirements()), Vec::new()),
        };
        self.prepared = Some(PreparedResize {
            targets: targets.to_vec(),
            held: held.to_vec(),
            before,
            earlier,
        });
    }

    /// Notes what a pass over `pod` is about to do: it patches the spec, or writes targets ahead of it that are new.
    pub(crate) fn pass_begins(&mut self, pod: &Pod, decision: &ResizeDecision, is_new: bool, now: Timestamp) {
        match decision {
            // A patch without changes only reads the spec.
            ResizeDecision::Patch(patch) if !patch.changes.is_empty() => self.prepare(pod, &patch.targets, &patch.held),
            ResizeDecision::Write(grant) if is_new && grant.is_written_ahead() => self.write_ahead(pod, now),
            _ => {}
        }
    }

    /// Takes the API server's answers to a pass over `pod` with this outcome; `by_hand` if the cgroups get the targets also while
    /// the API server is away.
    pub(crate) fn pass_ended(&mut self, pod: &Pod, api: &ApiReport, outcome: &Outcome, by_hand: bool, now: Timestamp) {
        if by_hand && matches!(outcome, Outcome::Withheld(Withheld::SpecLater(_))) {
            self.write_ahead(pod, now);
        } else if api.asked.is_some() || outcome.holds() && api.retry_after.is_none() {
            self.catch_up();
        }
        if let Some(unanswered) = api.unanswered {
            self.end_prepared(unanswered);
        }
        if let Some(accepted) = &api.asked {
            (self.accepted, self.prepared) = (Some(accepted.clone()), None);
        }
        if let Some(held) = &api.taking_back {
            // The spec has the patch, or these amounts.
            self.prepare(pod, held, held);
        }
    }

    /// Notes whether the prepared patch of a pass that has ended may have been carried out. If so, no earlier one has been:
    /// the pass read the spec before. An agent that is killed amid a pass leaves both.
    fn end_prepared(&mut self, unanswered: bool) {
        let Some(prepared) = &mut self.prepared else { return };
        if unanswered {
            prepared.earlier.clear();
        } else if let Some(earlier) = prepared.earlier.pop() {
            prepared.targets = earlier;
        } else {
            self.prepared = None;
        }
    }

    /// Notes that the pod has its own amounts again: the request for them stands although nothing is desired any more.
    pub(crate) fn end_return(&mut self) {
        if let Some(accepted) = &mut self.accepted {
            accepted.before.clone_from(&accepted.targets);
        }
    }

    /// Notes that the cgroups get targets before the spec of `pod` does.
    pub(crate) fn write_ahead(&mut self, pod: &Pod, now: Timestamp) {
        self.written_ahead.get_or_insert_with(|| WrittenAhead {
            since: now,
            spec: pod.requirements(),
        });
    }

    /// Notes that the spec has its targets.
    pub(crate) fn catch_up(&mut self) {
        if self.written_ahead.take().is_some() {
            self.prepared = None;
        }
    }

    /// Whether another client has changed the spec of `pod` since the cgroups were written ahead of it.
    pub(crate) fn is_overtaken_by(&self, pod: &Pod) -> bool {
        let ahead = self.written_ahead.as_ref();
        ahead.is_some_and(|ahead| !resize::same(&ahead.spec, &pod.requirements())) && !self.is_spec_of(pod)
    }

    /// Whether the API server has the requests of these targets from this agent: it has accepted them, or has not answered.
    /// Limits may differ: temporary and kept limits are in the patch, too.
    pub(crate) fn has_asked_for(&self, targets: &[NamedRequirements]) -> bool {
        let accepted = self.accepted.iter().map(|accepted| &accepted.targets);
        let prepared = self.prepared.iter();
        let prepared = prepared.flat_map(|prepared| prepared.earlier.iter().chain([&prepared.targets]));
        let has = |asked: &[NamedRequirements], named: &NamedRequirements| {
            NamedRequirements::find(asked, &named.name).is_some_and(|asked| asked.requests == named.resources.requests)
        };
        accepted
            .chain(prepared)
            .any(|asked| targets.iter().all(|named| has(asked, named)))
    }

    /// The amounts that another client has set in the spec since `before`: those that this agent has not requested. All others
    /// are unset.
    pub(crate) fn edits_of_others(&self, before: &Pod, pod: &Pod) -> Vec<NamedRequirements> {
        if pod.metadata.generation <= before.metadata.generation || self.unseen(pod).is_some() {
            return Vec::new();
        }
        let accepted = self.accepted.as_ref();
        let known = accepted.map_or_else(|| before.requirements(), |accepted| accepted.spec(before));
        let undone: Vec<_> = self.prepared.iter().map(PreparedResize::undone).collect();
        let prepared = self.prepared.iter().flat_map(PreparedResize::specs);
        resize::edits(&known, &pod.requirements(), prepared.chain(&undone))
    }

    /// The spec of `pod` without requests of this agent that the kubelet has not allocated; `None` if there are none.
    pub(crate) fn without_requests(&self, pod: &Pod) -> Option<Vec<NamedRequirements>> {
        if let Some(prepared) = &self.prepared {
            // The API server may carry out the request still.
            let undone = prepared.undone();
            return Some(resize::taken_back(&pod.requirements(), &prepared.targets, &undone));
        }
        let accepted = self.accepted.as_ref()?;
        let spec = accepted.spec(pod);
        let without = accepted.without_requests(pod, spec.clone());
        (!resize::same(&without, &spec)).then_some(without)
    }

    /// The accepted patch that `pod` does not show yet, because the object is older.
    pub(crate) fn unseen(&self, pod: &Pod) -> Option<&AcceptedResize> {
        let accepted = self.accepted.as_ref();
        accepted.filter(|accepted| accepted.is_unseen_in(pod))
    }

    /// Whether the kubelet has not carried out the accepted patch yet.
    pub(crate) fn is_in_flight(&self, pod: &Pod) -> bool {
        let accepted = self.accepted.as_ref();
        accepted.is_some_and(|accepted| accepted.is_unseen_in(pod) || Phase::of(pod) != Phase::Settled)
    }

    /// Whether the spec has the amounts that the accepted patch changed, and the kubelet has carried them out.
    pub(crate) fn is_carried_out_in(&self, pod: &Pod) -> bool {
        !self.is_in_flight(pod) && self.accepted.as_ref().is_some_and(|accepted| accepted.is_in(pod))
    }

    /// Whether this agent requested the spec of `pod`, or may have: a patch has no answer yet.
    pub(crate) fn is_ours(&self, pod: &Pod) -> bool {
        self.is_spec_of(pod) || self.unseen(pod).is_some() || self.prepared.is_some() || self.written_ahead.is_some()
    }

    /// Whether the spec of `pod` is the one that was accepted last.
    pub(crate) fn is_spec_of(&self, pod: &Pod) -> bool {
        let accepted = self.accepted.as_ref();
        accepted.is_some_and(|accepted| resize::same(&accepted.targets, &pod.requirements()))
    }

    /// Notes the spec that the kubelet has settled on as its grant, for every later patch of the spec. A kubelet that does not
    /// report the generation of that spec shows only which requests it has allocated: the fast path may have written the limits in
    /// force.
    pub(crate) fn observe_settled(&mut self, pod: &Pod) {
        let Some(accepted) = self.accepted.as_mut().filter(|_| Phase::of(pod) == Phase::Settled) else {
            return;
        };
        let allocated = |container: &Container| {
            let status = pod.container_status(&container.name);
            status.and_then(|status| status.allocated_resources) == Some(container.resources.requests)
        };
        match pod.status.observed_generation {
            0 if accepted.generation <= pod.metadata.generation && pod.running_containers().all(allocated) => {
                accepted.before = pod.requirements();
            }
            observed if accepted.generation <= observed => {
                (accepted.held, accepted.before) = (pod.requirements(), pod.requirements());
            }
            _ => {}
        }
    }

    /// Recognises the spec of `pod` as a patch of this agent, or of an earlier one that did not see the answer.
    pub(crate) fn recognise(&mut self, pod: &Pod) {
        let (known, generation) = (self.accepted.as_ref(), pod.metadata.generation);
        let newer = known.is_none_or(|known| known.generation < generation);
        let Some(prepared) = self.prepared.as_ref().filter(|_| newer) else {
            return;
        };
        let spec = pod.requirements();
        let is_spec = |targets: &Vec<NamedRequirements>| resize::same(targets, &spec);
        // The object may be older than the patches, even if one of them goes back to the spec before.
        if !prepared.before.is_empty() && is_spec(&prepared.before) {
            return;
        }
        // A patch has only the containers that differ from the known spec: several patches may each have left
        // a part of this spec.
        let (parts, undone): (Vec<_>, _) = (prepared.specs().collect(), prepared.undone());
        let (targets, unanswered) = if let Some(number) = prepared.earlier.iter().rposition(is_spec) {
            let mut since = prepared.clone();
            since.before = since.earlier.drain(..=number).next_back().unwrap_or_default();
            (&prepared.earlier[number], Some(since))
        } else if is_spec(&prepared.targets) {
            (&prepared.targets, None)
        } else if known.is_some() && is_spec(&undone) {
            // The patch was taken back.
            (&undone, None)
        } else if resize::is_made_of(&parts, &spec) {
            (&spec, Some(prepared.clone()))
        } else {
            return;
        };
        let (targets, held) = (targets.clone(), prepared.held.clone());
        self.accepted = Some(AcceptedResize {
            targets,
            generation,
            held,
            before: undone,
        });
        self.prepared = unanswered;
    }

    /// Whether the kubelet is about to write a memory limit that is lower than one of `given`.
    pub(crate) fn is_about_to_lower<'a>(&self, pod: &Pod, given: impl IntoIterator<Item = (&'a str, u64)>) -> bool {
        let spec = match (self.unseen(pod), Phase::of(pod)) {
            (Some(accepted), _) => accepted.targets.clone(),
            (None, Phase::Settled | Phase::Withheld(Withheld::Infeasible(_))) => return false,
            (None, _) => pod.requirements(),
        };
        let lowers = |(name, limit)| limit_in(&spec, name, Resource::Memory).is_some_and(|asked| asked < limit);
        given.into_iter().any(lowers)
    }
}

#[cfg(test)]
mod tests;
