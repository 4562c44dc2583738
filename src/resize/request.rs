//! The requests of one pod's resize: accepted, without an answer, and still to be made. Which amounts each of them changes, and what
//! becomes of them beside edits of other clients. Pure.

use serde::{Deserialize, Serialize};

use crate::model::objects::Pod;
use crate::model::{PodAmounts, Requirements, Resource};

/// A request for amounts: a patch that the API server has accepted, or that has no answer. The state file has a patch before the API
/// server does: an agent that is killed in between recognises its own patch in the spec, and does not take it for another client's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The amounts that the patch gives the spec.
    pub targets: PodAmounts,
    /// The spec's generation with these amounts. Zero where the API server has not accepted them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// The kubelet's grant before the patch. The spec gets it back if the cgroups cannot hold the targets.
    pub held: PodAmounts,
    /// The spec without the requests of this agent that the kubelet had not allocated; before an answer, the spec before the first patch
    /// without one. Files of version 0.1 do not have this field.
    #[serde(default, skip_serializing_if = "PodAmounts::is_empty")]
    pub before: PodAmounts,
    /// The targets of earlier patches without an answer, the latest last. There are some if an agent was killed amid a pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<PodAmounts>,
}

const fn is_zero(generation: &i64) -> bool {
    *generation == 0
}

impl Request {
    /// Whether the spec of `pod` has the amounts that the request changed.
    pub(super) fn is_in(&self, pod: &Pod) -> bool {
        let (before, spec) = (self.known_before(), pod.requirements());
        self.targets.iter().all(|(of, resources)| {
            let amounts = |all: &PodAmounts| all.get(of).unwrap_or(resources).amounts();
            let changes = resources.amounts().into_iter().zip(amounts(before)).zip(amounts(&spec));
            changes.into_iter().all(|((to, before), has)| to == before || to == has)
        })
    }

    /// The spec before the request; where a file of version 0.1 has none, the kubelet's grant.
    pub(super) fn known_before(&self) -> &PodAmounts {
        let before = Some(&self.before).filter(|before| !before.is_empty());
        before.unwrap_or(&self.held)
    }

    /// The amounts that each of the patches gives the spec.
    pub(super) fn patches(&self) -> impl Iterator<Item = &PodAmounts> {
        self.earlier.iter().chain([&self.targets])
    }

    /// The spec before the patches, and the amounts that each of them gives it.
    pub(super) fn specs(&self) -> impl Iterator<Item = &PodAmounts> {
        self.patches().chain([&self.before])
    }

    /// These amounts without each of the patches.
    pub(super) fn without(&self, amounts: PodAmounts) -> PodAmounts {
        let undo = |amounts: PodAmounts, targets| taken_back(&amounts, targets, &self.undone(targets));
        self.patches().fold(amounts, undo)
    }

    /// The amounts of the patch that the `spec` of a later object has, and the patches that have no answer still. `None` if the object
    /// may be older than the patches, or the spec is another client's. A patch can only have been taken back where the API server
    /// `has_accepted` one before.
    pub(super) fn recognised_in(&self, spec: &PodAmounts, has_accepted: bool) -> Option<(PodAmounts, Option<Self>)> {
        let is_spec = |targets: &PodAmounts| targets.same(spec);
        // One of the patches may go back to the spec before.
        if !self.before.is_empty() && is_spec(&self.before) {
            return None;
        }
        // A patch has only the containers that differ from the known spec: several patches may each have left
        // a part of this spec.
        let (parts, undone): (Vec<_>, _) = (self.specs().collect(), self.undone(&self.targets));
        if let Some(number) = self.earlier.iter().rposition(is_spec) {
            let mut since = self.clone();
            since.before = since.earlier.drain(..=number).next_back().unwrap_or_default();
            Some((self.earlier[number].clone(), Some(since)))
        } else if is_spec(&self.targets) {
            Some((self.targets.clone(), None))
        } else if has_accepted && is_spec(&undone) {
            Some((undone, None))
        } else {
            is_made_of(&parts, spec).then(|| (spec.clone(), Some(self.clone())))
        }
    }

    /// The spec once the patch with these targets is taken back.
    pub(super) fn undone(&self, targets: &PodAmounts) -> PodAmounts {
        undone(self.known_before(), targets, &self.held)
    }
}

