//! Whether a node has room for what a pod is to request.

use crate::objects::Pod;
use crate::resources::{NamedRequirements, Resource, ResourceList};

use super::super::effective::pod_requests;
use super::super::types::KubeletVersion;
use super::phase::{Phase, granted};

/// What a node's pods may request together, and what others than the pod in question do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The node's allocatable amounts; an unset one is unknown, and bounds nothing.
    pub allocatable: ResourceList,
    /// What all other pods have set aside.
    pub others: ResourceList,
}

/// A node is too full for what a pod is to request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the node has no room: the pod is to request {wanted} of {resource}, {left} of {allocatable} are left by other pods, \
     which request {others}"
)]
pub struct NoRoom {
    /// Which resource.
    pub resource: Resource,
    /// What the pod is to request.
    pub wanted: String,
    /// What is left.
    pub left: String,
    /// What there is.
    pub allocatable: String,
    /// What others request.
    pub others: String,
}

impl Room {
    /// Whether the node has room for a pod with the `wanted` amounts. What does not grow always fits: the pod has it.
    ///
    /// # Errors
    /// [`NoRoom`] with the numbers, for the first resource that does not fit.
    pub fn check(&self, pod: &Pod, wanted: &[NamedRequirements], kubelet: KubeletVersion) -> Result<(), NoRoom> {
        self.check_growth(set_aside(pod, kubelet), pod_requests(pod, wanted, kubelet))
    }

    /// Whether the node has room for a pod that takes as much as `after` where it took as much as `before`.
    ///
    /// # Errors
    /// [`NoRoom`] with the numbers, for the first resource that grows and does not fit.
    pub fn check_growth(&self, before: ResourceList, after: ResourceList) -> Result<(), NoRoom> {
        for resource in Resource::ALL {
            let Some(allocatable) = self.allocatable.get(resource) else {
                continue;
            };
            let (wanted, others) = (after.amount(resource), self.others.amount(resource));
            if wanted > before.amount(resource) && wanted.saturating_add(others) > allocatable {
                return Err(NoRoom {
                    resource,
                    wanted: resource.quantity(wanted),
                    left: resource.quantity(allocatable.saturating_sub(others)),
                    allocatable: resource.quantity(allocatable),
                    others: resource.quantity(others),
                });
            }
        }
        Ok(())
    }
}

/// Whether a pod would take more of its node with the `wanted` amounts than the kubelet has set aside for it.
#[must_use]
pub fn grows(pod: &Pod, wanted: &[NamedRequirements], kubelet: KubeletVersion) -> bool {
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
#[must_use]
pub fn reserved(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    let set_aside = set_aside(pod, kubelet);
    match Phase::of(pod) {
        Phase::Accepted => larger(set_aside, pod_requests(pod, &[], kubelet)),
        Phase::Deferred(_) | Phase::Infeasible(_) | Phase::InProgress | Phase::Failed(_) | Phase::Settled => set_aside,
    }
}

fn larger(one: ResourceList, other: ResourceList) -> ResourceList {
    let mut larger = one;
    for resource in Resource::ALL {
        larger.set(resource, one.get(resource).max(other.get(resource)));
    }
    larger
}
