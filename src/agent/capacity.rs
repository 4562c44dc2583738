//! Whether the node can hold what an operator wants. Pure.
//!
//! In come what the node has, what every pod on it requests, and what one pod would have; out comes a refusal with the
//! numbers, or none. Requests are what a node is divided by: their sum must stay within what the node gives to pods.
//! Limits may exceed it together, but not one alone. Only what a change takes *more* of is looked at: making less of it
//! is always fine, also on a node that is too full already.

use std::fmt;

use super::overrides::Override;
use super::standing::Standing;
use crate::objects::{Node, Pod};
use crate::plan::{KubeletVersion, pod_requests};
use crate::resources::{NamedRequirements, Resource, ResourceList};

/// What a node has for its pods, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) amounts: ResourceList,
    pub(super) from: CapacityFrom,
}

/// Who says what a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CapacityFrom {
    /// The Node object: what is left after what the kubelet and the system reserve.
    Allocatable,
    /// The kernel: processors online, `MemTotal`.
    Machine,
}

impl Capacity {
    /// What the Node object says, else what the machine has. An object that says nothing counts as none.
    pub(super) fn of(node: Option<&Node>, machine: ResourceList) -> Self {
        let allocatable = node.map(|node| node.status.allocatable).filter(|list| !list.is_empty());
        match allocatable {
            Some(amounts) => Self {
                amounts,
                from: CapacityFrom::Allocatable,
            },
            None => Self {
                amounts: machine,
                from: CapacityFrom::Machine,
            },
        }
    }
}

impl fmt::Display for CapacityFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocatable => "allocatable",
            Self::Machine => "all this machine has",
        })
    }
}

/// One pod, before and after a change.
#[derive(Debug)]
struct Growth<'a> {
    /// Requests of the whole pod, overhead included.
    requests: [ResourceList; 2],
    /// Its regular containers.
    containers: [&'a [NamedRequirements]; 2],
}

/// The node cannot hold it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum TooMuch {
    /// All requests together.
    #[error(
        "the node cannot hold it: {resource} requests would be {} of {} ({from}): this pod {} instead of {}, the {others} other \
         pods {}; at most {} is left for this pod",
        resource.quantity(theirs.saturating_add(*after)),
        resource.quantity(*has),
        resource.quantity(*after),
        resource.quantity(*before),
        resource.quantity(*theirs),
        room(*resource, has.saturating_sub(*theirs))
    )]
    Requests {
        /// The resource, in whose unit the amounts are.
        resource: Resource,
        /// What there is.
        has: u64,
        /// Who says so.
        from: CapacityFrom,
        /// What this pod requests now.
        before: u64,
        /// What it would request.
        after: u64,
        /// How many other pods there are.
        others: usize,
        /// What they request.
        theirs: u64,
    },
    /// One limit alone.
    #[error(
        "the node cannot hold it: container {container} could use {} of {resource}, and there is {} ({from})",
        resource.quantity(*limit),
        room(*resource, *has)
    )]
    Limit {
        /// The container.
        container: String,
        /// The resource, in whose unit the amounts are.
        resource: Resource,
        /// The limit.
        limit: u64,
        /// What there is.
        has: u64,
        /// Who says so.
        from: CapacityFrom,
    },
}

/// Refuses a growth that does not fit beside what the others request.
fn check(capacity: Capacity, others: &[ResourceList], growth: &Growth<'_>) -> Result<(), TooMuch> {
    for resource in Resource::ALL {
        let Some(has) = capacity.amounts.get(resource) else {
            continue;
        };
        let [before, after] = growth.requests.map(|requests| requests.amount(resource));
        let theirs = others
            .iter()
            .map(|requests| requests.amount(resource))
            .fold(0, u64::saturating_add);
        if after > before && theirs.saturating_add(after) > has {
            return Err(TooMuch::Requests {
                resource,
                has,
                from: capacity.from,
                before,
                after,
                others: others.len(),
                theirs,
            });
        }
        check_limits(capacity, resource, has, growth.containers)?;
    }
    Ok(())
}

fn check_limits(
    capacity: Capacity,
    resource: Resource,
    has: u64,
    [before, after]: [&[NamedRequirements]; 2],
) -> Result<(), TooMuch> {
    let limit = |list: &[NamedRequirements], name: &str| {
        let container = list.iter().find(|container| container.name == name);
        container.map_or(0, |container| container.resources.limits.amount(resource))
    };
    let too_large = after.iter().find(|container| {
        let limit_after = container.resources.limits.amount(resource);
        limit_after > has && limit_after > limit(before, &container.name)
    });
    match too_large {
        None => Ok(()),
        Some(container) => Err(TooMuch::Limit {
            container: container.name.clone(),
            resource,
            limit: container.resources.limits.amount(resource),
            has,
            from: capacity.from,
        }),
    }
}

