//! Checks whether a node has room for the requests of one of its pods. Pure.
//!
//! A recommendation, an operator's request, and a pass before it patches all use this check. Input: what the node has
//! ([`Capacity`]) and what each of its pods requests ([`NodeRequests`]). Output: the [`Room`] that the other pods leave for one of
//! them, and from that a refusal with the numbers ([`NoRoom`]), or none.
//!
//! The sum of all requests must stay within what the node gives to pods. Only an amount that grows is checked: the pod has the
//! rest already, also on a node that is too full. If the kubelet resizes in place, a pod takes what the kubelet has allocated
//! (`resize::reserved`).
//!
//! Requests are promises. Pods use more than they request, and less. Before the guard grows a limit it checks how much
//! memory is free at that moment (`guard::budgets`).

use std::collections::BTreeMap;

use crate::model::objects::Node;
use crate::model::{AskWhenFull, Resource, ResourceList};

/// The amounts that a node has for its pods, and their source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// An unset amount is unknown, and bounds nothing.
    pub amounts: ResourceList,
    /// [`Self::ALLOCATABLE`] or [`Self::MACHINE`].
    pub from: &'static str,
}

impl Capacity {
    /// From the Node object: the amounts without the reservations for the kubelet and the system.
    pub const ALLOCATABLE: &str = "allocatable";
    /// From the kernel: processors online, `MemTotal`.
    pub const MACHINE: &str = "all this machine has";

    /// The Node object's amounts. None without such an object.
    pub fn of(node: Option<&Node>) -> Option<Self> {
        node.map(|node| Self {
            amounts: node.status.allocatable,
            from: Capacity::ALLOCATABLE,
        })
    }

    /// The Node object's amounts, or else those of the machine.
    pub fn of_node_or(node: Option<&Node>, machine: ResourceList) -> Self {
        let (amounts, from) = (machine, Capacity::MACHINE);
        let declared = Self::of(node).filter(|declared| !declared.amounts.is_empty());
        declared.unwrap_or(Self { amounts, from })
    }
}

/// The sum of the requests of all pods of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeRequests {
    /// By the pods' priority.
    taken: BTreeMap<i64, ResourceList>,
    pods: usize,
}

impl NodeRequests {
    /// The requests of the other pods, for a pod that takes `own`.
    pub fn others(&self, own: ResourceList) -> OtherPods {
        OtherPods {
            take: each(sum(self.taken.values()), own, u64::saturating_sub),
            pods: self.pods.saturating_sub(1),
        }
    }

    /// The requests that other pods may give up for a pod of this priority that takes `own`. The agent asks the kubelet
    /// although the node is full, if there would be room without it.
    pub fn yields(&self, priority: i64, own: ResourceList, ask: AskWhenFull) -> ResourceList {
        match ask {
            AskWhenFull::Never => ResourceList::default(),
            AskWhenFull::Always => self.others(own).take,
            AskWhenFull::Priority => sum(self.taken.range(..priority).map(|(_, take)| take)),
        }
    }

    /// Replaces the requests of one of the pods, with this priority.
    pub fn change(&mut self, priority: i64, before: ResourceList, after: ResourceList) {
        let taken = self.taken.entry(priority).or_default();
        *taken = each(each(*taken, before, u64::saturating_sub), after, u64::saturating_add);
    }
}

impl FromIterator<(i64, ResourceList)> for NodeRequests {
    fn from_iter<I: IntoIterator<Item = (i64, ResourceList)>>(takes: I) -> Self {
        let mut all = Self::default();
        for (priority, take) in takes {
            all.change(priority, ResourceList::default(), take);
            all.pods += 1;
        }
        all
    }
}

/// The sum of these amounts.
pub fn sum<'a>(takes: impl Iterator<Item = &'a ResourceList>) -> ResourceList {
    takes.fold(ResourceList::default(), |all, one| each(all, *one, u64::saturating_add))
}

/// All pods of a node but one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherPods {
    pub take: ResourceList,
    pub pods: usize,
}

/// The room that a node has for one of its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The amounts for all pods.
    pub capacity: Capacity,
    pub others: OtherPods,
}

/// A node is too full for a pod's new requests. Amounts are thousandths of a cpu or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the node has no room: the pod would request {}", self.numbers())]
pub struct NoRoom {
    pub resource: Resource,
    /// The node's amount of the resource.
    pub has: u64,
    pub others: u64,
    /// The pod's request before the change.
    pub before: u64,
    /// The pod's request after the change.
    pub after: u64,
}

impl NoRoom {
    pub const fn left(&self) -> u64 {
        self.has.saturating_sub(self.others)
    }

    fn numbers(&self) -> String {
        let (resource, amounts) = (self.resource, [self.after, self.left(), self.has, self.others]);
        let [after, left, has, others] = resource.quantities(amounts);
        format!("{after} of {resource}, {left} of {has} are left by other pods, which request {others}")
    }
}

impl Room {
    /// The room if other pods give up the amounts `yields`.
    #[must_use]
    pub fn without(mut self, yields: ResourceList) -> Self {
        self.others.take = each(self.others.take, yields, u64::saturating_sub);
        self
    }

    /// Checks whether a pod that takes `before` may take `after`.
    ///
    /// Errors: [`NoRoom`] with the numbers, for the first resource that grows and does not fit.
    pub fn check(&self, before: ResourceList, after: ResourceList) -> Result<(), NoRoom> {
        for resource in Resource::ALL {
            let Some(has) = self.capacity.amounts.get(resource) else {
                continue;
            };
            let [before, after, others] = [before, after, self.others.take].map(|list| list.amount(resource));
            if after > before && after.saturating_add(others) > has {
                return Err(NoRoom {
                    resource,
                    has,
                    others,
                    before,
                    after,
                });
            }
        }
        Ok(())
    }
}

/// The larger amount of each resource.
pub fn larger(one: ResourceList, other: ResourceList) -> ResourceList {
    each(one, other, u64::max)
}

fn each(one: ResourceList, other: ResourceList, with: fn(u64, u64) -> u64) -> ResourceList {
    ResourceList::from_fn(|resource| Some(with(one.amount(resource), other.amount(resource))))
}

#[cfg(test)]
mod tests;
