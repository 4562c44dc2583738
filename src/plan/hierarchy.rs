//! The values that every cgroup of a pod must hold.
//!
//! Input: a pod, the requirements decided for its containers, and the node's traits. Output: a [`Hierarchy`] with the
//! shares and limits of the pod's cgroup and of each container that runs for the pod's whole life. A hierarchy answers
//! two questions: what a pod that is [created](Hierarchy::created) with these requirements holds, and which of these
//! values the agent has a reason to [write](Hierarchy::wanted). The difference is undeclared limits: they are unbounded
//! in a new pod, and the agent does not change the value that another process has written.
//!
//! The rules are the kubelet's: `ResourceConfigForPod` (`pkg/kubelet/cm/helpers_linux.go`) for the pod,
//! `generateLinuxContainerResources` (`pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`) for containers.
//!
//! An [`EffectivePod`] holds a pod's resources as the API server stored them: with its defaults, with the decided
//! amounts, and summed up like the kubelet does. It contains no cgroups.

use std::collections::BTreeMap;

use crate::model::objects::{ContainerStatus, Pod};
use crate::model::{
    Bytes, CgroupVersion, ContainerName, CpuMax, CpuShares, CriResources, DEFAULT_CFS_PERIOD_US, Driver,
    KubeletVersion, MemoryLimit, MilliCpu, NamedRequirements, NodeTraits, Part, PodAmounts, PodTree, PodValues,
    QosClass, Requirements, Resource, ResourceList, Setting, Settings, Target, WeightFormula, init_steps, total,
};

use super::shrink::Holds;

/// A declared limit that bounds nothing: that of a container that is kept without one.
const UNBOUNDED: Bytes = Bytes::new(u64::MAX);

/// The shares and limits of one cgroup. An absent limit is undeclared. A limit that is set is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// The share of the parent's cpu time when it is scarce. `None` if the kubelet alone decides about the shares: those of a
    /// container without cpu amounts of its own follow the pod's limit when the container starts, and are the least after a resize
    /// of the pod (`updatePodContainerResources`, `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).
    pub shares: Option<CpuShares>,
    pub cpu_limit: Option<MilliCpu>,
    /// Whether the runtime writes a quota to the file as it is, although systemd rounds it.
    pub exact_quota: bool,
    pub memory_limit: Option<Bytes>,
    /// The period of the quota in microseconds. `None` if the kubelet enforces no quota for any limit.
    pub period_us: Option<u64>,
}

/// The shares and limits of all cgroups of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// The class, which decides where the pod's cgroup is. No resize changes the class.
    pub qos: QosClass,
    pub pod: Allowance,
    /// By name, regular containers in the spec's order, then sidecars. Other init containers have ended before a resize,
    /// and count for the pod only.
    pub containers: Vec<(ContainerName, Allowance)>,
    /// The pod's own memory limit, which bounds each container and their sum.
    own_memory_limit: Option<Bytes>,
    traits: NodeTraits,
}

/// The shares and limits of a pod's cgroups once its containers have the requirements in `targets`. An absent container
/// has those of its spec. The API server's defaults need not be filled in.
pub fn hierarchy(pod: &Pod, targets: &PodAmounts, traits: &NodeTraits) -> Hierarchy {
    let effective = EffectivePod::new(pod, targets, traits.kubelet);
    let containers = effective.running().map(|one| {
        (
            ContainerName::from(one.name),
            container_allowance(one, &effective, traits),
        )
    });
    Hierarchy {
        qos: effective.qos,
        pod: pod_allowance(&effective),
        containers: containers.collect(),
        own_memory_limit: effective.pod_level.limits.nonzero().memory,
        traits: *traits,
    }
}

/// The requirements in force as the kubelet reports them, for the containers that it reports. The cgroups of a running pod
/// may differ from its spec until a resize is done.
pub fn in_force(pod: &Pod) -> PodAmounts {
    let named = |status: &ContainerStatus| Some(NamedRequirements::new(&status.name, status.resources?));
    pod.statuses().filter_map(named).collect()
}

fn pod_allowance(pod: &EffectivePod<'_>) -> Allowance {
    let shares = match pod.qos {
        QosClass::Guaranteed | QosClass::Burstable => pod.requests().cpu,
        QosClass::BestEffort => None,
    };
    let all = pod.limits();
    let declared = ResourceList::from_fn(|resource| match pod.qos {
        QosClass::Guaranteed => all.get(resource),
        QosClass::Burstable => all.get(resource).filter(|_| pod.declares(resource)),
        QosClass::BestEffort => None,
    });
    Allowance::new(shares, declared)
}

