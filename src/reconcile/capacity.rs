//! The node's capacity: the requests of its pods, and whether the node has room for more; and the quotas of the pods'
//! namespaces. Pure, and the only place for this.
//!
//! A recommendation is checked before it comes into force, an operator's override before it is set, and a pass
//! before it patches the spec. Refusals have the numbers. How much memory is free at a moment is another
//! question, which the guard answers.

use std::collections::BTreeMap;

use crate::decide::Refusals;
use crate::guard::{Claim, GuardedPod};
use crate::model::objects::Pod;
use crate::model::{
    AskWhenFull, Bytes, KubeletVersion, MilliCpu, NamedRequirements, PageSize, PodAmounts, Resource, ResourceList,
};
use crate::plan::{Capacity, NoRoom, NodeRequests, QuotaAccount, Room, larger, pod_requests};
use crate::resize::{self, Facts};
use crate::sources::NodeView;

use super::desired::{DesiredState, Recommended};
use super::overrides::{Override, check_refusals};
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
    pub(crate) refusals: Refusals,
    pub(crate) page: PageSize,
    /// Whether a pod has come to request less since this value was made.
    pub(crate) freed: bool,
    quotas: QuotaAccount,
    /// The number of containers, by namespace.
    containers: BTreeMap<String, u64>,
}

