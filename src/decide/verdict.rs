//! Changes that must not be made in place, though due: the API refuses them, or they restart a container.

use super::candidate::Candidate;
use super::note::Note;
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, QosClass, Reason, Requirements, Resource};

/// Why the pod may not be given these amounts, if so. `outcome` has one entry for each candidate, in the same order.
pub(super) fn forbids(
    pod: &Pod,
    candidates: &[Candidate<'_>],
    outcome: &[NamedRequirements],
    notes: &mut Vec<Note>,
) -> Option<Reason> {
    let class = class_change(pod, outcome).map(|note| (Reason::QoSClassChange, note));
    let exceeded = || {
        let (resource, to, pod) = pod.exceeded_by(outcome)?;
        Some((Reason::PodLevelExceeded, Note::WouldExceedPod { resource, to, pod }))
    };
    if let Some((reason, note)) = class.or_else(exceeded) {
        notes.push(note);
        return Some(reason);
    }
    let known = notes.len();
    notes.extend(restarts(candidates, outcome));
    (notes.len() > known).then_some(Reason::RestartRequired)
}

/// A resize must leave the class as it is (KEP-1287).
fn class_change(pod: &Pod, outcome: &[NamedRequirements]) -> Option<Note> {
    // The class follows from the pod's own resources where it has any.
    let own = pod.spec.resources.is_some();
    if own && pod.resizable_pod_level().is_none() {
        return None;
    }
    let from = pod.qos_class();
    let mut to = pod.qos_with(outcome);
    // A lone limit stands for an equal request only until the API server has written that down: an object with a class
    // has been there.
    let init = pod.spec.init_containers.iter().map(|container| &container.resources);
    let mut after = outcome.iter().map(|named| &named.resources).chain(init);
    if !own && to == QosClass::Guaranteed && pod.status.qos_class.is_some() && after.any(has_lone_limit) {
        to = QosClass::Burstable;
    }
    (from != to).then_some(Note::WouldChangeClass { from, to })
}

fn has_lone_limit(has: &Requirements) -> bool {
    Resource::ALL
        .into_iter()
        .any(|resource| has.limits.amount(resource) > 0 && has.requests.amount(resource) == 0)
}

/// The resources that change, in their request or their limit, and would restart their container.
fn restarts(candidates: &[Candidate<'_>], outcome: &[NamedRequirements]) -> impl Iterator<Item = Note> {
    let changed = candidates.iter().zip(outcome).flat_map(|(candidate, new)| {
        let differs = move |resource| changes(&candidate.in_force, &new.resources, resource);
        Resource::ALL
            .into_iter()
            .filter(move |resource| candidate.moves(*resource) && differs(*resource))
            .map(move |resource| (candidate.spec, resource))
    });
    changed
        .filter(|(container, resource)| container.restarts_for(*resource))
        .map(|(container, resource)| Note::WouldRestart {
            container: container.name.clone(),
            resource,
        })
}

/// Whether the outcome differs from what is in force or from what stands, in a resource that is to change.
pub(super) fn changes_anything(candidates: &[Candidate<'_>], outcome: &[NamedRequirements]) -> bool {
    candidates.iter().zip(outcome).any(|(candidate, new)| {
        let differs = |from, resource| changes(from, &new.resources, resource);
        Resource::ALL
            .into_iter()
            .filter(|resource| candidate.moves(*resource))
            .any(|resource| differs(&candidate.in_force, resource) || differs(&candidate.standing, resource))
    })
}

/// Whether a resource has another request or limit; unset and zero are the same here.
pub(super) fn changes(from: &Requirements, to: &Requirements, resource: Resource) -> bool {
    from.requests.amount(resource) != to.requests.amount(resource)
        || from.limits.amount(resource) != to.limits.amount(resource)
}
