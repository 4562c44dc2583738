//! Requests and limits of one container or pod.

use serde::{Deserialize, Serialize};

use super::quantity::Quantities;
use super::{Bytes, MilliCpu, PageSize, Resource};

/// The least cpu limit: the kernel refuses quotas below 1000 µs in a period of 100 ms.
const LEAST_CPU: MilliCpu = MilliCpu::new(10);

/// Amounts of cpu and memory. An absent key is unset, which differs from zero. Other resources are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResourceList {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

impl ResourceList {
    /// Whether neither resource is set.
    pub const fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none()
    }

    /// The amount as a plain number (thousandths of a cpu, bytes), if set.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Cpu => self.cpu.map(MilliCpu::get),
            Resource::Memory => self.memory.map(Bytes::get),
        }
    }

    /// The amount as a plain number, zero if unset: what upstream's arithmetic sees.
    pub fn amount(&self, resource: Resource) -> u64 {
        self.get(resource).unwrap_or(0)
    }

    /// Sets or unsets a resource from a plain number (thousandths of a cpu, bytes), saturating.
    pub fn set(&mut self, resource: Resource, amount: Option<u64>) {
        match resource {
            Resource::Cpu => self.cpu = amount.map(MilliCpu::new),
            Resource::Memory => self.memory = amount.map(Bytes::new),
        }
    }

    /// The list with these amounts as plain numbers (thousandths of a cpu, bytes), saturating.
    pub fn from_fn(amount: impl Fn(Resource) -> Option<u64>) -> Self {
        let mut list = Self::default();
        for resource in Resource::ALL {
            list.set(resource, amount(resource));
        }
        list
    }

    /// The amounts of cpu and memory among quantities by name. The names begin with `prefix`.
    pub(super) fn named(all: &Quantities, prefix: &str) -> Self {
        let quantity = |resource: Resource| *all.0.get(&format!("{prefix}{resource}"))?;
        Self {
            cpu: quantity(Resource::Cpu).map(MilliCpu::from),
            memory: quantity(Resource::Memory).map(Bytes::from),
        }
    }

    /// These amounts, and where they are unset those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::from_fn(|resource| self.get(resource).or(other.get(resource)))
    }

    /// Combines the amounts of both lists. An amount that only one list has stays as it is.
    #[must_use]
    pub fn combine(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        Self::from_fn(|resource| match (self.get(resource), other.get(resource)) {
            (Some(own), Some(other)) => Some(with(own, other)),
            (own, other) => own.or(other),
        })
    }

    /// These amounts without zeros, which upstream treats as unset.
    #[must_use]
    pub fn nonzero(self) -> Self {
        Self::from_fn(|resource| self.get(resource).filter(|amount| *amount > 0))
    }

    /// The first resource of which this list has more than `other`, with both amounts as quantities.
    pub fn first_above(&self, other: &Self) -> Option<(Resource, [String; 2])> {
        Resource::ALL.into_iter().find_map(|resource| {
            let (own, other) = self.get(resource).zip(other.get(resource))?;
            (own > other).then(|| (resource, resource.quantities([own, other])))
        })
    }

    /// The amount written as a quantity, if set.
    pub fn text(&self, resource: Resource) -> Option<String> {
        self.get(resource).map(|amount| resource.quantity(amount))
    }
}

/// Requests and limits, as in `pod.spec.containers[].resources`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Requirements {
    #[serde(default)]
    pub requests: ResourceList,
    #[serde(default)]
    pub limits: ResourceList,
}

impl Requirements {
    /// Raises a limit that is set to at least this much (thousandths of a cpu, bytes). A request that equals the limit rises
    /// with it, because the pod's QoS class may depend on that. A limit of zero bounds nothing, and stays.
    pub fn lift(&mut self, resource: Resource, least: u64) {
        let Some(limit) = self.limits.get(resource).filter(|limit| (1..least).contains(limit)) else {
            return;
        };
        if self.requests.get(resource) == Some(limit) {
            self.requests.set(resource, Some(least));
        }
        self.limits.set(resource, Some(least));
    }

    /// These amounts with a cpu limit that the kernel holds: kubelets raise a smaller quota to the least
    /// (`MilliCPUToQuota`, kubernetes `pkg/kubelet/cm`).
    #[must_use]
    pub fn with_least_quota(mut self) -> Self {
        self.lift(Resource::Cpu, LEAST_CPU.get());
        self
    }