fn container_allowance(container: &Part<'_>, pod: &EffectivePod<'_>, traits: &NodeTraits) -> Allowance {
    let own = container.resources;
    // The pod-level limit bounds a container without a limit of its own, in the container's cgroup.
    let limits = own.limits.nonzero().or(pod.pod_level.limits);
    let counts = |cpu: &MilliCpu| !cpu.is_zero() || traits.kubelet >= KubeletVersion::ZERO_REQUEST_IS_LEAST;
    let shares = own.requests.cpu.filter(counts).or(limits.cpu);
    let mut allowance = Allowance::new(shares, limits.nonzero());
    if pod.object.resizable_pod_level().is_some() && own.requests.or(own.limits).cpu.is_none() {
        allowance.shares = None;
    }
    allowance
}

impl Hierarchy {
    /// Raises the pod's cpu limit until a kubelet that does not know of the resize can start every container again. The
    /// kubelet starts a container with what it [reports](in_force), or else with the spec. On cgroup v1 the kernel
    /// refuses a quota above the parent's (`__cfs_schedulable`, `kernel/sched/core.c`), so the container would not
    /// start. On v2 the lower quota binds.
    #[must_use]
    pub fn admitting(mut self, pod: &Pod) -> Self {
        if let (CgroupVersion::V1, Some(limit)) = (self.traits.version, &mut self.pod.cpu_limit) {
            let started = EffectivePod::new(pod, &in_force(pod), self.traits.kubelet);
            let containers = started.containers.iter();
            let limits = containers.filter_map(|one| container_allowance(one, &started, &self.traits).cpu_limit);
            *limit = limits.fold(*limit, MilliCpu::max);
        }
        self
    }

    /// Keeps memory limits that must not come down yet. The pod's limit rises by the same amount as its containers', up
    /// to the pod's own limit.
    #[must_use]
    pub fn keeping(mut self, holds: &Holds) -> Self {
        let bytes = |limit: &MemoryLimit| limit.bounded().unwrap_or(UNBOUNDED);
        let ceiling = self.own_memory_limit.unwrap_or(UNBOUNDED);
        let mut more = Bytes::ZERO;
        for (name, allowance) in &mut self.containers {
            let held = holds.get(&Target::Container(name.clone())).map(bytes);
            if let (Some(limit), Some(held)) = (&mut allowance.memory_limit, held.map(|held| held.min(ceiling)))
                && *limit < held
            {
                more = more.saturating_add(held.saturating_sub(*limit));
                *limit = held;
            }
        }
        if let Some(limit) = &mut self.pod.memory_limit {
            let held = holds.get(&Target::Pod).map_or(*limit, bytes);
            *limit = limit.saturating_add(more).max(held).min(ceiling.max(*limit));
        }
        self
    }

    /// Takes the periods of the cgroups that exist, and drops quotas that the kubelet does not enforce.
    #[must_use]
    pub fn beside(mut self, held: &PodTree, enforced: impl Fn(&Target) -> bool) -> Self {
        let period = |target: &Target| {
            let standing = held.get(target).and_then(Settings::cpu_max);
            enforced(target).then(|| standing.map_or(DEFAULT_CFS_PERIOD_US, |standing| standing.period_us))
        };
        self.pod.period_us = period(&Target::Pod);
        for (name, allowance) in &mut self.containers {
            allowance.period_us = period(&Target::Container(name.clone()));
        }
        self
    }

    /// Takes over whether the runtime rounds quotas as systemd does, from containers whose files show it beside the limits here
    /// or those `in_force`.
    #[must_use]
    pub fn rounding_like(mut self, held: &PodTree, in_force: &Self) -> Self {
        for ((name, allowance), (_, before)) in self.containers.iter_mut().zip(&in_force.containers) {
            let Some(held) = held.containers.get(name).and_then(Settings::cpu_max) else {
                continue;
            };
            allowance.exact_quota = [allowance.cpu_limit, before.cpu_limit].into_iter().any(|limit| {
                let exact = CpuMax::of_limit(limit, held.period_us);
                exact == held && exact.systemd_rounded() != exact
            });
        }
        self
    }

    /// The values of every file in a pod that is created like this, and of the specs that its runtime has stored; without the shares
    /// that a resize by the kubelet takes away.
    pub fn created(&self) -> PodValues {
        self.values(true)
    }

    /// The values that the agent has a reason to write: all but undeclared limits, which the kubelet leaves alone too.
    pub fn wanted(&self) -> PodValues {
        self.values(false)
    }