impl NodeCapacity {
    pub(crate) fn of<'a>(
        pods: impl Iterator<Item = &'a PodState>,
        view: &NodeView,
        machine: ResourceList,
        kubelet: KubeletVersion,
        patches: bool,
    ) -> Self {
        let object = view.node.as_ref();
        let quotas = QuotaAccount::new(view.namespaces.values().map(|known| &**known), kubelet);
        let mut capacity = Self {
            declared: Capacity::of(object),
            any: Capacity::of_node_or(object, machine),
            requested: NodeRequests::default(),
            kubelet,
            patches,
            ask_when_full: AskWhenFull::default(),
            refusals: Refusals::default(),
            page: PageSize::KIB_4,
            freed: false,
            quotas,
            containers: BTreeMap::new(),
        };
        let mut requested = Vec::new();
        for state in pods.filter(|state| !state.pod.has_ended()) {
            capacity.count_in_quotas(state);
            let namespace = state.pod.metadata.namespace.clone();
            *capacity.containers.entry(namespace).or_default() += state.pod.running_containers().count() as u64;
            requested.push((priority(state), capacity.requests_of(state)));
        }
        capacity.requested = requested.into_iter().collect();
        capacity
    }

    /// Whether the agent patches the pod's spec, and its kubelet writes the values.
    fn is_patched(&self, pod: &Pod) -> bool {
        self.patches && pod.resizes_in_place()
    }

    /// The targets that a pod has got, or may get from a patch under way; none if its object has them.
    fn held(&self, state: &PodState) -> PodAmounts {
        let (pod, resize) = (&state.pod, &state.resize);
        let patching = state.work.running().is_some() || resize.prepared().is_some() || resize.is_ahead();
        match resize.unseen(pod) {
            Some(unseen) if self.is_patched(pod) => unseen.targets.clone(),
            None if self.is_patched(pod) && !patching => PodAmounts::default(),
            _ => state.desired.targets(pod).unwrap_or_default(),
        }
    }

    /// Counts in the quotas what a pod has got, and what its next pass gives it.
    fn count_in_quotas(&mut self, state: &PodState) {
        let pod = &state.pod;
        let targets = match state.work.pending() {
            _ if pod.has_ended() => PodAmounts::default(),
            Some(_) => state.desired.targets(pod).unwrap_or_default(),
            None => self.held(state),
        };
        self.freed |= self.quotas.count(pod, &targets);
    }

    fn check_quotas(&self, state: &PodState, wanted: &DesiredState) -> Result<(), String> {
        let pod = &state.pod;
        let wanted = wanted.targets_or_spec(pod);
        self.quotas.check(pod, &self.held(state), &wanted, self.is_patched(pod))
    }

    /// Lowers how far the guard may grow a pod's limits: to the pod's own limit as it was granted, and to what the quotas of its
    /// namespace leave. What they leave is divided equally among the containers of the namespace on this node, so that several may grow
    /// at the same moment.
    pub(crate) fn bound_growth(&self, state: &PodState, guarded: &mut GuardedPod) {
        let (pod, namespace) = (&state.pod, &state.pod.metadata.namespace);
        if self.is_patched(pod)
            && let Some(wanted) = &mut guarded.growable.targets.pod
            && let Some(granted) = state.resize.granted(pod).pod
        {
            let limits = [wanted.limits.memory, granted.limits.memory];
            wanted.limits.memory = limits.into_iter().flatten().min();
        }
        let least = self.quotas.limits_left(pod, &self.held(state), self.is_patched(pod));
        let containers = self.containers.get(namespace).copied().unwrap_or(1).max(1);
        for terms in &mut guarded.containers {
            let highest = |resource| {
                let limit = guarded.growable.targets.limit(&terms.container, resource)?;
                Some(limit.saturating_add(least.get(resource)? / containers))
            };
            let (memory, cpu) = (highest(Resource::Memory), highest(Resource::Cpu));
            let lower = |highest: &Bytes| terms.memory.is_some_and(|most| *highest < most);
            if let Some(highest) = memory.map(Bytes::new).filter(lower) {
                let why = format!("its namespace's quotas leave it no more than {highest}, as far as they are known");
                (terms.memory, terms.not_higher) = (Some(highest), Some(why));
            }
            if let (Some(terms), Some(highest)) = (&mut terms.cpu, cpu) {
                terms.ceiling = terms.ceiling.min(MilliCpu::new(highest));
            }
        }
    }

    /// The requests of a pod. A pod that has ended requests nothing.
    pub(crate) fn requests_of(&self, state: &PodState) -> ResourceList {
        let pod = &state.pod;
        if pod.has_ended() {
            return ResourceList::default();
        }
        if !self.is_patched(pod) {
            return pod_requests(pod, &state.desired.targets(pod).unwrap_or_default(), self.kubelet);
        }
        // A pass that is refused, or that only checks, requests nothing.
        let accepted = state.resize.unseen(pod).map(|unseen| &unseen.targets);
        let prepared = state.resize.prepared().map(|prepared| &prepared.targets);
        // The spec gets these once the API server is back.
        let ahead = Some(&state.desired).filter(|_| state.resize.is_ahead());
        let ahead = ahead.and_then(|desired| desired.targets_by_hand(pod, &state.resize));
        let asked = accepted.into_iter().chain(prepared).chain(&ahead);
        asked.fold(resize::reserved(pod, self.kubelet), |most, targets| {
            larger(most, pod_requests(pod, targets, self.kubelet))
        })
    }

    /// The memory that a pod may claim at any moment, for the guard's account of the node: what was granted. A recommendation, or a
    /// resize that waits for room, would otherwise leave nothing to the pods of others.
    pub(crate) fn claim(&self, state: &PodState) -> Option<Claim> {
        let (live, pod) = (state.live.as_ref()?, &state.pod);
        let granted = if self.is_patched(pod) {
            state.resize.granted(pod)
        } else {
            state.desired.targets_or_spec(pod)
        };
        let request = pod_requests(pod, &granted, self.kubelet).memory.unwrap_or_default();
        let path = live.path.clone();
        (!request.is_zero()).then_some(Claim { path, request })
    }

    /// Refuses a recommendation with which the pod would get more than a quota of its namespace allows, or request more than the
    /// node has left. Where the kubelet resizes in place, the pass checks the latter before the patch.
    ///
    /// Errors: a sentence with the numbers.
    pub(crate) fn admit(&self, state: &PodState, recommended: &Recommended) -> Result<(), String> {
        let desired = state.desired.clone().with_recommended(Some(recommended.clone()));
        self.check_quotas(state, &desired)?;
        if self.is_patched(&state.pod) {
            return Ok(());
        }
        self.check_room(state, &desired).map_err(|full| full.to_string())
    }

    fn check_room(&self, state: &PodState, desired: &DesiredState) -> Result<(), NoRoom> {
        let (pod, Some(capacity)) = (&state.pod, self.declared) else {
            return Ok(());
        };
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
        self.count_in_quotas(state);
    }

    /// The node's facts about a pod whose spec is to be patched with `targets`, which count as requested from now on if there is room.
    pub(crate) fn reserve(&mut self, state: &PodState, targets: &PodAmounts) -> Facts {
        let own = self.requests_of(state);
        let others = self.requested.others(own);
        let room = self.declared.map(|capacity| Room { capacity, others });
        if room.is_none_or(|room| resize::check_room(&room, &state.pod, targets, self.kubelet).is_ok()) {
            let after = pod_requests(&state.pod, targets, self.kubelet);
            self.requested.change(priority(state), own, larger(own, after));
        }
        Facts {
            room,
            yields: self.requested.yields(priority(state), own, self.ask_when_full),
            kubelet: self.kubelet,
            ..Facts::default()
        }
    }

    /// The desired state with an override, unless the pod cannot run with it, the node has no room, or a quota does not allow it.
    ///
    /// Errors: a sentence with the numbers.
    pub(crate) fn admit_override(&self, state: &PodState, values: Override) -> Result<DesiredState, String> {
        let pod = &state.pod;
        check_refusals(pod, &values.values, &self.refusals)?;
        let before = state.desired.targets_or_spec(pod);
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
        self.check_quotas(state, &wanted)?;
        wanted.remember_origin(pod, &state.resize);
        Ok(wanted)
    }
}

