//! QoS classes.

use serde::{Deserialize, Serialize};

use super::{Requirements, Resource};

/// The class that decides a pod's place in the cgroup tree and its fate under memory pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
pub enum QosClass {
    /// Every container has limits for cpu and memory, equal to its requests.
    Guaranteed,
    Burstable,
    /// Nothing is requested or limited.
    BestEffort,
}

impl QosClass {
    /// The class of a pod whose containers (regular and init) have these requirements.
    ///
    /// Agrees with `ComputePodQOS` (kubernetes `pkg/apis/core/v1/helper/qos/qos.go`) for pods without pod-level
    /// resources; with pod-level resources pass only those. Zero amounts count as unset, as upstream.
    pub fn of<'a>(containers: impl IntoIterator<Item = &'a Requirements>) -> Self {
        let (mut any, mut guaranteed) = (false, true);
        for container in containers {
            for resource in Resource::ALL {
                let (request, limit) = (container.requests.amount(resource), container.limits.amount(resource));
                any |= request > 0 || limit > 0;
                // A limit alone implies an equal request: the API server defaults it so. A request of zero does not.
                guaranteed &= limit > 0 && (container.requests.get(resource).is_none() || request == limit);
            }
        }
        match (any, guaranteed) {
            (false, _) => Self::BestEffort,
            (true, true) => Self::Guaranteed,
            (true, false) => Self::Burstable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, MilliCpu, ResourceList};

    fn list(cpu: u64, memory: u64) -> ResourceList {
        ResourceList {
            cpu: (cpu > 0).then(|| MilliCpu::new(cpu)),
            memory: (memory > 0).then(|| Bytes::new(memory)),
        }
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let none = Requirements::default();
        let equal = Requirements {
            requests: list(1, 1),
            limits: list(1, 1),
        };
        let limits_only = Requirements {
            requests: list(0, 0),
            limits: list(1, 1),
        };
        let cpu_limit_missing = Requirements {
            requests: list(1, 1),
            limits: list(0, 1),
        };
        let explicit_zero = Requirements {
            requests: ResourceList {
                cpu: Some(MilliCpu::ZERO),
                memory: None,
            },
            limits: list(1, 1),
        };
        assert_eq!(QosClass::of([&explicit_zero]), QosClass::Burstable);
        assert_eq!(QosClass::of([&none, &none]), QosClass::BestEffort);
        assert_eq!(QosClass::of([&equal, &limits_only]), QosClass::Guaranteed);
        assert_eq!(QosClass::of([&equal, &none]), QosClass::Burstable);
        assert_eq!(QosClass::of([&cpu_limit_missing]), QosClass::Burstable);
    }
}
