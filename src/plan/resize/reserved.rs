//! What a pod takes of its node if the kubelet resizes in place: what that kubelet has allocated.

use crate::model::objects::Pod;
use crate::model::{KubeletVersion, NamedRequirements, Resource, ResourceList};

use super::super::effective::pod_requests;
use super::super::room::{NoRoom, Room, larger};
use super::phase::{Phase, granted};

/// Whether the node has room for a pod with the `wanted` amounts, beyond what the kubelet has allocated to the pod.
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

/// What the kubelet has allocated to a pod, according to the pod's status.
fn allocated(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    pod_requests(pod, &granted(pod, &Phase::of(pod), None), kubelet)
}

/// What a pod's requests take of its node: what the kubelet has allocated, and what the spec asks for until the kubelet has
/// answered. A resize that waits for room takes none.
pub fn reserved(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    let allocated = allocated(pod, kubelet);
    match Phase::of(pod) {
        Phase::Accepted => larger(allocated, pod_requests(pod, &[], kubelet)),
        Phase::Withheld(_) | Phase::InProgress | Phase::Settled => allocated,
    }
}
