//! One pod's resize through the API server: what the spec was asked to have, and how far the kubelet is. Pure.
//!
//! Where the kubelet resizes in place, the pod's spec is the truth. A resize is prepared (saved before the API server sees
//! it), accepted, and then pending until the kubelet has answered. Nothing else in the crate remembers any of that.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::desired::limit_in;
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, Resource, Withheld};
use crate::plan::resize::{self, AcceptedResize, Phase, ResizePatch};

/// The resize of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Resize {
    /// What the API server accepted last.
    #[serde(rename = "asked")]
    pub(crate) accepted: Option<AcceptedResize>,
    /// What the API server is about to be asked for, or was asked for without an answer.
    #[serde(rename = "asking", skip_serializing_if = "Option::is_none")]
    pub(crate) prepared: Option<PreparedResize>,
    /// What the cgroups were given while the API server was away, and the spec is still to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) written_ahead: Option<WrittenAhead>,
    /// How far the latest resize is.
    #[serde(skip)]
    pub(crate) status: ResizeStatus,
    /// When the API server accepted it.
    #[serde(skip)]
    pub(crate) accepted_at: Option<Instant>,
}

/// What the API server is about to be asked for. Saved before it is: an agent that is killed in between knows its own
/// request when it sees it in the spec, and does not take it for somebody else's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedResize {
    /// What the spec is to be given.
    pub(crate) targets: Vec<NamedRequirements>,
    /// What the kubelet has granted so far: what the spec gets back if the cgroups cannot hold the targets.
    pub(crate) held: Vec<NamedRequirements>,
    /// What the spec had before the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) before: Vec<NamedRequirements>,
    /// What was asked for before, without an answer either: the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier: Vec<Vec<NamedRequirements>>,
}

/// So many requests without an answer are remembered.
const UNANSWERED: usize = 8;

impl PreparedResize {
    /// What was asked for, if a pod's spec says that it was, and what was asked for since. `known` is the last request whose
    /// answer was seen.
    fn carried_out(&self, pod: &Pod, known: Option<&AcceptedResize>) -> Option<(AcceptedResize, Option<Self>)> {
        let spec = pod.requirements();
        let newer = |known: &AcceptedResize| known.generation < pod.metadata.generation;
        let accepted = |targets: &[NamedRequirements]| AcceptedResize {
            targets: targets.to_vec(),
            generation: pod.metadata.generation,
            held: self.held.clone(),
        };
        if known.is_none_or(newer) {
            if resize::same(&self.targets, &spec) {
                return Some((accepted(&self.targets), None));
            }
            if let Some(number) = self.earlier.iter().rposition(|targets| resize::same(targets, &spec)) {
                let since = Self {
                    earlier: self.earlier[number + 1..].to_vec(),
                    ..self.clone()
                };
                return Some((accepted(&self.earlier[number]), Some(since)));
            }
        }
        let taken_back = known.is_some_and(newer) && resize::same(&self.held, &spec);
        if taken_back {
            return Some((accepted(&self.held), None));
        }
        // A patch has only what differs from the spec that was known: several that were carried out may each leave a part.
        let parts: Vec<_> = self.earlier.iter().chain([&self.before, &self.targets]).collect();
        let ours = known.is_none_or(newer) && !resize::same(&self.before, &spec) && resize::is_made_of(&parts, &spec);
        ours.then(|| (accepted(&spec), Some(self.clone())))
    }
}

/// That the cgroups were given what the spec is still to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WrittenAhead {
    pub(crate) since: Timestamp,
    /// The spec then: another one is somebody else's, or was asked for without an answer.
    pub(crate) spec: Vec<NamedRequirements>,
}

/// How far a resize is, as far as the last pass knew.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ResizeStatus {
    /// Nothing is known to stand in the way.
    #[default]
    Clear,
    /// The kubelet does not let the pod have what is wanted.
    Pending(Withheld),
    /// The API server was not asked: the node has no room.
    NoRoom,
}

impl Resize {
    /// Why the kubelet does not let the pod have what is wanted.
    pub(crate) const fn pending(&self) -> Option<&Withheld> {
        match &self.status {
            ResizeStatus::Pending(withheld) => Some(withheld),
            ResizeStatus::Clear | ResizeStatus::NoRoom => None,
        }
    }

    /// The API server is about to be asked for this.
    pub(crate) fn prepare(&mut self, pod: &Pod, patch: &ResizePatch) {
        let (before, mut earlier) = match self.prepared.take() {
            Some(PreparedResize {
                targets,
                before,
                mut earlier,
                ..
            }) => {
                earlier.push(targets);
                (before, earlier)
            }
            None => {
                let unseen = self.unseen(pod).map(|accepted| accepted.targets.clone());
                (unseen.unwrap_or_else(|| pod.requirements()), Vec::new())
            }
        };
        earlier.retain(|targets| !resize::same(targets, &patch.targets));
        earlier.drain(..earlier.len().saturating_sub(UNANSWERED));
        self.prepared = Some(PreparedResize {
            targets: patch.targets.clone(),
            held: patch.held.clone(),
            before,
            earlier,
        });
    }

