//! The node's capacity: the requests of its pods, and whether the node has room for more. Pure, and
//! the only place for this.
//!
//! A recommendation is checked before it comes into force, an operator's override before it is set, and a pass
//! before it patches the spec. Refusals have the numbers. How much memory is free at a moment is another
//! question, which the guard answers.

use crate::decide::StaticManagers;
use crate::model::objects::{Node as NodeObject, Pod};
use crate::model::{AskWhenFull, KubeletVersion, NamedRequirements, PageSize, Resource, ResourceList};
use crate::plan::{Capacity, NoRoom, NodeRequests, Room, larger, pod_requests, resize};

use super::desired::{Recommended, limit_in};
use super::overrides::{Override, check_assigned};
use super::pod::PodState;

/// The amounts of the node, and the requests of its pods.
#[derive(Debug, Clone)]
pub(crate) struct NodeCapacity {
    /// The capacity in the Node object. Without one, only operators are refused anything.
    declared: Option<Capacity>,
    /// The capacity in the Node object, or else of the machine.
    any: Capacity,
    requested: NodeRequests,
    pub(crate) kubelet: KubeletVersion,
    /// Whether the agent patches pods whose kubelet resizes in place.
    patches: bool,
    pub(crate) ask_when_full: AskWhenFull,
    /// The resources that the kubelet assigns to pods for their lifetime.
    pub(crate) managers: StaticManagers,
    pub(crate) page: PageSize,
    /// Whether a pod has come to request less since this value was made.
    pub(crate) freed: bool,
}

impl NodeCapacity {
    pub(crate) fn of<'a>(
        pods: impl Iterator<Item = &'a PodState>,
        object: Option<&NodeObject>,
        machine: ResourceList,
        kubelet: KubeletVersion,
        patches: bool,
    ) -> Self {
        let mut capacity = Self {
            declared: Capacity::of(object),
            any: Capacity::of_node_or(object, machine),
            requested: NodeRequests::default(),
            kubelet,
            patches,
            ask_when_full: AskWhenFull::default(),
            managers: StaticManagers::default(),
            page: PageSize::KIB_4,
            freed: false,
        };
        capacity.requested = pods
            .filter(|state| !has_ended(&state.pod))
            .map(|state| (priority(state), capacity.requests_of(state)))
            .collect();
        capacity
    }

    /// The requests of a pod. A pod that has ended requests nothing.
    pub(crate) fn requests_of(&self, state: &PodState) -> ResourceList {
        let pod = &state.pod;
        if has_ended(pod) {
            return ResourceList::default();
        }
        let desired = || pod_requests(pod, &state.desired.targets(pod).unwrap_or_default(), self.kubelet);
        if !(self.patches && resize::supports_in_place_resize(pod)) {
            return desired();
        }
        let reserved = resize::reserved(pod, self.kubelet);
        match (state.resize.unseen(pod), state.work.running) {
            (Some(unseen), _) => larger(reserved, pod_requests(pod, &unseen.targets, self.kubelet)),
            (None, Some(_)) => larger(reserved, desired()),
            (None, None) => reserved,
        }
    }

    /// Refuses a recommendation with which the pod would request more than the node has left. Where the kubelet resizes
    /// in place, the pass checks this before the patch, and the kubelet after it.
    ///
    /// Errors: [`NoRoom`] with the numbers.
    pub(crate) fn admit(&self, state: &PodState, recommended: &Recommended) -> Result<(), NoRoom> {
        let (pod, Some(capacity)) = (&state.pod, self.declared) else {
            return Ok(());
        };
        if self.patches && resize::supports_in_place_resize(pod) {
            return Ok(());
        }
        let mut desired = state.desired.clone();
        desired.recommended = Some(recommended.clone());
        let before = self.requests_of(state);
        let after = pod_requests(pod, &desired.targets(pod).unwrap_or_default(), self.kubelet);
        let others = self.requested.others(before);
        Room { capacity, others }.check(before, after)
    }

    /// Accounts for the new state of a pod that requested `before`.
    pub(crate) fn update(&mut self, before: ResourceList, state: &PodState) {
        let after = self.requests_of(state);
        let is_freed = |resource: &Resource| after.amount(*resource) < before.amount(*resource);
        self.freed |= Resource::ALL.iter().any(is_freed);
        self.requested.change(priority(state), before, after);
    }

    /// The room for a pod whose spec is to be patched with `targets`, which count as requested from now on; and the
    /// part of other pods' requests that may be freed for it: the kubelet is asked although there is no room.
    pub(crate) fn reserve(&mut self, state: &PodState, targets: &[NamedRequirements]) -> (Option<Room>, ResourceList) {
        let own = self.requests_of(state);
        let others = self.requested.others(own);
        let room = self.declared.map(|capacity| Room { capacity, others });
        if room.is_none_or(|room| resize::check_room(&room, &state.pod, targets, self.kubelet).is_ok()) {
            let after = pod_requests(&state.pod, targets, self.kubelet);
            self.requested.change(priority(state), own, larger(own, after));
        }
        (room, self.requested.yields(priority(state), own, self.ask_when_full))
    }

    /// Sets an override, unless the pod cannot run with it or the node has no room. Nothing changes then.
    ///
    /// Errors: a sentence with the numbers.
    pub(crate) fn set_override(&self, state: &mut PodState, values: Override) -> Result<(), String> {
        let pod = &state.pod;
        check_assigned(pod, &values.values, self.managers, self.kubelet)?;
        let before = state.desired.targets(pod).unwrap_or_else(|| pod.requirements());
        let mut wanted = state.desired.clone();
        wanted.set_override(pod, values, self.page)?;
        let after = wanted.targets(pod).unwrap_or_default();
        let requests = self.requests_of(state);
        let room = Room {
            capacity: self.any,
            others: self.requested.others(requests),
        };
        let requests = [requests, pod_requests(pod, &after, self.kubelet)];
        check(room, requests, [&before, &after])?;
        state.desired = wanted;
        Ok(())
    }
}

