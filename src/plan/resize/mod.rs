//! A resize through the API server: the patch, its phase, and what the cgroups may hold until the kubelet is done. Pure.
//!
//! Input: a pod as the API server has it, what its containers should have, and the node's room. Output: what a pass does
//! ([`ResizeFacts::decide`]), the steps of the patch ([`changes`]), the [`Phase`] of a resize, and what the cgroups may hold in
//! that phase ([`Phase::grants`]). They get the patched amounts once the kubelet has allocated them, or once the node is known
//! to have room. Until then they get what the kubelet has [`granted`] so far.
//!
//! If the kubelet resizes in place (KEP-1287), the pod spec is the truth. The kubelet first allocates the spec's amounts, then
//! writes them. Conditions say where a resize stopped.

mod decision;
mod edits;
mod phase;
mod support;
#[cfg(test)]
mod tests;

pub use decision::{AcceptedResize, Grant, ResizeDecision, ResizeFacts, ResizePatch, known_before};
pub use edits::{edits, taken_back, undone};
pub use phase::{Phase, check_room, granted, reserved};
use phase::{grows, lowers_memory};
pub use support::{NodeSupport, Support, Unreported};

use crate::model::objects::{Container, Pod, annotation};
use crate::model::{Change, NamedRequirements, Requirements, Resource, Step, Target};

use super::hierarchy::with_requests;

/// Whether the pod's status shows that its kubelet resizes in place: the status then has the containers' resources, as
/// `ValidatePodResize` (kubernetes `pkg/apis/core/validation`) demands. The API server resizes no mirror pod.
pub fn supports_in_place_resize(pod: &Pod) -> bool {
    let mut statuses = pod.status.container_statuses.iter();
    !pod.metadata.annotations.contains_key(annotation::MIRROR) && statuses.any(|status| status.resources.is_some())
}

/// The steps of a patch after which the pod's spec has the wanted amounts: one for each container that differs.
///
/// # Errors
/// A sentence, if the API server would refuse the patch because it removes an amount, or the kubelet would restart a container.
pub fn changes(pod: &Pod, wanted: &[NamedRequirements]) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for NamedRequirements { name, resources } in wanted {
        // The API server would fill in the requests.
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

/// Describes how the accepted spec differs from the patch, if it does: plugins and webhooks may change what they admit.
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

/// Whether a patch can give a container of a running pod these amounts.
fn check(container: &Container, to: &Requirements) -> Result<(), String> {
    let Container { name, resources, .. } = container;
    let fields = resources.fields().into_iter().zip(to.fields());
    for ((field, old), (_, new)) in fields.filter(|((_, old), (_, new))| old != new) {
        let old = old.unwrap_or_else(|| "unset".to_owned());
        let Some(new) = new else {
            return Err(format!(
                "container {name}: its {field} of {old} cannot be taken away from a running pod, only changed: the API server \
                 refuses that"
            ));
        };
        let of_field = |resource: &&Resource| field.ends_with(resource.name());
        let resource = Resource::ALL.iter().find(of_field).copied();
        if let Some(resource) = resource.filter(|resource| container.restarts_for(*resource)) {
            let changes =
                |other: &&Resource| resources.of(**other) != to.of(**other) && !container.restarts_for(**other);
            let alone = Resource::ALL.iter().find(changes).map_or_else(String::new, |other| {
                format!("; its {other} is not changed either: ask for {other} alone to have that now")
            });
            return Err(format!(
                "container {name}: its {field} stays {old} instead of {new}: its resizePolicy for {resource} is RestartContainer, \
                 so the kubelet would restart it, and vscaled never restarts; set NotRequired in the workload's pod template, or \
                 change the amount there and let new pods have it{alone}"
            ));
        }
    }
    Ok(())
}

/// Whether every amount of `whole` is in one of the `parts`. A container that no part names is ignored.
pub fn is_made_of(parts: &[&Vec<NamedRequirements>], whole: &[NamedRequirements]) -> bool {
    whole.iter().all(|named| {
        let of = |part: &&Vec<NamedRequirements>| NamedRequirements::find(part, &named.name).map(amounts);
        let of: Vec<[u64; 4]> = parts.iter().filter_map(of).collect();
        let mut all = amounts(&named.resources).into_iter().enumerate();
        of.is_empty() || all.all(|(number, amount)| of.iter().any(|part| part[number] == amount))
    })
}

/// The requests of [`Resource::ALL`], then the limits, as numbers. Unset is zero, and a limit without a request is also the
/// request.
pub fn amounts(resources: &Requirements) -> [u64; 4] {
    let resources = with_requests(*resources);
    let [[cpu, cpu_limit], [memory, memory_limit]] = Resource::ALL.map(|resource| resources.of(resource));
    [cpu, memory, cpu_limit, memory_limit].map(Option::unwrap_or_default)
}

/// The resources of which these give a container different amounts.
pub fn differing(one: &[NamedRequirements], other: &[NamedRequirements]) -> Vec<Resource> {
    let amounts = |all: &[NamedRequirements], name: &str, resource| {
        NamedRequirements::find(all, name)
            .map(|named| with_requests(*named).of(resource).map(Option::unwrap_or_default))
    };
    let differs = |resource: &Resource| {
        let mut names = one.iter().map(|named| &named.name);
        names.any(|name| amounts(one, name, *resource) != amounts(other, name, *resource))
    };
    Resource::ALL.into_iter().filter(differs).collect()
}

/// Whether both give every container that both name the same amounts. Unset equals zero, and a limit without a request equals
/// one with an equal request.
pub fn same(one: &[NamedRequirements], other: &[NamedRequirements]) -> bool {
    one.iter().all(|named| {
        let other = NamedRequirements::find(other, &named.name);
        other.is_none_or(|other| amounts(other) == amounts(&named.resources))
    })
}
