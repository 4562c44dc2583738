//! The values that every cgroup and stored spec of a running pod should hold. Pure.
//!
//! A pass writes these values, and `explain` shows them.

use super::hierarchy::{hierarchy, in_force};
use super::scope::WriteScope;
use super::shrink::Holds;
use crate::model::{BoundPod, MemoryLimit, NamedRequirements, NodeTraits, PodTree, PodValues, Resource, Target};

/// The targets of a running pod, and the values among them that the agent writes.
#[derive(Debug, Clone)]
pub struct PodTargets {
    pub bound: BoundPod,
    /// The targets of the containers.
    pub containers: Vec<NamedRequirements>,
    /// Whether the agent removes limits that the pod does not declare, rather than leaves them alone.
    pub lift_undeclared: bool,
    /// Whether the kubelet does not know of the targets, and so restarts containers with its own amounts.
    pub kubelet_unasked: bool,
    pub scope: WriteScope,
    /// Limits that the agent keeps for now although lower ones are wanted.
    pub holds: Holds,
}

impl PodTargets {
    /// The values that the pod's files and stored specs should hold, given the present ones of its files.
    pub fn values(&mut self, held: &PodTree, traits: &NodeTraits) -> PodValues {
        let mut containers = self.containers.clone();
        lift_kept(&self.holds, &mut containers);
        let (pod, live) = (self.bound.object(), self.bound.live());
        // The pod's files show which quotas the kubelet enforces.
        let declared = hierarchy(pod, &in_force(pod), traits).created().tree;
        let targets = held.containers.keys().cloned().map(Target::Container);
        for target in targets.chain([Target::Pod]) {
            if let (Some(held), Some(declared)) = (held.get(&target), declared.get(&target)) {
                self.scope.quotas.learn(live.cgroup_id(&target), held, declared);
            }
        }
        let enforced = |target: &Target| self.scope.quotas.enforced(live.cgroup_id(target));
        let mut hierarchy = hierarchy(pod, &containers, traits)
            .keeping(&self.holds)
            .beside(held, enforced);
        if self.kubelet_unasked {
            hierarchy = hierarchy.admitting(pod);
        }
        let mut values = hierarchy.values(self.lift_undeclared);
        self.scope.restrict(&mut values);
        values
    }
}

/// Raises the wanted limits of containers to those that the agent keeps for now. The pod's limit follows from them.
pub fn lift_kept(holds: &Holds, wanted: &mut [NamedRequirements]) {
    for (target, limit) in holds {
        if let (Target::Container(name), MemoryLimit::Bytes(limit)) = (target, limit)
            && let Some(named) = wanted.iter_mut().find(|named| named.name == *name)
        {
            named.resources.lift(Resource::Memory, *limit);
        }
    }
}
