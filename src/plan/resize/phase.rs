//! The phase of a resize, from the kubelet's report about the pod, and the pod's requests in that phase.

use super::super::hierarchy::pod_requests;
use super::super::room::{NoRoom, Room, larger};
use crate::model::objects::Pod;
use crate::model::{KubeletVersion, NamedRequirements, Resource, ResourceList, Withheld};

/// The phase of a pod's latest resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The API server has accepted the resize, and the kubelet has not answered yet.
    Accepted,
    /// The kubelet has deferred the resize, found it infeasible, or failed to write the amounts that it had allocated.
    Withheld(Withheld),
    /// The kubelet has allocated the amounts and is writing them.
    InProgress,
    /// The containers run with the amounts of the spec.
    Settled,
}

impl Phase {
    /// The phase of the resize that led to the pod's present spec.
    ///
    /// A condition about an earlier spec does not count. Kubelets before 1.34 do not say which spec a condition is about: there
    /// every condition counts, and without one this function compares the containers' amounts.
    pub fn of(pod: &Pod) -> Self {
        if let Some(pending) = pod.resize_condition("PodResizePending") {
            let why = pending.message.clone();
            return Self::Withheld(match pending.reason.as_str() {
                "Infeasible" => Withheld::Infeasible(why),
                _ => Withheld::Deferred(why),
            });
        }
        if let Some(progress) = pod.resize_condition("PodResizeInProgress") {
            return match progress.reason.as_str() {
                "Error" => Self::Withheld(Withheld::Failed(progress.message.clone())),
                _ => Self::InProgress,
            };
        }
        let settled = match pod.status.observed_generation {
            0 => runs_with_spec(pod),
            observed => observed >= pod.metadata.generation,
        };
        if settled { Self::Settled } else { Self::Accepted }
    }

    /// Whether the kubelet has not allocated the amounts of the spec.
    pub const fn is_open(&self) -> bool {
        use Withheld::{Deferred, Infeasible};
        matches!(self, Self::Accepted | Self::Withheld(Deferred(_) | Infeasible(_)))
    }

    /// Whether the cgroups may get the patched amounts: once the kubelet has allocated them, and before that if the
    /// node is known to have `room`.
    ///
    /// Errors: [`Withheld`]. The cgroups then keep what the kubelet has [`granted`].
    pub fn grants(&self, room: Result<(), String>) -> Result<(), Withheld> {
        match self {
            Self::InProgress | Self::Settled => Ok(()),
            Self::Accepted => room.map_err(Withheld::Unanswered),
            Self::Withheld(withheld) => Err(withheld.clone()),
        }
    }
}

/// The kubelet's grant to the containers: the spec once the kubelet has allocated that. Before, and if it could not
/// write the spec, the amounts `held` at the time of the request, or else those that the kubelet reports.
pub fn granted(pod: &Pod, phase: &Phase, held: Option<&[NamedRequirements]>) -> Vec<NamedRequirements> {
    match (phase, held) {
        (Phase::InProgress | Phase::Settled, _) => pod.requirements(),
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

fn runs_with_spec(pod: &Pod) -> bool {
    pod.running_containers().all(|container| {
        let status = pod.container_status(&container.name);
        status.and_then(|status| status.resources).is_none_or(|in_force| {
            let mut with_spec = in_force;
            with_spec.overlay(&container.resources);
            with_spec == in_force
        })
    })
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
    pod_requests(pod, &granted(pod, &Phase::of(pod), None), kubelet)
}

/// The amounts that a pod takes of its node: the allocated ones, and until the kubelet has answered those of the spec.
/// A resize that waits for room takes none.
pub fn reserved(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    let allocated = allocated(pod, kubelet);
    match Phase::of(pod) {
        Phase::Accepted => larger(allocated, pod_requests(pod, &[], kubelet)),
        Phase::Withheld(_) | Phase::InProgress | Phase::Settled => allocated,
    }
}
