//! How far a resize has got, from what the kubelet says about the pod.

use crate::model::objects::Pod;
use crate::model::{NamedRequirements, Requirements, Resource, Withheld};

/// How far the latest resize of a pod has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The API server has accepted it; the kubelet has not answered yet.
    Accepted,
    /// The node has no room for it now: the kubelet tries again when that changes. With its words.
    Deferred(String),
    /// This node can never do it: the kubelet waits for another spec. With its words.
    Infeasible(String),
    /// The kubelet has set the amounts aside and is writing them.
    InProgress,
    /// The kubelet has set the amounts aside and could not write them; it tries again. With its words.
    Failed(String),
    /// What runs has what the spec says.
    Settled,
}

impl Phase {
    /// The phase of the resize that led to the pod's spec as it is.
    ///
    /// Conditions about an earlier spec say nothing about this one. Kubelets before 1.34 do not say which spec they mean:
    /// then a condition counts, and without one the containers' amounts are compared.
    pub fn of(pod: &Pod) -> Self {
        if let Some(pending) = pod.resize_condition("PodResizePending") {
            let why = pending.message.clone();
            return match pending.reason.as_str() {
                "Infeasible" => Self::Infeasible(why),
                _ => Self::Deferred(why),
            };
        }
        if let Some(progress) = pod.resize_condition("PodResizeInProgress") {
            return match progress.reason.as_str() {
                "Error" => Self::Failed(progress.message.clone()),
                _ => Self::InProgress,
            };
        }
        let settled = match pod.status.observed_generation {
            0 => runs_with_spec(pod),
            observed => observed >= pod.metadata.generation,
        };
        if settled { Self::Settled } else { Self::Accepted }
    }

    /// Whether the cgroups may be given what was asked for: once the kubelet has set it aside, and before that when the
    /// node is known to have `room`.
    ///
    /// Errors: [`Withheld`]: they are to hold what the kubelet has [`granted`].
    pub fn grants(&self, room: Result<(), String>) -> Result<(), Withheld> {
        match self {
            Self::InProgress | Self::Settled => Ok(()),
            Self::Accepted => room.map_err(Withheld::Unanswered),
            Self::Deferred(why) => Err(Withheld::Deferred(why.clone())),
            Self::Infeasible(why) => Err(Withheld::Infeasible(why.clone())),
            Self::Failed(why) => Err(Withheld::Failed(why.clone())),
        }
    }
}

/// What the kubelet lets the containers have, as far as is known: the spec once it has set that aside; before, and where
/// it could not write it, what was `held` when it was asked, or else what it reports.
pub fn granted(pod: &Pod, phase: &Phase, held: Option<&[NamedRequirements]>) -> Vec<NamedRequirements> {
    match (phase, held) {
        (Phase::InProgress | Phase::Settled, _) => pod.requirements(),
        (_, Some(held)) => super::overlaid(pod, held),
        (_, None) => reported(pod),
    }
}

/// What the cgroups are given while they cannot have what is wanted: what was granted. But where the kubelet has set a
/// lower memory limit aside and could not write it, they have that one already or are to get it: what keeps use below it
/// is what the kubelet waits for.
pub(super) fn meanwhile(
    withheld: &Withheld,
    wanted: &[NamedRequirements],
    mut granted: Vec<NamedRequirements>,
) -> Vec<NamedRequirements> {
    if let Withheld::Failed(_) = withheld {
        for has in &mut granted {
            let wanted = wanted.iter().find(|wanted| wanted.name == has.name);
            let (has, wanted) = (
                &mut has.resources.limits,
                wanted.and_then(|wanted| wanted.resources.limits.memory),
            );
            if wanted.is_some() && wanted < has.memory {
                has.memory = wanted;
            }
        }
    }
    granted
}

/// What the kubelet reports: requests as it has set them aside, limits as they are in force; the spec's where it says
/// nothing. A fast path may have changed what is in force.
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
        let in_force = status.and_then(|status| status.resources);
        in_force.is_none_or(|in_force| holds(&in_force, &container.resources))
    })
}

/// Whether every amount of the spec is in force.
fn holds(in_force: &Requirements, spec: &Requirements) -> bool {
    let lists = [(in_force.requests, spec.requests), (in_force.limits, spec.limits)];
    lists.into_iter().all(|(in_force, spec)| {
        Resource::ALL
            .into_iter()
            .all(|resource| spec.get(resource).is_none() || spec.get(resource) == in_force.get(resource))
    })
}