/// The amounts to which a request that changes the spec `from` into `to` is taken back: those of `held` where the request changes an
/// amount, and those of `from` elsewhere.
pub(super) fn undone(from: &PodAmounts, to: &PodAmounts, held: &PodAmounts) -> PodAmounts {
    each(from, [to, held], |from, [to, held]| {
        let undo = |[from, to, held]: [Option<u64>; 3]| if from == to { from } else { held.or(from) };
        Requirements::choose([from, to, held], undo)
    })
}

/// The `spec` without what it still has of a request for the amounts `asked`: it gets the amounts `before` there. The amounts
/// that another client has set since stay, and so does a resource whose request would be above its limit.
pub fn taken_back(spec: &PodAmounts, asked: &PodAmounts, before: &PodAmounts) -> PodAmounts {
    each(spec, [asked, before], |spec, [asked, before]| {
        let restore = |[has, asked, before]: [Option<u64>; 3]| if has == asked { before.or(has) } else { has };
        Requirements::choose([spec, asked, before], restore).valid_or(spec)
    })
}

/// The amounts of `spec` that are neither in `known` nor in one of the `parts`. All others are unset.
pub(super) fn edits<'a>(
    known: &'a PodAmounts,
    spec: &PodAmounts,
    parts: impl Iterator<Item = &'a PodAmounts>,
) -> PodAmounts {
    let new = |[has, known]: [Option<u64>; 2]| has.filter(|_| has != known);
    let mut edited = std::iter::once(known).chain(parts).fold(spec.clone(), |edited, part| {
        each(&edited, [part], |edited, [part]| {
            Requirements::choose([edited, part], new)
        })
    });
    let unset = Requirements::default();
    let is_known = |name: &str| known.container(name).is_some();
    let containers = &mut edited.containers;
    containers.retain(|edit| edit.resources != unset && is_known(&edit.name));
    edited.pod.take_if(|edit| **edit == unset || known.pod.is_none());
    edited
}

/// Whether another client's `edits` are of amounts that the cgroups have ahead of the spec: those that differ between the spec
/// `before` and the `targets`, and those that an operator has `set`.
pub(super) fn overtake(edits: &PodAmounts, before: &PodAmounts, targets: &PodAmounts, set: &PodAmounts) -> bool {
    let ahead = |[edit, before, target, set]: [Option<u64>; 4]| edit.filter(|_| before != target || set.is_some());
    edits.iter().any(|(of, edit)| {
        let [before, target, set] = [before, targets, set].map(|all| all.get(of).copied().unwrap_or_default());
        let [before, target] = [before, target].map(Requirements::with_requests);
        Requirements::choose([edit, &before, &target, &set], ahead) != Requirements::default()
    })
}

/// The least of both amounts, where both are set.
pub(super) fn least(one: &PodAmounts, other: &PodAmounts) -> PodAmounts {
    each(one, [other], |one, [other]| {
        Requirements::choose([one, other], |[one, other]| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            _ => one,
        })
    })
}

/// Combines the amounts of each container of `all`, and of the pod, with the same ones of the `others`. Those that one of the
/// others does not have stay as they are.
fn each<const N: usize>(
    all: &PodAmounts,
    others: [&PodAmounts; N],
    combine: impl Fn(&Requirements, [&Requirements; N]) -> Requirements,
) -> PodAmounts {
    let mut combined = all.clone();
    for (of, resources) in combined.iter_mut() {
        let found = others.map(|other| Some(other.get(of)?.with_requests()));
        if found.iter().all(Option::is_some) {
            let found = found.map(Option::unwrap_or_default);
            *resources = combine(resources, found.each_ref());
        }
    }
    combined
}

/// Whether every amount of `whole` is in one of the `parts`. A container that no part names is ignored.
fn is_made_of(parts: &[&PodAmounts], whole: &PodAmounts) -> bool {
    whole.iter().all(|(of, resources)| {
        let parts = parts.iter().filter_map(|part| part.get(of));
        let parts: Vec<[u64; 4]> = parts.map(Requirements::amounts).collect();
        let mut all = resources.amounts().into_iter().enumerate();
        parts.is_empty() || all.all(|(number, amount)| parts.iter().any(|part| part[number] == amount))
    })
}

/// The resources of which these give a container, or the pod, different amounts.
pub fn differing(one: &PodAmounts, other: &PodAmounts) -> Vec<Resource> {
    let amounts = |has: &Requirements, resource| has.with_requests().of(resource).map(Option::unwrap_or_default);
    let differs = |resource: &Resource| {
        let mut all = one.iter();
        all.any(|(of, one)| other.get(of).map(|other| amounts(other, *resource)) != Some(amounts(one, *resource)))
    };
    Resource::ALL.into_iter().filter(differs).collect()
}
