//! A resize through the API server: what to ask for, how far it has got, and what the kernel may hold meanwhile. Pure.
//!
//! In come a pod as the API server has it, what its containers should have, and what is known about the node's room; out
//! come what a pass does about it ([`ResizeFacts::decide`]), changes to ask for ([`changes`]), the [`Phase`] a resize is in, and from it what the cgroups may be given
//! ([`Phase::grants`]): what was asked for only once nothing but the kubelet's turn to write is missing, else what the
//! kubelet has [`granted`] so far.
//!
//! Where the kubelet resizes in place (KEP-1287), the pod spec is the truth. A resize goes from the spec to what the
//! kubelet has allocated, to what it has written; conditions say where it stopped.

mod decision;
mod phase;
mod reserved;
mod support;
#[cfg(test)]
mod tests;

pub use decision::{AcceptedResize, Grant, ResizeDecision, ResizeFacts, ResizePatch, Unreported};
use phase::meanwhile;
pub use phase::{Phase, granted};
use reserved::grows;
pub use reserved::{check_room, reserved};
pub use support::{NodeSupport, Support};

use crate::model::objects::{Container, MIRROR_ANNOTATION, Pod};
use crate::model::{Change, NamedRequirements, Requirements, Resource, Step, Target};

use super::effective::with_requests;

/// Whether the pod's kubelet resizes in place, as far as the pod shows it: the kubelet then says of its containers what
/// they have (`ValidatePodResize`, kubernetes `pkg/apis/core/validation`, asks for the same). Nothing that has the annotation
/// of a mirror pod can be resized there.
pub fn supports_in_place_resize(pod: &Pod) -> bool {
    let says = |resources: &Option<_>| resources.is_some();
    let mut statuses = pod.status.container_statuses.iter();
    !pod.metadata.annotations.contains_key(MIRROR_ANNOTATION) && statuses.any(|status| says(&status.resources))
}

/// Why the API server cannot be asked for something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unaskable {
    /// An amount would have to go.
    #[error(
        "container {container}: its {field} of {amount} cannot be taken away from a running pod, only changed: the API server \
         refuses that"
    )]
    Removed {
        /// Whose.
        container: String,
        /// Such as `limits.cpu`.
        field: &'static str,
        /// What it is.
        amount: String,
    },
    /// The kubelet would kill the container and start it anew.
    #[error(
        "container {container}: its {field} stays {from} instead of {to}: its resizePolicy for {resource} is RestartContainer, \
         so the kubelet would restart it, and vscaled never restarts; set NotRequired in the workload's pod template, or \
         change the amount there and let new pods have it{}", alone(*.other)
    )]
    Restarts {
        /// Whose.
        container: String,
        /// Such as `limits.cpu`.
        field: &'static str,
        /// Which resource's policy it is.
        resource: Resource,
        /// What it is.
        from: String,
        /// What it was to be.
        to: String,
        /// A resource of the same container that changes as well and would restart nothing.
        other: Option<Resource>,
    },
}

/// The way to have the rest of a refused request.
fn alone(other: Option<Resource>) -> String {
    other.map_or_else(String::new, |other| {
        format!("; its {other} is not changed either: ask for {other} alone to have that now")
    })
}

/// What to ask the API server for, so that the pod's spec has what is wanted: a step for each container that differs.
///
/// # Errors
/// [`Unaskable`] when an amount would have to go, or its change would restart a container.
pub fn changes(pod: &Pod, wanted: &[NamedRequirements]) -> Result<Vec<Step>, Unaskable> {
    let mut steps = Vec::new();
    for NamedRequirements { name, resources } in wanted {
        // The API server would fill them in.
        let to = with_requests(*resources);
        let (target, from) = match pod.container(name) {
            Some(container) => {
                check(container, &to)?;
                (Target::Container(name.clone()), container.resources)
            }
            None if name.is_empty() => (Target::Pod, pod.spec.resources.unwrap_or_default()),
            None => continue,
        };
        if from != to {
            steps.push(Step {
                target,
                change: Change::Resize { from, to },
            });
        }
    }
    Ok(steps)
}