fn priority(state: &PodState) -> i64 {
    state.pod.spec.priority.unwrap_or_default()
}

/// Refuses requests that do not fit beside those of other pods, and limits above the node's capacity.
fn check(room: Room, takes: [ResourceList; 2], limits: [&PodAmounts; 2]) -> Result<(), String> {
    let [before, after] = takes;
    room.check(before, after).map_err(|full| {
        let (resource, all) = (full.resource, full.others.saturating_add(full.after));
        let [all, has] = resource.quantities([all, full.has]);
        let [after, before] = resource.quantities([full.after, full.before]);
        let plural = if room.others.pods == 1 { "" } else { "s" };
        format!(
            "the node cannot hold it: {resource} requests would be {all} of {has} ({}): this pod {after} instead of {before}, the {} \
             other pod{plural} {}; at most {} is left for this pod",
            room.capacity.from,
            room.others.pods,
            resource.quantity(full.others),
            resource.quantity(readable(resource, full.left()))
        )
    })?;
    let [before, after] = limits;
    let has = Resource::ALL.map(|resource| Some((resource, room.capacity.amounts.get(resource)?)));
    for (resource, has) in has.into_iter().flatten() {
        for NamedRequirements { name, resources } in &after.containers {
            let wanted = resources.limits.amount(resource);
            if wanted > has && wanted > before.limit(name, resource).unwrap_or(0) {
                let [wanted, has] = resource.quantities([wanted, readable(resource, has)]);
                return Err(format!(
                    "the node cannot hold it: container {name} could use {wanted} of {resource}, and there is {has} ({})",
                    room.capacity.from
                ));
            }
        }
    }
    Ok(())
}

/// Whole mebibytes: the exact amount of a machine is hard to read.
fn readable(resource: Resource, amount: u64) -> u64 {
    match resource {
        Resource::Memory if amount > 1 << 20 => amount >> 20 << 20,
        Resource::Memory | Resource::Cpu => amount,
    }
}

#[cfg(test)]
mod quota_tests;
#[cfg(test)]
mod tests;
