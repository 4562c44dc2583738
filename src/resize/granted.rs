//! What the kubelet has granted a pod so far, and the node's room for more. Pure.

use crate::model::objects::{Pod, ResizePhase};
use crate::model::{KubeletVersion, NamedRequirements, Resource, ResourceList, Withheld};
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
pub fn granted(pod: &Pod, phase: &ResizePhase, held: Option<&[NamedRequirements]>) -> Vec<NamedRequirements> {
    match (phase, held) {
        (ResizePhase::InProgress | ResizePhase::Settled, _) => pod.requirements(),
        (_, Some(held)) => pod.with_requirements(held).requirements(),
        (_, None) => reported(pod),
    }
}

/// Whether a memory limit comes down from the granted amounts to the wanted ones.
pub(super) fn lowers_memory(granted: &[NamedRequirements], wanted: &[NamedRequirements]) -> bool {
    granted.iter().any(|has| {
        let wanted = NamedRequirements::find(wanted, &has.name).and_then(|wanted| wanted.limits.memory);
        wanted.is_some() && wanted < has.resources.limits.memory
    })
}

/// The kubelet's report: allocated requests, and limits in force. Takes the spec's amounts where it reports nothing.
/// The fast path may have changed the limits in force.
fn reported(pod: &Pod) -> Vec<NamedRequirements> {
    let mut all = pod.requirements();
    for named in &mut all {
        if named.is_of_pod() {
            named.resources.overlay(&pod.status.resources.unwrap_or_default());
        }
        let Some(status) = pod.container_status(&named.name) else {
            continue;
        };
        if let Some(in_force) = status.resources {
            named.resources = in_force;
        }
        if let Some(requests) = status.allocated_resources {
            named.resources.requests = requests;
        }
    }
    all
}

/// Whether the node has room for a pod with the `wanted` amounts, beyond the amounts allocated to the pod.
///
/// Errors: [`NoRoom`] with the numbers, for the first resource that does not fit.
pub fn check_room(room: &Room, pod: &Pod, wanted: &[NamedRequirements], kubelet: KubeletVersion) -> Result<(), NoRoom> {
    room.check(allocated(pod, kubelet), pod_requests(pod, wanted, kubelet))
}

/// Whether a pod would take more of its node with the `wanted` amounts than the kubelet has allocated to the pod.
pub(super) fn grows(pod: &Pod, wanted: &[NamedRequirements], kubelet: KubeletVersion) -> bool {
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
        ResizePhase::Accepted => larger(allocated, pod_requests(pod, &[], kubelet)),
        ResizePhase::Withheld(_) | ResizePhase::InProgress | ResizePhase::Settled => allocated,
    }
}
