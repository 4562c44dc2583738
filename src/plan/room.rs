//! Whether a node has room for what one of its pods is to request. Pure.
//!
//! The one answer to that, whoever asks: a recommendation, an operator, a pass before it asks the API server. In come what
//! the node has ([`Capacity`]) and what each of its pods takes ([`Account`]); out comes the [`Room`] that the others leave
//! for one of them, and from it a refusal with the numbers ([`NoRoom`]), or none.
//!
//! Requests are what a node is divided by: their sum must stay within what the node gives to pods. Only what takes *more*
//! than before is looked at: the pod has the rest, also on a node that is too full already. What a pod takes where its
//! kubelet resizes in place is what that kubelet says ([`super::resize::reserved`]).
//!
//! This is about promises. How much memory is left at this moment is another question, which the guard asks before it lends
//! any ([`crate::guard::budgets`]): pods use more than they request, and less.

use std::collections::BTreeMap;

use crate::model::objects::Node;
use crate::model::{AskWhenFull, Resource, ResourceList};

/// What a node has for its pods, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// How much; an unset amount is unknown, and bounds nothing.
    pub amounts: ResourceList,
    pub from: CapacityFrom,
}

/// Who says what a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum CapacityFrom {
    /// The Node object: what is left after what the kubelet and the system reserve.
    #[display("allocatable")]
    Allocatable,
    /// The kernel: processors online, `MemTotal`.
    #[display("all this machine has")]
    Machine,
}

impl Capacity {
    /// What the Node object says. None where there is no such object.
    pub fn of(node: Option<&Node>) -> Option<Self> {
        node.map(|node| Self {
            amounts: node.status.allocatable,
            from: CapacityFrom::Allocatable,
        })
    }

    /// What the Node object says, else what the machine has. An object that says nothing counts as none.
    pub fn of_node_or(node: Option<&Node>, machine: ResourceList) -> Self {
        let said = Self::of(node).filter(|said| !said.amounts.is_empty());
        said.unwrap_or(Self {
            amounts: machine,
            from: CapacityFrom::Machine,
        })
    }
}

/// What all pods of a node take of it together, collected from what each takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Account {
    /// By the pods' priority.
    taken: BTreeMap<i64, ResourceList>,
    pods: usize,
}

impl Account {
    /// What the others take, for one of the pods that takes `own`.
    pub fn others(&self, own: ResourceList) -> Others {
        Others {
            take: each(sum(self.taken.values()), own, u64::saturating_sub),
            pods: self.pods.saturating_sub(1),
        }
    }

    /// What of the others may be freed for a pod of this priority that takes `own`, so that its kubelet is asked although the
    /// node is full.
    pub fn yields(&self, priority: i64, own: ResourceList, ask: AskWhenFull) -> ResourceList {
        match ask {
            AskWhenFull::Never => ResourceList::default(),
            AskWhenFull::Always => self.others(own).take,
            AskWhenFull::Priority => sum(self.taken.range(..priority).map(|(_, take)| take)),
        }
    }

    /// One of the pods, with this priority, takes something else from now on.
    pub fn change(&mut self, priority: i64, before: ResourceList, after: ResourceList) {
        let taken = self.taken.entry(priority).or_default();
        *taken = each(each(*taken, before, u64::saturating_sub), after, u64::saturating_add);
    }
}

impl FromIterator<(i64, ResourceList)> for Account {
    fn from_iter<I: IntoIterator<Item = (i64, ResourceList)>>(takes: I) -> Self {
        let mut all = Self::default();
        for (priority, take) in takes {
            all.change(priority, ResourceList::default(), take);
            all.pods += 1;
        }
        all
    }
}

/// All these amounts together.
pub fn sum<'a>(takes: impl Iterator<Item = &'a ResourceList>) -> ResourceList {
    takes.fold(ResourceList::default(), |all, one| each(all, *one, u64::saturating_add))
}

/// All pods of a node but one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Others {
    pub take: ResourceList,
    pub pods: usize,
}

/// What a node has for one of its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What the node has for all.
    pub capacity: Capacity,
    /// Who else takes of it.
    pub others: Others,
}

/// A node is too full for what a pod is to request. Amounts are thousandths of a cpu, or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the node has no room: the pod is to request {} of {resource}, {} of {} are left by other pods, which request {}",
    resource.quantity(*after),
    resource.quantity(self.left()),
    resource.quantity(*has),
    resource.quantity(*others)
)]
pub struct NoRoom {
    pub resource: Resource,
    /// What the node has of it.
    pub has: u64,
    pub others: u64,
    /// What the pod takes now.
    pub before: u64,
    /// What it is to request.
    pub after: u64,
}

impl NoRoom {
    pub const fn left(&self) -> u64 {
        self.has.saturating_sub(self.others)
    }
}

impl Room {
    /// The room there would be without what `yields`.
    #[must_use]
    pub fn without(mut self, yields: ResourceList) -> Self {
        self.others.take = each(self.others.take, yields, u64::saturating_sub);
        self
    }

    /// Whether there is room for a pod that is to take as much as `after` where it takes as much as `before`.
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

/// Of both amounts of each resource the larger one.
pub fn larger(one: ResourceList, other: ResourceList) -> ResourceList {
    each(one, other, u64::max)
}

fn each(one: ResourceList, other: ResourceList, with: fn(u64, u64) -> u64) -> ResourceList {
    let mut all = ResourceList::default();
    for resource in Resource::ALL {
        all.set(resource, Some(with(one.amount(resource), other.amount(resource))));
    }
    all
}

#[cfg(test)]
mod tests;