    /// With `undeclared` as [`Self::created`], else as [`Self::wanted`].
    pub(super) fn values(&self, undeclared: bool) -> PodValues {
        let settings = |allowance: &Allowance, formula| allowance.settings(formula, &self.traits, undeclared);
        // The kubelet writes the pod's cgroup itself, with its own formula (`getCPUWeight`,
        // `pkg/kubelet/cm/cgroup_manager_linux.go`).
        let mut values = PodValues::default();
        values.tree.pod = settings(&self.pod, WeightFormula::Linear);
        for (name, allowance) in &self.containers {
            let files = settings(allowance, self.traits.container_weight);
            values.tree.containers.insert(name.clone(), files);
            values.specs.insert(name.clone(), allowance.spec(undeclared));
        }
        values
    }
}

impl Allowance {
    /// The shares for this much cpu, and these declared limits, as a kubelet enforces them.
    fn new(shares: Option<MilliCpu>, limits: ResourceList) -> Self {
        Self {
            shares: Some(shares.unwrap_or_default().into()),
            cpu_limit: limits.cpu,
            exact_quota: false,
            memory_limit: limits.memory,
            period_us: Some(DEFAULT_CFS_PERIOD_US),
        }
    }

    /// The values of the cgroup's files. With `undeclared`, undeclared limits are unbounded, else they are left out.
    fn settings(&self, formula: WeightFormula, traits: &NodeTraits, undeclared: bool) -> Settings {
        let (cpu, memory) = self.limits(undeclared);
        // systemd keeps whole percents of a cpu. Kubelets and runtimes that use systemd write the same to the file
        // (`addCPUQuota`, opencontainers/cgroups `systemd/common.go`), runc before 1.3 the exact quota.
        let cpu = cpu.map(|exact| match traits.driver {
            Driver::Systemd if !self.exact_quota => exact.systemd_rounded(),
            Driver::Systemd | Driver::Cgroupfs => exact,
        });
        let shares = self.shares;
        let memory = memory.map(|limit| limit.in_pages(traits.page));
        let settings = match traits.version {
            CgroupVersion::V2 => [
                shares.map(|shares| Setting::CpuWeight(formula.weight(shares))),
                cpu.map(Setting::CpuMax),
                memory.map(Setting::MemoryMax),
                None,
            ],
            CgroupVersion::V1 => [
                shares.map(Setting::CpuShares),
                cpu.map(|cpu| Setting::CfsQuota(cpu.quota)),
                cpu.map(|cpu| Setting::CfsPeriod(cpu.period_us)),
                memory.map(Setting::MemoryLimit),
            ],
        };
        settings.into_iter().flatten().collect()
    }

    /// The kubelet's request to the runtime: exact amounts, because the runtime rounds when it writes files.
    fn spec(&self, undeclared: bool) -> CriResources {
        let (cpu, memory) = self.limits(undeclared);
        CriResources::new(self.shares, cpu, memory)
    }

    /// None if a limit is undeclared, unless `undeclared`, or if the kubelet enforces no quota.
    fn limits(&self, undeclared: bool) -> (Option<CpuMax>, Option<MemoryLimit>) {
        let period = self.period_us.filter(|_| undeclared || self.cpu_limit.is_some());
        let memory = self.memory_limit.map(|limit| MemoryLimit::of_bytes(limit.get()));
        let cpu = period.map(|period| CpuMax::of_limit(self.cpu_limit, period));
        (cpu, memory.or(undeclared.then_some(MemoryLimit::Max)))
    }
}

/// A pod's resources, defaults and decided amounts included.
#[derive(Debug, Clone)]
struct EffectivePod<'a> {
    object: &'a Pod,
    qos: QosClass,
    /// Regular containers, then init containers, both in the spec's order.
    containers: Vec<Part<'a>>,
    /// Pod-level requests and limits. Unset if the pod has none, or if the kubelet does not know them.
    pod_level: Requirements,
    kubelet: KubeletVersion,
}

impl<'a> EffectivePod<'a> {
    /// Fills in the API server's defaults, then puts the `targets` in place of their containers' requirements.
    ///
    /// The order matters: the API server fills in defaults when the pod is created, so neither the class nor pod-level
    /// requests follow a later resize of the containers.
    fn new(pod: &'a Pod, targets: &PodAmounts, kubelet: KubeletVersion) -> Self {
        let defaulted = pod.parts(PodAmounts::NONE).map(|declared| Part {
            resources: declared.resources.with_requests(),
            ..declared
        });
        let mut effective = Self {
            object: pod,
            qos: QosClass::BestEffort,
            containers: defaulted.collect(),
            pod_level: Requirements::default(),
            kubelet,
        };
        if let (true, Some(pod_level)) = (
            kubelet >= KubeletVersion::POD_LEVEL_RESOURCES,
            pod.pod_level_in(targets),
        ) {
            effective.pod_level = effective.defaulted_pod_level(pod_level);
        }
        effective.qos = pod.status.qos_class.unwrap_or_else(|| effective.computed_qos());
        for container in &mut effective.containers {
            if let Some(target) = targets.container(container.name) {
                container.resources = target.with_requests();
            }
        }
        effective
    }

