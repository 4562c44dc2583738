//! Whether the node can hold what an operator wants. Pure.
//!
//! In come what other pods leave of the node ([`Room`]), what one pod takes, and what it would have; out comes a refusal
//! with the numbers, or none. Beside its requests each limit is looked at: limits may exceed what there is together, but
//! not one alone. What recommends limits in proportion may; whoever types one has mistyped.

use super::overrides::{Override, check_assigned};
use super::standing::Standing;
use crate::decide::StaticManagers;
use crate::model::objects::Pod;
use crate::model::{KubeletVersion, NamedRequirements, Resource, ResourceList};
use crate::plan::{Capacity, CapacityFrom, NoRoom, Room, pod_requests};

/// The node cannot hold it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum TooMuch {
    /// All requests together.
    #[error(
        "the node cannot hold it: {} requests would be {} of {} ({}): this pod {} instead of {}, the {} other pods {}; at \
         most {} is left for this pod",
        full.resource,
        full.resource.quantity(full.others.saturating_add(full.after)),
        full.resource.quantity(full.has),
        room.capacity.from,
        full.resource.quantity(full.after),
        full.resource.quantity(full.before),
        room.others.pods,
        full.resource.quantity(full.others),
        readable(full.resource, full.left())
    )]
    Requests {
        /// What does not fit.
        full: NoRoom,
        /// Where.
        room: Room,
    },
    /// One limit alone.
    #[error(
        "the node cannot hold it: container {container} could use {} of {resource}, and there is {} ({from})",
        resource.quantity(*limit),
        readable(*resource, *has)
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

/// Refuses a growth that does not fit beside what the others take.
fn check(room: Room, takes: [ResourceList; 2], containers: [&[NamedRequirements]; 2]) -> Result<(), TooMuch> {
    let [before, after] = takes;
    room.check(before, after)
        .map_err(|full| TooMuch::Requests { full, room })?;
    check_limits(room.capacity, containers)
}

fn check_limits(capacity: Capacity, [before, after]: [&[NamedRequirements]; 2]) -> Result<(), TooMuch> {
    let limit = |list: &[NamedRequirements], name: &str, resource| {
        let container = list.iter().find(|container| container.name == name);
        container.map_or(0, |container| container.resources.limits.amount(resource))
    };
    for resource in Resource::ALL {
        let Some(has) = capacity.amounts.get(resource) else {
            continue;
        };
        for NamedRequirements { name, resources } in after {
            let wanted = resources.limits.amount(resource);
            if wanted > has && wanted > limit(before, name, resource) {
                return Err(TooMuch::Limit {
                    container: name.clone(),
                    resource,
                    limit: wanted,
                    has,
                    from: capacity.from,
                });
            }
        }
    }
    Ok(())
}

/// Whole mebibytes: the exact amount of a machine is nothing to read.
fn readable(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Memory if amount > 1 << 20 => resource.quantity(amount >> 20 << 20),
        Resource::Memory | Resource::Cpu => resource.quantity(amount),
    }
}

/// The node's room for one pod whose values an operator sets.
#[derive(Debug)]
pub(super) struct Headroom {
    pub(super) room: Room,
    /// What the pod takes now.
    pub(super) takes: ResourceList,
    /// Whose rules say what a pod requests.
    pub(super) kubelet: KubeletVersion,
    /// What the kubelet assigns to pods for good.
    pub(super) managers: StaticManagers,
}

impl Headroom {
    /// Sets an override, unless the pod could not run with it or the node not hold it: then nothing is changed.
    ///
    /// # Errors
    /// A sentence with the numbers.
    pub(super) fn set_override(&self, standing: &mut Standing, pod: &Pod, values: Override) -> Result<(), String> {
        let before = standing.targets(pod).unwrap_or_else(|| pod.requirements());
        check_assigned(pod, &values.values, self.managers).map_err(|error| error.to_string())?;
        let mut wanted = standing.clone();
        wanted.set_override(pod, values).map_err(|error| error.to_string())?;
        let after = wanted.targets(pod).unwrap_or_default();
        let takes = [self.takes, pod_requests(pod, &after, self.kubelet)];
        check(self.room, takes, [&before, &after]).map_err(|error| error.to_string())?;
        *standing = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, MilliCpu, Requirements};
    use crate::plan::Account;

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
        let small = list(500, GI);
        let account = Account::from_iter([list(1000, 3 * GI), list(2000, GI), small]);
        let room = Room {
            capacity: Capacity::of_node_or(None, list(4000, 8 * GI)),
            others: account.others(small),
        };
        let [before, after] = limits.map(container);
        check(room, requests, [&before, &after]).map_err(|error| error.to_string())
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
    fn what_the_kubelet_has_assigned_for_good_is_refused_with_field_value_and_reason() {
        let amounts = serde_json::json!({"cpu": "2", "memory": "1Gi"});
        let resources = serde_json::json!({"requests": amounts, "limits": amounts});
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "uid": "u"}, "spec": {"containers": [{"name": "app", "resources": resources}]},
        }))
        .unwrap();
        let set = |managers, limits: ResourceList| {
            let limits = Requirements {
                requests: limits,
                limits,
            };
            let values = vec![NamedRequirements {
                name: "app".to_owned(),
                resources: limits,
            }];
            let headroom = Headroom {
                room: Room {
                    capacity: Capacity::of_node_or(None, list(8000, 8 * GI)),
                    others: Account::default().others(ResourceList::default()),
                },
                takes: ResourceList::default(),
                kubelet: KubeletVersion::NEWEST,
                managers,
            };
            let values = Override {
                uid: 0,
                pid: 1,
                reason: String::new(),
                since: jiff::Timestamp::UNIX_EPOCH,
                until: None,
                values,
            };
            let mut standing = Standing::default();
            let set = headroom.set_override(&mut standing, &pod, values);
            assert_eq!(standing.is_empty(), set.is_err());
            set
        };
        let only = |cpu, memory| ResourceList { cpu, memory };
        let (cpu, memory) = (
            only(Some(MilliCpu::new(3000)), None),
            only(None, Some(Bytes::new(2 * GI))),
        );
        let managers = |cpu, memory| StaticManagers { cpu, memory };
        let error = set(managers(true, false), cpu).unwrap_err();
        assert!(
            error.starts_with("container app: requests.cpu 3 is refused: the kubelet's static cpu manager"),
            "{error}"
        );
        let error = set(managers(true, true), memory).unwrap_err();
        assert!(
            error.contains("requests.memory 2Gi") && error.contains("static memory manager"),
            "{error}"
        );
        assert_eq!(set(managers(true, false), memory), Ok(()));
        assert_eq!(set(managers(false, false), cpu), Ok(()));
    }
}