    /// Whether it only waits for an API server that is away.
    pub(crate) const fn waits_for_api_server(&self) -> bool {
        matches!(self.pending(), Some(Withheld::SpecLater(_)))
    }

    /// The cgroups are given what the spec of `pod` cannot have yet.
    pub(crate) fn write_ahead(&mut self, pod: &Pod, now: Timestamp) {
        self.written_ahead.get_or_insert_with(|| WrittenAhead {
            since: now,
            spec: pod.requirements(),
        });
    }

    /// The spec has what it should, and is known to.
    pub(crate) fn catch_up(&mut self) {
        if self.written_ahead.take().is_some() {
            self.prepared = None;
        }
    }

    /// Whether somebody else gave `pod` other amounts since the cgroups were written ahead of its spec.
    pub(crate) fn is_overtaken_by(&self, pod: &Pod) -> bool {
        let ahead = self.written_ahead.as_ref();
        ahead.is_some_and(|ahead| !resize::same(&ahead.spec, &pod.requirements())) && !self.is_spec_of(pod)
    }

    /// The API server has accepted a request, or changed it to something else.
    pub(crate) fn accept(&mut self, accepted: AcceptedResize, now: Instant) {
        self.accepted = Some(accepted);
        self.prepared = None;
        self.accepted_at = Some(now);
    }

    /// The accepted request that `pod` does not show yet, because it was read before.
    pub(crate) fn unseen(&self, pod: &Pod) -> Option<&AcceptedResize> {
        self.accepted
            .as_ref()
            .filter(|accepted| pod.metadata.generation < accepted.generation)
    }

    /// Whether the spec of `pod` is what was accepted last.
    pub(crate) fn is_spec_of(&self, pod: &Pod) -> bool {
        self.accepted
            .as_ref()
            .is_some_and(|accepted| resize::same(&accepted.targets, &pod.requirements()))
    }

    /// What the kubelet has settled on since it was asked last is what it has granted, whatever is asked for next, and by
    /// whomever. Only where it says which spec it means: what is in force may be what the fast path wrote.
    pub(crate) fn observe_settled(&mut self, pod: &Pod) {
        let seen = |accepted: &&mut AcceptedResize| accepted.generation <= pod.status.observed_generation;
        if let Some(accepted) = self.accepted.as_mut().filter(seen)
            && Phase::of(pod) == Phase::Settled
        {
            accepted.held = pod.requirements();
        }
    }

    /// Recognises the spec of `pod` as a request of this agent, or of one before, that did not live to see the answer.
    pub(crate) fn recognise(&mut self, pod: &Pod) {
        let prepared = self.prepared.as_ref();
        let carried_out = prepared.and_then(|prepared| prepared.carried_out(pod, self.accepted.as_ref()));
        if let Some((accepted, since)) = carried_out {
            self.accepted = Some(accepted);
            self.prepared = since;
        }
    }

    /// Somebody else has changed the spec: earlier requests count no longer.
    pub(crate) fn forget(&mut self) {
        self.accepted = None;
        self.prepared = None;
        self.written_ahead = None;
    }

    /// How long to wait before the API server is asked for what was grown in an emergency: until the limit has not grown
    /// for `calm`. Where the kubelet is about to write less it is asked at once, though at most once in `at_most_every`.
    pub(crate) fn too_early(
        &self,
        calm: Duration,
        about_to_lower: bool,
        at_most_every: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let since = self.accepted_at.map(|at| now.saturating_duration_since(at));
        let wait = if about_to_lower {
            calm.min(since.map_or(Duration::ZERO, |since| at_most_every.saturating_sub(since)))
        } else {
            calm
        };
        (!wait.is_zero()).then_some(wait)
    }

    /// Whether the kubelet has yet to write what it was asked for, and that is a lower memory limit than one of `given`.
    pub(crate) fn is_about_to_lower<'a>(&self, pod: &Pod, given: impl IntoIterator<Item = (&'a str, u64)>) -> bool {
        let spec = match (self.unseen(pod), Phase::of(pod)) {
            (Some(accepted), _) => accepted.targets.clone(),
            (None, Phase::Settled | Phase::Infeasible(_)) => return false,
            (None, _) => pod.requirements(),
        };
        given
            .into_iter()
            .any(|(name, limit)| limit_in(&spec, name, Resource::Memory).is_some_and(|asked| asked < limit))
    }
}

#[cfg(test)]
mod tests;
