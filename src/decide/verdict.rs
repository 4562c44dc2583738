//! Due changes that the agent must not make in place: the API refuses them, or they restart a container.

use super::candidate::{Candidate, differ};
use super::note::Note;
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, QosClass, Reason, Requirements, Resource};

/// Why the pod may not be given these amounts. None if it may. `outcome` has the candidates' outcomes, and the pod's own.
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
    notes.extend(restarts(candidates));
    (notes.len() > known).then_some(Reason::RestartRequired)
}

/// A resize must not change the pod's class (KEP-1287).
fn class_change(pod: &Pod, outcome: &[NamedRequirements]) -> Option<Note> {
    // The class follows from the pod's own resources where it has any.
    let own = pod.spec.resources.is_some();
    if own && pod.resizable_pod_level().is_none() {
        return None;
    }
    let from = pod.qos_class();
    let mut to = pod.qos_with(outcome);
    // A lone limit implies an equal request only until the API server fills in the request. It has done so for every
    // object that has a class.
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

/// The resources whose change would restart their container.
fn restarts(candidates: &[Candidate<'_>]) -> impl Iterator<Item = Note> {
    candidates.iter().flat_map(|candidate| {
        let restarts = move |resource: &Resource| {
            candidate.moves(*resource)
                && differ(&candidate.in_force, &candidate.outcome, *resource)
                && candidate.spec.restarts_for(*resource)
        };
        let restarting = Resource::ALL.into_iter().filter(restarts);
        restarting.map(move |resource| Note::WouldRestart {
            container: candidate.spec.name.clone(),
            resource,
        })
    })
}
