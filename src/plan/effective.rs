//! A pod's resources as the API server stored them: with its defaults, with the decided amounts, and summed up like the
//! kubelet does.
//!
//! Input: a pod, possibly hand-written, and the requirements decided for its containers. Output: the requests and limits of
//! every container and of the whole pod. Nothing here knows cgroups.

use crate::model::objects::{Container, Pod};
use crate::model::{KubeletVersion, NamedRequirements, QosClass, Requirements, Resource, ResourceList};

/// One container's resources, defaults included.
#[derive(Debug, Clone, Copy)]
pub(super) struct EffectiveContainer<'a> {
    pub(super) name: &'a str,
    pub(super) sidecar: bool,
    pub(super) resources: Requirements,
}

/// A pod's resources, defaults and decided amounts included.
#[derive(Debug, Clone)]
pub(super) struct EffectivePod<'a> {
    pub(super) qos: QosClass,
    pub(super) regular: Vec<EffectiveContainer<'a>>,
    pub(super) init: Vec<EffectiveContainer<'a>>,
    /// Pod-level requests and limits. Unset if the pod has none, or if the kubelet does not know them.
    pub(super) pod_level: Requirements,
    overhead: ResourceList,
    kubelet: KubeletVersion,
}

impl<'a> EffectivePod<'a> {
    /// Fills in the API server's defaults, then puts the `targets` in place of their containers' requirements.
    ///
    /// The order matters: the API server fills in defaults when the pod is created, so neither the class nor pod-level
    /// requests follow a later resize of the containers.
    pub(super) fn new(pod: &'a Pod, targets: &[NamedRequirements], kubelet: KubeletVersion) -> Self {
        let defaulted = |container: &'a Container, sidecar| EffectiveContainer {
            name: &container.name,
            sidecar,
            resources: with_requests(container.resources),
        };
        let (regular, init) = (pod.spec.containers.iter(), pod.spec.init_containers.iter());
        let mut effective = Self {
            qos: QosClass::BestEffort,
            regular: regular.map(|regular| defaulted(regular, false)).collect(),
            init: init.map(|init| defaulted(init, init.is_sidecar())).collect(),
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

    /// `defaultPodRequests` (kubernetes `pkg/apis/core/v1/defaults.go`): if there is any pod-level limit, an unset request
    /// becomes the sum of the containers' requests, or else the limit.
    fn defaulted_pod_level(&self, pod_level: Requirements) -> Requirements {
        if pod_level.limits.is_empty() {
            return pod_level;
        }
        let containers = self.total(|container| container.requests);
        let requests = pod_level.requests.or(containers).or(pod_level.limits);
        Requirements { requests, ..pod_level }
    }

    /// `ComputePodQOS` (kubernetes `pkg/apis/core/v1/helper/qos/qos.go`).
    fn computed_qos(&self) -> QosClass {
        if self.pod_level != Requirements::default() {
            return QosClass::of([&self.pod_level]);
        }
        let containers = self.regular.iter().chain(&self.init);
        QosClass::of(containers.map(|container| &container.resources))
    }

    /// `PodRequests` (kubernetes `component-helpers/resource/helpers.go`): pod-level requests, else
    /// the containers', plus the overhead.
    pub(super) fn requests(&self) -> ResourceList {
        let containers = self.total(|container| container.requests);
        let requests = self.pod_level.requests.or(containers);
        requests.combine(self.overhead, u64::saturating_add)
    }

    /// `PodLimits` (as above): only a limit that is set gets the overhead.
    pub(super) fn limits(&self) -> ResourceList {
        let mut limits = self.pod_level.limits.or(self.total(|container| container.limits));
        for resource in Resource::ALL {
            let limit = limits.amount(resource);
            if limit > 0 {
                limits.set(resource, Some(limit.saturating_add(self.overhead.amount(resource))));
            }
        }
        limits
    }

    /// Whether the pod declares a limit of this resource: with a pod-level limit; or if every container has a limit, and every
    /// init step has one together with the sidecars started before it (`ResourceConfigForPod`, kubernetes
    /// `pkg/kubelet/cm/helpers_linux.go`). So upstream accepts a limit-less init container after a limited sidecar.
    pub(super) fn declares(&self, resource: Resource) -> bool {
        let is_limited = |limits: ResourceList| limits.amount(resource) > 0;
        let regular = || self.regular.iter().all(|one| is_limited(one.resources.limits));
        let init = || self.init_steps(|container| container.limits).all(is_limited);
        is_limited(self.pod_level.limits) || regular() && (!self.kubelet.init_containers_declare_limits() || init())
    }

    /// What the containers need together: the sum over all that run for the pod's whole life, or the largest init step.
    fn total(&self, of: impl Fn(&Requirements) -> ResourceList + Copy) -> ResourceList {
        let sidecars = self.init.iter().filter(|container| container.sidecar);
        let running = self.regular.iter().chain(sidecars);
        let sum = running.fold(ResourceList::default(), |sum, container| {
            sum.combine(of(&container.resources), u64::saturating_add)
        });
        self.init_steps(of).fold(sum, |sum, step| sum.combine(step, u64::max))
    }

    /// What the pod needs while each init container starts: the container's own amounts, and those of all sidecars
    /// that were started before it.
    fn init_steps(&self, of: impl Fn(&Requirements) -> ResourceList) -> impl Iterator<Item = ResourceList> {
        self.init
            .iter()
            .scan(ResourceList::default(), move |sidecars, container| {
                let step = sidecars.combine(of(&container.resources), u64::saturating_add);
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

/// A limit without a request is also the request (`SetDefaults_Pod`, kubernetes `pkg/apis/core/v1/defaults.go`).
pub(super) fn with_requests(resources: Requirements) -> Requirements {
    Requirements {
        requests: resources.requests.or(resources.limits),
        ..resources
    }
}
