//! The requests of one pod's resize: accepted, without an answer, and still to be made. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::amounts::{taken_back, undone};
use crate::model::PodAmounts;
use crate::model::objects::{Pod, ResizePhase};

/// The last request that the API server accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    /// The amounts of the request.
    pub targets: PodAmounts,
    /// The spec's generation with these amounts.
    pub generation: i64,
    /// The kubelet's grant before the request.
    pub held: PodAmounts,
    /// The spec without the requests of this agent that the kubelet had not allocated. Files of version 0.1 do not have this field.
    #[serde(default, skip_serializing_if = "PodAmounts::is_empty")]
    pub before: PodAmounts,
}

impl Accepted {
    /// Whether `pod` is older than the request, and does not show it yet.
    pub const fn is_unseen_in(&self, pod: &Pod) -> bool {
        pod.metadata.generation < self.generation
    }

    /// Whether the spec of `pod` has the amounts that the request changed.
    pub fn is_in(&self, pod: &Pod) -> bool {
        let (before, spec) = (known_before(&self.before, &self.held), pod.requirements());
        self.targets.iter().all(|(of, resources)| {
            let amounts = |all: &PodAmounts| all.get(of).unwrap_or(resources).amounts();
            let changes = resources.amounts().into_iter().zip(amounts(before)).zip(amounts(&spec));
            changes.into_iter().all(|((to, before), has)| to == before || to == has)
        })
    }

    /// The spec that the API server has, as far as this agent knows: the accepted one if `pod` is older.
    pub fn spec(&self, pod: &Pod) -> PodAmounts {
        if self.is_unseen_in(pod) {
            return pod.with_requirements(&self.targets).requirements();
        }
        pod.requirements()
    }

    /// Takes the pod's `own` amounts for those before, where the request changes some.
    pub(super) fn forget_by_hand(&mut self, own: &PodAmounts) {
        self.before = undone(known_before(&self.before, &self.held), &self.targets, own);
    }

    /// These amounts of `pod` without the requests of this agent that the kubelet has not allocated.
    pub fn without_requests(&self, pod: &Pod, amounts: PodAmounts) -> PodAmounts {
        let is_open = self.is_unseen_in(pod) || ResizePhase::of(pod).is_open();
        if is_open {
            taken_back(&amounts, &self.targets, known_before(&self.before, &self.held))
        } else {
            amounts
        }
    }
}

/// The spec `before` a request; where a file of version 0.1 has none, the kubelet's grant.
fn known_before<'a>(before: &'a PodAmounts, held: &'a PodAmounts) -> &'a PodAmounts {
    if before.is_empty() { held } else { before }
}

/// A patch without an answer. The state file has the patch before the API server does: an agent that is killed in
/// between recognises its own patch in the spec, and does not take it for another client's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// The amounts that the patch gives the spec.
    pub targets: PodAmounts,
    /// The kubelet's grant before the patch. The spec gets it back if the cgroups cannot hold the targets.
    pub held: PodAmounts,
    /// The spec before the first patch without an answer.
    #[serde(default, skip_serializing_if = "PodAmounts::is_empty")]
    pub before: PodAmounts,
    /// The targets of earlier patches without an answer, the latest last. There are some if an agent was killed amid a pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<PodAmounts>,
}

impl Prepared {
    /// The spec before the patches, and the amounts that each of them gives it.
    pub(super) fn specs(&self) -> impl Iterator<Item = &PodAmounts> {
        self.earlier.iter().chain([&self.before, &self.targets])
    }

    /// Each of the patches, with the spec once it is taken back.
    pub(super) fn requests(&self) -> impl Iterator<Item = (&PodAmounts, PodAmounts)> {
        let before = known_before(&self.before, &self.held);
        let all = self.earlier.iter().chain([&self.targets]);
        all.map(move |targets| (targets, undone(before, targets, &self.held)))
    }

    /// The spec once the patch is taken back.
    pub fn undone(&self) -> PodAmounts {
        let before = known_before(&self.before, &self.held);
        undone(before, &self.targets, &self.held)
    }
}

/// The cgroups have targets that the spec does not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenAhead {
    pub since: Timestamp,
    /// The spec at that time, with what is known since to come from this agent or not to concern it. Another spec is another client's
    /// change, or a request without an answer.
    pub spec: PodAmounts,
}