    /// Why no container can have these amounts, in a sentence: a limit below the least that the kernel holds, a request above
    /// its limit, or a memory request of less than a page. A limit of zero is none to the kernel.
    pub fn below_least(&self, page: PageSize) -> Option<String> {
        Resource::ALL.into_iter().find_map(|resource| {
            let [request, limit] = self.of(resource);
            let (least_request, least_limit) = match resource {
                Resource::Cpu => (0, LEAST_CPU.get()),
                // Below one page nothing can run at all.
                Resource::Memory => (page.get(), page.get()),
            };
            let quantity = |amount| resource.quantity(amount);
            if let Some(limit) = limit.filter(|limit| (1..least_limit).contains(limit)) {
                let (has, least) = (quantity(limit), quantity(least_limit));
                return Some(format!(
                    "{resource} limit {has} is below the least the kernel holds, {least}"
                ));
            }
            if let Some(request) = request.filter(|request| (1..least_request).contains(request)) {
                let (has, least) = (quantity(request), quantity(least_request));
                return Some(format!(
                    "{resource} request {has} is below the least that a process needs, {least}"
                ));
            }
            let (request, limit) = request.zip(limit).filter(|(request, limit)| request > limit)?;
            let [request, limit] = resource.quantities([request, limit]);
            Some(format!(
                "{resource} request {request} is above the limit {limit}: set both, or a request of at most {limit}"
            ))
        })
    }

    /// The request and the limit of a resource as plain numbers (thousandths of a cpu, bytes), if set.
    pub fn of(&self, resource: Resource) -> [Option<u64>; 2] {
        [self.requests.get(resource), self.limits.get(resource)]
    }

    /// A limit without a request is also the request (`SetDefaults_Pod`, kubernetes `pkg/apis/core/v1/defaults.go`).
    #[must_use]
    pub fn with_requests(self) -> Self {
        Self {
            requests: self.requests.or(self.limits),
            ..self
        }
    }

    /// The pod's own amounts, if there are any, with those that the API server fills in: from the sums of the containers' `requests`,
    /// and of their `limits` where each container has one (`DefaultPodLevelResources`, kubernetes `pkg/api/pod/util.go`).
    #[must_use]
    pub fn filled_in(self, requests: ResourceList, limits: ResourceList) -> Self {
        if self == Self::default() {
            return self;
        }
        let requests = self.requests.or(requests).or(self.limits);
        let limits = ResourceList::from_fn(|resource| Some(limits.get(resource)?.max(requests.get(resource)?)));
        Self {
            requests,
            limits: self.limits.or(limits),
        }
    }

    /// The requests of [`Resource::ALL`], then the limits, as numbers. Unset is zero, and a limit without a request is also the
    /// request.
    pub fn amounts(&self) -> [u64; 4] {
        let [[cpu, cpu_limit], [memory, memory_limit]] =
            Resource::ALL.map(|resource| self.with_requests().of(resource));
        [cpu, memory, cpu_limit, memory_limit].map(Option::unwrap_or_default)
    }

    /// Chooses each amount from the same amount of `all`, as plain numbers (thousandths of a cpu, bytes).
    pub fn choose<const N: usize>(all: [&Self; N], choice: impl Fn([Option<u64>; N]) -> Option<u64>) -> Self {
        let requests = |resource| choice(all.map(|one| one.requests.get(resource)));
        let limits = |resource| choice(all.map(|one| one.limits.get(resource)));
        Self {
            requests: ResourceList::from_fn(requests),
            limits: ResourceList::from_fn(limits),
        }
    }

    /// These amounts, and those of `other` for a resource whose request would be above its limit.
    #[must_use]
    pub fn valid_or(mut self, other: &Self) -> Self {
        for resource in Resource::ALL {
            let [request, limit] = self.of(resource);
            if request.zip(limit).is_some_and(|(request, limit)| request > limit) {
                self.requests.set(resource, other.requests.get(resource));
                self.limits.set(resource, other.limits.get(resource));
            }
        }
        self
    }

    /// These amounts, and where they are unset those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            requests: self.requests.or(other.requests),
            limits: self.limits.or(other.limits),
        }
    }

    /// Every amount with its name, written as a quantity.
    pub fn fields(&self) -> [(&'static str, Option<String>); 4] {
        [
            ("requests.cpu", self.requests.text(Resource::Cpu)),
            ("requests.memory", self.requests.text(Resource::Memory)),
            ("limits.cpu", self.limits.text(Resource::Cpu)),
            ("limits.memory", self.limits.text(Resource::Memory)),
        ]
    }
}

/// Requests and limits of one named container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedRequirements {
    /// The container's name in the pod spec.
    pub name: String,
    #[serde(flatten)]
    pub resources: Requirements,
}

impl NamedRequirements {
    /// The requirements of the container of that name.
    pub fn new(name: &str, resources: Requirements) -> Self {
        let name = name.to_owned();
        Self { name, resources }
    }
}

