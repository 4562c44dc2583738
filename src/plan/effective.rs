//! A pod's resources as the API server stored them: defaults filled in, a decision laid over them, and summed up the
//! way the kubelet sums them.
//!
//! In come a pod, possibly hand-written, and the requirements decided for its containers; out come the requests and
//! limits of every container and of the whole pod. Nothing here knows cgroups.

use crate::model::objects::{Container, Pod};
use crate::model::{KubeletVersion, NamedRequirements, QosClass, Requirements, Resource, ResourceList};

/// One container's resources, defaults included.
#[derive(Debug, Clone, Copy)]
pub(super) struct EffectiveContainer<'a> {
    pub(super) name: &'a str,
    pub(super) sidecar: bool,
    pub(super) resources: Requirements,
}

/// A pod's resources, defaults and decision included.
#[derive(Debug, Clone)]
pub(super) struct EffectivePod<'a> {
    pub(super) qos: QosClass,
    pub(super) regular: Vec<EffectiveContainer<'a>>,
    pub(super) init: Vec<EffectiveContainer<'a>>,
    /// Pod-level requests and limits; all unset where the pod has none or the kubelet knows none.
    pub(super) pod_level: Requirements,
    overhead: ResourceList,
    kubelet: KubeletVersion,
}

impl<'a> EffectivePod<'a> {
    /// Fills in the API server's defaults, then puts the `targets` in place of their containers' requirements.
    ///
    /// In this order, because the API server filled them in when the pod was created: neither the class nor pod-level
    /// requests follow a later resize of the containers.
    pub(super) fn new(pod: &'a Pod, targets: &[NamedRequirements], kubelet: KubeletVersion) -> Self {
        let mut effective = Self {
            qos: QosClass::BestEffort,
            regular: pod.spec.containers.iter().map(|c| defaulted(c, false)).collect(),
            init: pod
                .spec
                .init_containers
                .iter()
                .map(|c| defaulted(c, c.is_sidecar()))
                .collect(),
            pod_level: Requirements::default(),
            overhead: pod.spec.overhead,
            kubelet,
        };
        if let (true, Some(pod_level)) = (kubelet.pod_level_resources(), pod.pod_level_in(targets)) {
            effective.pod_level = effective.defaulted_pod_level(pod_level);
        }
        effective.qos = pod.status.qos_class.unwrap_or_else(|| effective.computed_qos());
        for container in effective.regular.iter_mut().chain(&mut effective.init) {
            if let Some(target) = targets.iter().find(|target| target.name == container.name) {
                container.resources = with_requests(target.resources);
            }
        }
        effective
    }

    /// `defaultPodRequests` (kubernetes `pkg/apis/core/v1/defaults.go`): where there is any pod-level limit, a request
    /// that is unset becomes what the containers request together, or else the limit.
    fn defaulted_pod_level(&self, pod_level: Requirements) -> Requirements {
        if pod_level.limits.is_empty() {
            return pod_level;
        }
        let containers = self.total(|container| container.requests);
        let requests = or(or(pod_level.requests, containers), pod_level.limits);
        Requirements { requests, ..pod_level }
    }

    /// `ComputePodQOS` (kubernetes `pkg/apis/core/v1/helper/qos/qos.go`).
    fn computed_qos(&self) -> QosClass {
        if self.pod_level == Requirements::default() {
            QosClass::of(
                self.regular
                    .iter()
                    .chain(&self.init)
                    .map(|container| &container.resources),
            )
        } else {
            QosClass::of([&self.pod_level])
        }
    }

    /// `PodRequests` (kubernetes `component-helpers/resource/helpers.go`): pod-level requests, else
    /// the containers'; overhead on top.
    pub(super) fn requests(&self) -> ResourceList {
        let requests = or(self.pod_level.requests, self.total(|container| container.requests));
        combine(requests, self.overhead, u64::saturating_add)
    }

    /// `PodLimits` (as above): overhead is added only to limits that are there.
    pub(super) fn limits(&self) -> ResourceList {
        let mut limits = or(self.pod_level.limits, self.total(|container| container.limits));
        for resource in Resource::ALL {
            let limit = limits.amount(resource);
            if limit > 0 {
                limits.set(resource, Some(limit.saturating_add(self.overhead.amount(resource))));
            }
        }
        limits
    }

    /// Whether the pod's limit of this resource is declared: a pod-level limit is; else every container has one, and
    /// every init step has one together with the sidecars started before it (`ResourceConfigForPod`, kubernetes
    /// `pkg/kubelet/cm/helpers_linux.go`). So a limit-less init container after a limited sidecar passes, as upstream.
    pub(super) fn declares(&self, resource: Resource) -> bool {
        let regular = || {
            self.regular
                .iter()
                .all(|container| container.resources.limits.amount(resource) > 0)
        };
        let init = || {
            self.init_steps(|container| container.limits)
                .all(|step| step.amount(resource) > 0)
        };
        self.pod_level.limits.amount(resource) > 0
            || regular() && (!self.kubelet.init_containers_declare_limits() || init())
    }

    /// What the containers need together: all that run for the pod's whole life, or the largest init step.
    fn total(&self, of: impl Fn(&Requirements) -> ResourceList + Copy) -> ResourceList {
        let sidecars = self.init.iter().filter(|container| container.sidecar);
        let running = self
            .regular
            .iter()
            .chain(sidecars)
            .map(|container| of(&container.resources));
        let sum = running.fold(ResourceList::default(), |sum, list| {
            combine(sum, list, u64::saturating_add)
        });
        self.init_steps(of).fold(sum, |sum, step| combine(sum, step, u64::max))
    }

    /// What is needed while each init container starts: its own, and all sidecars' that were started before it.
    fn init_steps(&self, of: impl Fn(&Requirements) -> ResourceList) -> impl Iterator<Item = ResourceList> {
        self.init
            .iter()
            .scan(ResourceList::default(), move |sidecars, container| {
                let step = combine(*sidecars, of(&container.resources), u64::saturating_add);
                if container.sidecar {
                    *sidecars = step;
                }
                Some(step)
            })
    }
}

/// What a pod requests of its node once its containers have the requirements in `targets`:
/// `PodRequests`, defaults and overhead included.
pub fn pod_requests(pod: &Pod, targets: &[NamedRequirements], kubelet: KubeletVersion) -> ResourceList {
    EffectivePod::new(pod, targets, kubelet).requests()
}

fn defaulted(container: &Container, sidecar: bool) -> EffectiveContainer<'_> {
    EffectiveContainer {
        name: &container.name,
        sidecar,
        resources: with_requests(container.resources),
    }
}

/// A limit without a request is also the request (`SetDefaults_Pod`, kubernetes `pkg/apis/core/v1/defaults.go`).
pub(super) fn with_requests(resources: Requirements) -> Requirements {
    Requirements {
        requests: or(resources.requests, resources.limits),
        ..resources
    }
}

/// The amounts of `first`, and where they are unset those of `second`.
fn or(first: ResourceList, second: ResourceList) -> ResourceList {
    ResourceList {
        cpu: first.cpu.or(second.cpu),
        memory: first.memory.or(second.memory),
    }
}

/// Both lists combined; an amount that only one of them has is kept as it is.
fn combine(first: ResourceList, second: ResourceList, with: fn(u64, u64) -> u64) -> ResourceList {
    let mut combined = or(first, second);
    for resource in Resource::ALL {
        if let (Some(a), Some(b)) = (first.get(resource), second.get(resource)) {
            combined.set(resource, Some(with(a, b)));
        }
    }
    combined
}