/// Whole mebibytes: the exact amount of a machine is nothing to read.
fn room(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Memory if amount > 1 << 20 => resource.quantity(amount >> 20 << 20),
        Resource::Memory | Resource::Cpu => resource.quantity(amount),
    }
}

/// What other pods leave of the node for one of them.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) capacity: Capacity,
    /// What each of the others requests.
    pub(super) others: Vec<ResourceList>,
    /// Whose rules say what a pod requests.
    pub(super) kubelet: KubeletVersion,
}

impl Room {
    /// Sets an override, unless the pod could not run with it or the node not hold it: then nothing is changed.
    ///
    /// # Errors
    /// A sentence with the numbers.
    pub(super) fn set_override(&self, standing: &mut Standing, pod: &Pod, values: Override) -> Result<(), String> {
        let before = standing.targets(pod).unwrap_or_else(|| pod.requirements());
        let mut wanted = standing.clone();
        wanted.set_override(pod, values).map_err(|error| error.to_string())?;
        let after = wanted.targets(pod).unwrap_or_default();
        let requests = [&before, &after].map(|targets| pod_requests(pod, targets, self.kubelet));
        let growth = Growth {
            requests,
            containers: [&before, &after],
        };
        check(self.capacity, &self.others, &growth).map_err(|error| error.to_string())?;
        *standing = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{Bytes, MilliCpu, Requirements};

    const GI: u64 = 1 << 30;

    fn list(cpu: u64, memory: u64) -> ResourceList {
        ResourceList {
            cpu: Some(MilliCpu::new(cpu)),
            memory: Some(Bytes::new(memory)),
        }
    }

    fn container(limits: ResourceList) -> Vec<NamedRequirements> {
        vec![NamedRequirements {
            name: "app".to_owned(),
            resources: Requirements {
                requests: ResourceList::default(),
                limits,
            },
        }]
    }

    fn checked(requests: [ResourceList; 2], limits: [ResourceList; 2]) -> Result<(), String> {
        let capacity = Capacity::of(None, list(4000, 8 * GI));
        let others = [list(1000, 3 * GI), list(2000, GI)];
        let [before, after] = limits.map(container);
        let growth = Growth {
            requests,
            containers: [&before, &after],
        };
        check(capacity, &others, &growth).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_must_fit_beside_everybody_elses() {
        let small = list(500, GI);
        assert_eq!(checked([small, list(1000, 4 * GI)], [small, small]), Ok(()));
        assert_eq!(
            checked([small, list(500, 5 * GI)], [small, small]).unwrap_err(),
            "the node cannot hold it: memory requests would be 9Gi of 8Gi (all this machine has): this pod 5Gi instead of 1Gi, \
             the 2 other pods 4Gi; at most 4Gi is left for this pod"
        );
        let error = checked([small, list(1500, GI)], [small, small]).unwrap_err();
        assert!(error.contains("cpu requests would be 4500m of 4"), "{error}");
    }

    #[test]
    fn less_is_always_fine_also_on_a_full_node() {
        let full = list(9000, 90 * GI);
        assert_eq!(checked([full, list(8000, 80 * GI)], [full, full]), Ok(()));
        assert_eq!(checked([full, full], [full, list(9000, 80 * GI)]), Ok(()));
    }

    #[test]
    fn no_container_may_use_more_than_there_is() {
        let small = list(500, GI);
        assert_eq!(checked([small, small], [small, list(4000, 8 * GI)]), Ok(()));
        assert_eq!(
            checked([small, small], [small, list(500, 100 * GI)]).unwrap_err(),
            "the node cannot hold it: container app could use 100Gi of memory, and there is 8Gi (all this machine has)"
        );
    }

    #[test]
    fn the_node_object_counts_for_more_than_the_machine() {
        let mut node = Node::default();
        assert_eq!(Capacity::of(Some(&node), list(1, 1)).from, CapacityFrom::Machine);
        node.status.allocatable = list(2, 2);
        let capacity = Capacity::of(Some(&node), list(1, 1));
        assert_eq!(
            (capacity.from, capacity.amounts),
            (CapacityFrom::Allocatable, list(2, 2))
        );
    }
}