fn priority(state: &PodState) -> i64 {
    state.pod.spec.priority.unwrap_or_default()
}

/// Whether no container of the pod will run again.
fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

/// Refuses requests that do not fit beside those of other pods, and limits above the node's capacity.
fn check(room: Room, takes: [ResourceList; 2], containers: [&[NamedRequirements]; 2]) -> Result<(), String> {
    let [before, after] = takes;
    room.check(before, after).map_err(|full| {
        let quantity = |amount| full.resource.quantity(amount);
        format!(
            "the node cannot hold it: {} requests would be {} of {} ({}): this pod {} instead of {}, the {} other pods {}; at \
             most {} is left for this pod",
            full.resource,
            quantity(full.others.saturating_add(full.after)),
            quantity(full.has),
            room.capacity.from,
            quantity(full.after),
            quantity(full.before),
            room.others.pods,
            quantity(full.others),
            readable(full.resource, full.left())
        )
    })?;
    let [before, after] = containers;
    let has = Resource::ALL.map(|resource| Some((resource, room.capacity.amounts.get(resource)?)));
    for (resource, has) in has.into_iter().flatten() {
        for NamedRequirements { name, resources } in after {
            let wanted = resources.limits.amount(resource);
            if wanted > has && wanted > limit_in(before, name, resource).unwrap_or(0) {
                return Err(format!(
                    "the node cannot hold it: container {name} could use {} of {resource}, and there is {} ({})",
                    resource.quantity(wanted),
                    readable(resource, has),
                    room.capacity.from
                ));
            }
        }
    }
    Ok(())
}

/// Whole mebibytes: the exact amount of a machine is hard to read.
fn readable(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Memory if amount > 1 << 20 => resource.quantity(amount >> 20 << 20),
        Resource::Memory | Resource::Cpu => resource.quantity(amount),
    }
}

#[cfg(test)]
mod tests;
