//! What a pod takes of its node where the kubelet resizes in place: what that kubelet has set aside for it.

use crate::model::objects::Pod;
use crate::model::{KubeletVersion, NamedRequirements, Resource, ResourceList};

use super::super::effective::pod_requests;
use super::super::room::{NoRoom, Room, larger};
use super::phase::{Phase, granted};

/// Whether the node has room for a pod with the `wanted` amounts, beyond what the kubelet has set aside for it.
///
/// Errors: [`NoRoom`] with the numbers, for the first resource that does not fit.
pub fn check_room(room: &Room, pod: &Pod, wanted: &[NamedRequirements], kubelet: KubeletVersion) -> Result<(), NoRoom> {
    room.check(set_aside(pod, kubelet), pod_requests(pod, wanted, kubelet))
}

/// Whether a pod would take more of its node with the `wanted` amounts than the kubelet has set aside for it.
pub(super) fn grows(pod: &Pod, wanted: &[NamedRequirements], kubelet: KubeletVersion) -> bool {
    let before = set_aside(pod, kubelet);
    let after = pod_requests(pod, wanted, kubelet);
    let grows = |resource| after.amount(resource) > before.amount(resource);
    Resource::ALL.into_iter().any(grows)
}

/// What the kubelet has set aside for a pod, as far as it says.
fn set_aside(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    pod_requests(pod, &granted(pod, &Phase::of(pod), None), kubelet)
}

/// What a pod's requests take of its node: what the kubelet has set aside for it, and what it was asked for while it has
/// not answered. A resize that waits for room takes none.
pub fn reserved(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    let set_aside = set_aside(pod, kubelet);
    match Phase::of(pod) {
        Phase::Accepted => larger(set_aside, pod_requests(pod, &[], kubelet)),
        Phase::Deferred(_) | Phase::Infeasible(_) | Phase::InProgress | Phase::Failed(_) | Phase::Settled => set_aside,
    }
}