/// The class that decides a pod's place in the cgroup tree and its `oom_score_adj`.
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
    /// Agrees with `ComputePodQOS` (kubernetes `pkg/apis/core/v1/helper/qos/qos.go`) for pods without pod-level resources. For a
    /// pod with pod-level resources, pass only those. Zero amounts count as unset, as upstream.
    pub fn of<'a>(containers: impl IntoIterator<Item = &'a Requirements>) -> Self {
        let (mut any, mut guaranteed) = (false, true);
        for container in containers {
            for resource in Resource::ALL {
                let (request, limit) = (container.requests.amount(resource), container.limits.amount(resource));
                any |= request > 0 || limit > 0;
                // A limit without a request implies an equal request: that is the API server's default. Zero is a request.
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

    #[test]
    fn amounts_that_no_container_can_have_are_named() {
        let why = |requests, limits| Requirements { requests, limits }.below_least(PageSize::KIB_4);
        let nothing = list(0, 0);
        assert_eq!(why(list(1, 4096), list(10, 4096)), None);
        for (requests, limits, words) in [
            (nothing, list(9, 0), "cpu limit 9m is below the least"),
            (nothing, list(0, 4095), "memory limit 4095 is below the least"),
            (list(0, 4095), nothing, "memory request 4095 is below the least"),
            (list(101, 0), list(100, 0), "cpu request 101m is above the limit"),
        ] {
            let found = why(requests, limits).unwrap();
            assert!(found.starts_with(words), "{found}");
        }
    }

    #[test]
    fn an_invalid_resource_alone_takes_other_amounts() {
        let mixed = Requirements {
            requests: list(200, 2),
            limits: list(100, 4),
        };
        let other = Requirements {
            requests: list(300, 5),
            limits: list(400, 6),
        };
        let valid = Requirements {
            requests: list(300, 2),
            limits: list(400, 4),
        };
        assert_eq!(mixed.valid_or(&other), valid);
    }

    fn all(request: (u64, u64), limit: (u64, u64)) -> Requirements {
        Requirements {
            requests: list(request.0, request.1),
            limits: list(limit.0, limit.1),
        }
    }

    #[test]
    fn a_lifted_limit_takes_an_equal_request_along() {
        let lifted = |mut amounts: Requirements| {
            amounts.lift(Resource::Memory, 8);
            amounts
        };
        assert_eq!(lifted(all((1, 4), (2, 4))), all((1, 8), (2, 8)));
        assert_eq!(lifted(all((1, 3), (2, 4))), all((1, 3), (2, 8)));
        for unchanged in [all((1, 8), (2, 8)), all((1, 9), (2, 9)), all((1, 4), (2, 0))] {
            assert_eq!(lifted(unchanged), unchanged);
        }
        let unlimited = Requirements {
            requests: ResourceList::from_fn(|_| Some(0)),
            limits: ResourceList::from_fn(|_| Some(0)),
        };
        assert_eq!(lifted(unlimited), unlimited);
        assert_eq!(unlimited.with_least_quota(), unlimited);
        assert_eq!(unlimited.below_least(PageSize::KIB_4), None);
        assert_eq!(all((5, 5), (5, 5)).with_least_quota(), all((10, 5), (10, 5)));
        assert_eq!(all((5, 5), (11, 5)).with_least_quota(), all((5, 5), (11, 5)));
    }

    #[test]
    fn unset_amounts_are_filled_in() {
        let limited = all((0, 3), (2, 4));
        assert_eq!(limited.with_requests(), all((2, 3), (2, 4)));
        assert_eq!(limited.amounts(), [2, 3, 2, 4]);
        // Requests from the containers, and limits that are no lower than the request.
        assert_eq!(limited.filled_in(list(7, 8), list(0, 9)), all((7, 3), (2, 4)));
        assert_eq!(
            all((5, 0), (0, 0)).filled_in(list(7, 8), list(3, 9)),
            all((5, 8), (5, 9))
        );
        let none = Requirements::default();
        assert_eq!(none.filled_in(list(7, 8), list(3, 9)), none);
        assert_eq!(all((5, 0), (0, 6)).or(all((1, 2), (3, 4))), all((5, 2), (3, 6)));
    }

    #[test]
    fn lists_are_combined_by_resource() {
        assert_eq!(list(1, 0).or(list(2, 3)), list(1, 3));
        assert_eq!(list(1, 0).combine(list(2, 3), u64::max), list(2, 3));
        assert_eq!(list(1, 5).combine(list(2, 3), |own, other| own + other), list(3, 8));
        let zero = ResourceList {
            cpu: Some(MilliCpu::ZERO),
            ..list(0, 3)
        };
        assert_eq!(zero.nonzero(), list(0, 3));
        assert_eq!(list(2, 3).first_above(&list(2, 3)), None);
        assert_eq!(list(2, 3).first_above(&list(0, 0)), None);
        let above = (Resource::Memory, ["4".to_owned(), "3".to_owned()]);
        assert_eq!(list(2, 4).first_above(&list(2, 3)), Some(above));
    }

    #[test]
    fn each_amount_has_its_name() {
        let fields = all((1, 2), (3, 4)).fields();
        let named = fields.map(|(name, text)| format!("{name}={}", text.unwrap_or_default()));
        assert_eq!(
            named,
            [
                "requests.cpu=1m",
                "requests.memory=2",
                "limits.cpu=3m",
                "limits.memory=4"
            ]
        );
        let smaller = Requirements::choose([&all((1, 6), (3, 8)), &all((5, 2), (7, 4))], |[own, other]| {
            own.min(other)
        });
        assert_eq!(smaller, all((1, 2), (3, 4)));
    }
}
