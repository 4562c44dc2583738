//! The node's capacity: the requests of its pods, and whether the node has room for more; and the quotas of the pods'
//! namespaces. Pure, and the only place for this.
//!
//! A recommendation is checked before it comes into force, an operator's override before it is set, and a pass
//! before it patches the spec. Refusals have the numbers. The API server holds quotas where the agent patches a spec; here they
//! are held where it does not. How much memory is free at a moment is another
//! question, which the guard answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::decide::Refusals;
use crate::guard::GuardedPod;
use crate::model::objects::{Node as NodeObject, Pod, QuotaAmounts, ResourceQuota, Shared};
use crate::model::{AskWhenFull, Bytes, KubeletVersion, MilliCpu, NamedRequirements, PageSize, Resource, ResourceList};
use crate::plan::{
    Capacity, NoRoom, NodeRequests, Room, beyond_spec, check_quota, larger, limits_left, pod_requests, resize, sum,
};

use super::desired::{DesiredState, Recommended, limit_in};
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
    /// The quotas of the pods' namespaces, and the namespaces whose quotas are not known yet.
    quotas: (Vec<Shared<ResourceQuota>>, BTreeSet<String>),
    /// The pods that get more than their spec, with the amounts beyond it, by namespace and name.
    beyond_specs: BTreeMap<String, (Arc<Pod>, QuotaAmounts)>,
    /// The number of containers, by namespace.
    containers: BTreeMap<String, u64>,
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
            refusals: Refusals::default(),
            page: PageSize::KIB_4,
            freed: false,
            quotas: Default::default(),
            beyond_specs: BTreeMap::new(),
            containers: BTreeMap::new(),
        };
        let mut requested = Vec::new();
        for state in pods.filter(|state| !has_ended(&state.pod)) {
            capacity.note_beyond_spec(state);
            let namespace = state.pod.metadata.namespace.clone();
            *capacity.containers.entry(namespace).or_default() += state.pod.running_containers().count() as u64;
            requested.push((priority(state), capacity.requests_of(state)));
        }
        capacity.requested = requested.into_iter().collect();
        capacity
    }

    /// The same with these quotas, and with the namespaces whose quotas are not known yet.
    #[must_use]
    pub(crate) fn within(mut self, quotas: &[Shared<ResourceQuota>], awaited: &BTreeSet<String>) -> Self {
        self.quotas = (quotas.to_vec(), awaited.clone());
        self
    }

    /// The amounts that a pod gets beyond its spec without the API server's consent.
    fn beyond_spec(&self, pod: &Pod, desired: &DesiredState) -> QuotaAmounts {
        let is_direct = !(self.patches && resize::supports_in_place_resize(pod));
        let targets = desired.targets(pod).filter(|_| is_direct && !has_ended(pod));
        targets.map(|targets| beyond_spec(pod, &targets)).unwrap_or_default()
    }

    fn note_beyond_spec(&mut self, state: &PodState) {
        let beyond = self.beyond_spec(&state.pod, &state.desired);
        let key = state.pod.full_name();
        if [beyond.requests, beyond.limits]
            .iter()
            .any(|list| !list.nonzero().is_empty())
        {
            self.beyond_specs.insert(key, (Arc::clone(&state.pod), beyond));
        } else {
            self.beyond_specs.remove(&key);
        }
    }

    /// The quotas that count a pod, each with what the other pods of this node get beyond their specs.
    fn quotas_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = (&'a ResourceQuota, QuotaAmounts)> {
        let namespace = &pod.metadata.namespace;
        let counting = self.quotas.0.iter().map(|quota| &**quota);
        let counting = counting.filter(move |quota| quota.metadata.namespace == *namespace && quota.counts(pod));
        let others = self.beyond_specs.values();
        let others = move |quota: &ResourceQuota| {
            let counted = others.clone().filter(|(other, _)| {
                let is_other = other.metadata.name != pod.metadata.name;
                is_other && other.metadata.namespace == *namespace && quota.counts(other)
            });
            let (requests, limits): (Vec<_>, Vec<_>) = counted.map(|(_, one)| (one.requests, one.limits)).unzip();
            QuotaAmounts {
                requests: sum(requests.iter()),
                limits: sum(limits.iter()),
            }
        };
        counting.map(move |quota| (quota, others(quota)))
    }

    /// Refuses amounts beyond the pod's spec that a quota of its namespace does not allow.
    ///
    /// Errors: a sentence with the quota and the numbers.
    fn check_quotas(&self, state: &PodState, wanted: &DesiredState) -> Result<(), String> {
        let pod = &state.pod;
        let (before, after) = (self.beyond_spec(pod, &state.desired), self.beyond_spec(pod, wanted));
        let grows = |of: fn(&QuotaAmounts) -> ResourceList| {
            let mut all = Resource::ALL.into_iter();
            all.any(|resource| of(&after).amount(resource) > of(&before).amount(resource))
        };
        if !grows(|amounts| amounts.requests) && !grows(|amounts| amounts.limits) {
            return Ok(());
        }
        let namespace = &pod.metadata.namespace;
        if self.quotas.1.contains(namespace) {
            return Err(format!("the quotas of namespace {namespace} are not known yet"));
        }
        let mut quotas = self.quotas_of(pod);
        quotas
            .try_for_each(|(quota, others)| check_quota(quota, before, after, others).map_err(|over| over.to_string()))
    }

    /// Lowers how far the guard may grow a pod's limits to what the quotas of its namespace leave. What they leave is divided
    /// equally among the containers of the namespace on this node, so that several may grow at the same moment.
    pub(crate) fn bound_growth(&self, state: &PodState, guarded: &mut GuardedPod) {
        let (pod, namespace) = (&state.pod, &state.pod.metadata.namespace);
        if self.patches && resize::supports_in_place_resize(pod) {
            return;
        }
        let own = self.beyond_spec(pod, &state.desired).limits;
        let left = self.quotas_of(pod).map(|(quota, others)| {
            let limits = sum([own, others.limits].iter());
            let requests = ResourceList::default();
            limits_left(quota, QuotaAmounts { requests, limits })
        });
        let nothing = self
            .quotas
            .1
            .contains(namespace)
            .then(|| ResourceList::from_fn(|_| Some(0)));
        let least = left.chain(nothing).reduce(|one, other| one.combine(other, u64::min));
        let Some(least) = least else { return };
        let containers = self.containers.get(namespace).copied().unwrap_or(1).max(1);
        for terms in &mut guarded.containers {
            let highest = |resource| {
                let limit = limit_in(&guarded.growable.targets, &terms.container, resource)?;
                Some(limit.saturating_add(least.get(resource)? / containers))
            };
            let (memory, cpu) = (highest(Resource::Memory), highest(Resource::Cpu));
            terms.memory = terms
                .memory
                .map(|most| memory.map_or(most, |highest| most.min(Bytes::new(highest))));
            if let (Some(terms), Some(highest)) = (&mut terms.cpu, cpu) {
                terms.ceiling = terms.ceiling.min(MilliCpu::new(highest));
            }
        }
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

    /// Refuses a recommendation with which the pod would request more than the node has left, or get more than a quota of its
    /// namespace allows. Where the kubelet resizes in place, the pass checks the former before the patch, and the kubelet and
    /// the API server check both.
    ///
    /// Errors: a sentence with the numbers.
    pub(crate) fn admit(&self, state: &PodState, recommended: &Recommended) -> Result<(), String> {
        if self.patches && resize::supports_in_place_resize(&state.pod) {
            return Ok(());
        }
        let mut desired = state.desired.clone();
        desired.recommended = Some(recommended.clone());
        self.check_quotas(state, &desired)?;
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
        self.note_beyond_spec(state);
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

    /// Sets an override, unless the pod cannot run with it, the node has no room, or a quota does not allow it. Nothing changes
    /// then.
    ///
    /// Errors: a sentence with the numbers.
    pub(crate) fn set_override(&self, state: &mut PodState, values: Override) -> Result<(), String> {
        let pod = &state.pod;
        check_refusals(pod, &values.values, &self.refusals)?;
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
        self.check_quotas(state, &wanted)?;
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
mod quota_tests;
#[cfg(test)]
mod tests;
