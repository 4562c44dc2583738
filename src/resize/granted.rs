//! What the kubelet has granted a pod so far, and the node's room for more. Pure.

use crate::model::objects::{Pod, ResizePhase};
use crate::model::{KubeletVersion, NamedRequirements, PodAmounts, Resource, ResourceList, Withheld};
use crate::plan::{NoRoom, Room, larger, pod_requests};

/// Whether the cgroups may get the patched amounts in this phase: once the kubelet has allocated them, and before that if the
/// node is known to have `room`.
///
/// Errors: [`Withheld`]. The cgroups then keep what the kubelet has [`granted`].
pub(super) fn grants(phase: &ResizePhase, room: Result<(), String>) -> Result<(), Withheld> {
    match phase {
        ResizePhase::InProgress | ResizePhase::Settled => Ok(()),
        ResizePhase::Accepted => room.map_err(Withheld::Unanswered),
        ResizePhase::Withheld(withheld) => Err(withheld.clone()),
    }
}

/// The kubelet's grant to the containers: the spec once the kubelet has allocated that. Before, and if it could not
/// write the spec, the amounts `held` at the time of the request, or else those that the kubelet reports.
pub fn granted(pod: &Pod, phase: &ResizePhase, held: Option<&PodAmounts>) -> PodAmounts {
    match (phase, held) {
        (ResizePhase::InProgress | ResizePhase::Settled, _) => pod.requirements(),
        (_, Some(held)) => pod.with_requirements(held).requirements(),
        (_, None) => reported(pod),
    }
}

/// Whether a memory limit comes down from the granted amounts to the wanted ones.
pub(super) fn lowers_memory(granted: &PodAmounts, wanted: &PodAmounts) -> bool {
    granted.iter().any(|(of, has)| {
        let wanted = wanted.get(of).and_then(|wanted| wanted.limits.memory);
        wanted.is_some() && wanted < has.limits.memory
    })
}

/// The kubelet's report: allocated requests, and limits in force. Takes the spec's amounts where it reports nothing.
/// The fast path may have changed the limits in force.
fn reported(pod: &Pod) -> PodAmounts {
    let mut all = pod.requirements();
    if let (Some(own), Some(in_force)) = (&mut all.pod, &pod.status.resources) {
        own.overlay(in_force);
    }
    for NamedRequirements { name, resources } in &mut all.containers {
        let Some(status) = pod.container_status(name) else {
            continue;
        };
        *resources = status.resources.unwrap_or(*resources);
        resources.requests = status.allocated_resources.unwrap_or(resources.requests);
    }
    all
}

/// Whether the node has room for a pod with the `wanted` amounts, beyond the amounts allocated to the pod.
///
/// Errors: [`NoRoom`] with the numbers, for the first resource that does not fit.
pub fn check_room(room: &Room, pod: &Pod, wanted: &PodAmounts, kubelet: KubeletVersion) -> Result<(), NoRoom> {
    room.check(allocated(pod, kubelet), pod_requests(pod, wanted, kubelet))
}

/// Whether a pod would take more of its node with the `wanted` amounts than the kubelet has allocated to the pod.
pub(super) fn grows(pod: &Pod, wanted: &PodAmounts, kubelet: KubeletVersion) -> bool {
    let before = allocated(pod, kubelet);
    let after = pod_requests(pod, wanted, kubelet);
    let grows = |resource| after.amount(resource) > before.amount(resource);
    Resource::ALL.into_iter().any(grows)
}

/// The amounts that the kubelet has allocated to a pod, according to the pod's status.
fn allocated(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    pod_requests(pod, &granted(pod, &ResizePhase::of(pod), None), kubelet)
}

/// The amounts that a pod takes of its node: the allocated ones, and until the kubelet has answered those of the spec.
/// A resize that waits for room takes none.
pub fn reserved(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    let allocated = allocated(pod, kubelet);
    match ResizePhase::of(pod) {
        ResizePhase::Accepted => larger(allocated, pod_requests(pod, PodAmounts::NONE, kubelet)),
        ResizePhase::Withheld(_) | ResizePhase::InProgress | ResizePhase::Settled => allocated,
    }
}