/// What the API server made of changes, in words, where it accepted something else: plugins and webhooks may change what they
/// admit.
pub fn altered(accepted: &Pod, asked: &[Step]) -> Option<String> {
    let altered = asked.iter().filter_map(|step| {
        let Change::Resize { to, .. } = &step.change else {
            return None;
        };
        let has = match &step.target {
            Target::Container(name) => accepted.container(name)?.resources,
            Target::Pod => accepted.spec.resources?,
        };
        let change = Change::Resize { from: *to, to: has };
        (has != *to).then(|| format!("{}: {change}", step.target))
    });
    let altered: Vec<String> = altered.collect();
    (!altered.is_empty()).then(|| altered.join("; "))
}

/// Whether a container of a running pod can be given these amounts.
fn check(container: &Container, to: &Requirements) -> Result<(), Unaskable> {
    let changes = |resource| {
        let amounts = |has: &Requirements| (has.requests.get(resource), has.limits.get(resource));
        amounts(&container.resources) != amounts(to)
    };
    let fields = container.resources.fields().into_iter().zip(to.fields());
    for ((field, old), (_, new)) in fields.filter(|((_, old), (_, new))| old != new) {
        let name = || container.name.clone();
        let Some(new) = new else {
            return Err(Unaskable::Removed {
                container: name(),
                field,
                amount: old.unwrap_or_default(),
            });
        };
        let restarting = Resource::ALL
            .into_iter()
            .find(|resource| field.ends_with(&resource.to_string()) && container.restarts_for(*resource));
        if let Some(resource) = restarting {
            return Err(Unaskable::Restarts {
                container: name(),
                field,
                resource,
                from: old.unwrap_or_else(|| "unset".to_owned()),
                to: new,
                other: Resource::ALL
                    .into_iter()
                    .find(|other| changes(*other) && !container.restarts_for(*other)),
            });
        }
    }
    Ok(())
}

/// The amounts of `wanted` in place of the spec's.
fn overlaid(pod: &Pod, wanted: &[NamedRequirements]) -> Vec<NamedRequirements> {
    let mut all = pod.requirements();
    for named in &mut all {
        if let Some(other) = wanted.iter().find(|other| other.name == named.name) {
            named.resources = other.resources;
        }
    }
    all
}

/// Whether every amount is that of one of the `parts`; a container that none of them names says nothing.
pub fn is_made_of(parts: &[&Vec<NamedRequirements>], whole: &[NamedRequirements]) -> bool {
    whole.iter().all(|named| {
        let of = |part: &&Vec<NamedRequirements>| part.iter().find(|other| other.name == named.name).map(amounts);
        let of: Vec<[u64; 4]> = parts.iter().filter_map(of).collect();
        let mut all = amounts(named).into_iter().enumerate();
        of.is_empty() || all.all(|(number, amount)| of.iter().any(|part| part[number] == amount))
    })
}

/// Requests and limits: unset and zero are the same here, and so are a limit without a request and one with an equal one.
fn amounts(named: &NamedRequirements) -> [u64; 4] {
    let NamedRequirements { resources, .. } = named;
    let Requirements { requests, limits } = with_requests(*resources);
    let [cpu, memory] = [Resource::Cpu, Resource::Memory];
    [
        requests.amount(cpu),
        requests.amount(memory),
        limits.amount(cpu),
        limits.amount(memory),
    ]
}

/// Whether both give every container that both name the same amounts; unset and zero are the same here, and so are a limit without a request
/// and one with an equal request.
pub fn same(one: &[NamedRequirements], other: &[NamedRequirements]) -> bool {
    one.iter().all(|named| {
        let same = |other: &&NamedRequirements| other.name == named.name;
        other
            .iter()
            .find(same)
            .is_none_or(|other| amounts(other) == amounts(named))
    })
}