    /// `defaultPodRequests` (kubernetes `pkg/apis/core/v1/defaults.go`): if there is any pod-level limit, an unset request
    /// becomes the sum of the containers' requests, or else the limit. A stored limit that is unset stays so until a resize.
    fn defaulted_pod_level(&self, pod_level: Requirements) -> Requirements {
        if pod_level.limits.is_empty() {
            return pod_level;
        }
        let containers = self.total(|container| container.requests);
        pod_level.filled_in(containers, ResourceList::default())
    }

    /// `ComputePodQOS` (kubernetes `pkg/apis/core/v1/helper/qos/qos.go`).
    fn computed_qos(&self) -> QosClass {
        if self.pod_level != Requirements::default() {
            return QosClass::of([&self.pod_level]);
        }
        QosClass::of(self.containers.iter().map(|container| &container.resources))
    }

    /// `PodRequests` (kubernetes `component-helpers/resource/helpers.go`): pod-level requests, else
    /// the containers', plus the overhead.
    fn requests(&self) -> ResourceList {
        let containers = self.total(|container| container.requests);
        let requests = self.pod_level.requests.or(containers);
        requests.combine(self.object.spec.overhead, u64::saturating_add)
    }

    /// `PodLimits` (as above), without zeros: only a limit that is set gets the overhead.
    fn limits(&self) -> ResourceList {
        let containers = self.total(|container| container.limits);
        let limits = self.pod_level.limits.or(containers).nonzero();
        let overhead = self.object.spec.overhead;
        let with_overhead = |limit: u64, resource| limit.saturating_add(overhead.amount(resource));
        ResourceList::from_fn(|resource| Some(with_overhead(limits.get(resource)?, resource)))
    }

    /// Whether the pod declares a limit of this resource: with a pod-level limit, or if every container has one
    /// (`ResourceConfigForPod`, kubernetes `pkg/kubelet/cm/helpers_linux.go`). Before 1.37 an init container needs one together
    /// with the sidecars started before it.
    fn declares(&self, resource: Resource) -> bool {
        let is_limited = |limits: ResourceList| limits.amount(resource) > 0;
        let each_counts = self.kubelet >= KubeletVersion::EACH_CONTAINER_DECLARES_LIMITS;
        let mut all = self.containers.iter();
        let mut each = || all.all(|one| (one.is_init && !each_counts) || is_limited(one.resources.limits));
        let init = || init_steps(self.containers.iter().copied(), |has| has.limits).all(is_limited);
        let init_counts = self.kubelet >= KubeletVersion::INIT_CONTAINERS_DECLARE_LIMITS;
        is_limited(self.pod_level.limits) || each() && (!init_counts || init())
    }

    /// Regular containers, then sidecars.
    fn running(&self) -> impl Iterator<Item = &Part<'a>> {
        self.containers.iter().filter(|container| container.runs)
    }

    /// The needs of all containers.
    fn total(&self, of: fn(&Requirements) -> ResourceList) -> ResourceList {
        total(self.containers.iter().copied(), of)
    }
}

/// The pod's requests once its containers have the requirements in `targets`:
/// `PodRequests`, defaults and overhead included.
pub fn pod_requests(pod: &Pod, targets: &PodAmounts, kubelet: KubeletVersion) -> ResourceList {
    EffectivePod::new(pod, targets, kubelet).requests()
}

/// The pod's requests and limits once its containers have the requirements in `targets`: `PodRequests` and `PodLimits`, defaults
/// and overhead included.
pub(super) fn pod_amounts(pod: &Pod, targets: &PodAmounts, kubelet: KubeletVersion) -> Requirements {
    let effective = EffectivePod::new(pod, targets, kubelet);
    Requirements {
        requests: effective.requests(),
        limits: effective.limits(),
    }
}

/// The memory requests of the pod and of its running containers once its containers have the requirements in `targets`, in
/// bytes; defaults included, and the pod's overhead.
pub(super) fn memory_requests(pod: &Pod, targets: &PodAmounts, kubelet: KubeletVersion) -> BTreeMap<Target, Bytes> {
    let effective = EffectivePod::new(pod, targets, kubelet);
    let of_container = |one: &Part<'_>| Some((Target::Container(one.name.into()), one.resources.requests.memory?));
    let of_pod = effective.requests().memory.map(|request| (Target::Pod, request));
    effective.running().filter_map(of_container).chain(of_pod).collect()
}
