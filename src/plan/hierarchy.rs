//! What every cgroup of a pod must hold.
//!
//! In come a pod, the requirements decided for its containers and what the node is like; out comes a [`Hierarchy`]:
//! shares and limits of the pod's cgroup and of each container that runs for the pod's whole life. It is asked for
//! two things: what a pod created with these requirements [would hold](Hierarchy::created), and which of those values
//! there is a [reason to write](Hierarchy::wanted). The difference is undeclared limits: they are unbounded in a new
//! pod, and afterwards whatever somebody made them, which is not ours to change.
//!
//! Rules are the kubelet's: `ResourceConfigForPod` (`pkg/kubelet/cm/helpers_linux.go`) for the pod,
//! `generateLinuxContainerResources` (`pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`) for containers.

use crate::model::objects::Pod;
use crate::model::{
    Bytes, CgroupVersion, CpuMax, CpuQuota, CpuShares, CriResources, DEFAULT_CFS_PERIOD_US, Driver, MemoryLimit,
    MilliCpu, NamedRequirements, NodeTraits, PodTree, PodValues, QosClass, Resource, Setting, Settings, Target,
    WeightFormula,
};

use super::effective::{EffectiveContainer, EffectivePod};
use super::shrink::Holds;

/// A limit that is declared and lets everything through: of a container that is kept without one.
const UNBOUNDED: Bytes = Bytes::new(u64::MAX);

/// What one cgroup is given. An absent limit is undeclared; one that is there is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// The share of the parent's cpu time when it is scarce.
    pub shares: CpuShares,
    pub cpu_limit: Option<MilliCpu>,
    pub memory_limit: Option<Bytes>,
    /// The period of the quota in microseconds; `None` where no quota is enforced, whatever the limit is.
    pub period_us: Option<u64>,
}

/// A container and what its cgroup is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAllowance {
    /// The container's name in the pod spec.
    pub name: String,
    pub allowance: Allowance,
}

/// What all cgroups of a pod are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// The class, which decides where the pod's cgroup is. No resize changes it.
    pub qos: QosClass,
    pub pod: Allowance,
    /// Regular containers in the spec's order, then sidecars. Other init containers have ended by the time anything
    /// is resized; they count for the pod only.
    pub containers: Vec<ContainerAllowance>,
    /// The pod's own limit of memory, which no container and no sum of them exceeds.
    own_memory_limit: Option<Bytes>,
    traits: NodeTraits,
}

/// What the cgroups of `pod` are given once its containers have the requirements in `targets`; a container that is not
/// named there has those of its spec. Defaults the API server would fill in need not be there.
pub fn hierarchy(pod: &Pod, targets: &[NamedRequirements], traits: &NodeTraits) -> Hierarchy {
    let effective = EffectivePod::new(pod, targets, traits.kubelet);
    let sidecars = effective.init.iter().filter(|container| container.sidecar);
    let containers = effective
        .regular
        .iter()
        .chain(sidecars)
        .map(|container| ContainerAllowance {
            name: container.name.to_owned(),
            allowance: container_allowance(container, &effective, traits),
        })
        .collect();
    Hierarchy {
        qos: effective.qos,
        pod: pod_allowance(&effective),
        containers,
        own_memory_limit: effective.pod_level.limits.memory.filter(|memory| !memory.is_zero()),
        traits: *traits,
    }
}

/// The requirements in force as the kubelet reports them, for containers about which it does: what a running pod's
/// cgroups hold may differ from its spec until a resize is done.
pub fn in_force(pod: &Pod) -> Vec<NamedRequirements> {
    pod.statuses()
        .filter_map(|status| {
            let resources = status.resources?;
            Some(NamedRequirements {
                name: status.name.clone(),
                resources,
            })
        })
        .collect()
}

fn pod_allowance(pod: &EffectivePod<'_>) -> Allowance {
    let limits = pod.limits();
    let declared = |resource| match pod.qos {
        QosClass::Guaranteed => true,
        QosClass::Burstable => pod.declares(resource),
        QosClass::BestEffort => false,
    };
    let shares = match pod.qos {
        QosClass::Guaranteed | QosClass::Burstable => pod.requests().cpu.unwrap_or_default(),
        QosClass::BestEffort => MilliCpu::ZERO,
    };
    Allowance {
        shares: CpuShares::from(shares),
        cpu_limit: limits.cpu.filter(|cpu| declared(Resource::Cpu) && !cpu.is_zero()),
        memory_limit: limits
            .memory
            .filter(|memory| declared(Resource::Memory) && !memory.is_zero()),
        period_us: Some(DEFAULT_CFS_PERIOD_US),
    }
}

fn container_allowance(container: &EffectiveContainer<'_>, pod: &EffectivePod<'_>, traits: &NodeTraits) -> Allowance {
    let own = container.resources;
    // A container without a limit of its own is bound by the pod-level one, in its own cgroup.
    let cpu_limit = own.limits.cpu.filter(|cpu| !cpu.is_zero()).or(pod.pod_level.limits.cpu);
    let memory_limit = own
        .limits
        .memory
        .filter(|memory| !memory.is_zero())
        .or(pod.pod_level.limits.memory);
    let requested = own
        .requests
        .cpu
        .filter(|cpu| !cpu.is_zero() || traits.kubelet.zero_request_is_least());
    Allowance {
        shares: CpuShares::from(requested.or(cpu_limit).unwrap_or_default()),
        cpu_limit: cpu_limit.filter(|cpu| !cpu.is_zero()),
        memory_limit: memory_limit.filter(|memory| !memory.is_zero()),
        period_us: Some(DEFAULT_CFS_PERIOD_US),
    }
}

impl Hierarchy {
    /// The same with a cpu limit of the pod within which its kubelet, which was not asked, can start every container again:
    /// it does so with what it [reports](in_force), or else with the spec, and on cgroup v1 the kernel refuses a quota
    /// above the parent's (`__cfs_schedulable`, `kernel/sched/core.c`), so that the container would not start any more. On
    /// v2 the lower of both binds.
    #[must_use]
    pub fn admitting(mut self, pod: &Pod) -> Self {
        if let (CgroupVersion::V1, Some(limit)) = (self.traits.version, &mut self.pod.cpu_limit) {
            let started = EffectivePod::new(pod, &in_force(pod), self.traits.kubelet);
            let containers = started.regular.iter().chain(&started.init);
            let limits =
                containers.filter_map(|container| container_allowance(container, &started, &self.traits).cpu_limit);
            *limit = limits.fold(*limit, MilliCpu::max);
        }
        self
    }

    /// The same while limits of memory are kept where lower ones are wanted: the pod's is then higher by as much as its
    /// containers' are, but not above its own.
    #[must_use]
    pub fn keeping(mut self, holds: &Holds) -> Self {
        let bytes = |limit: &MemoryLimit| limit.bounded().unwrap_or(UNBOUNDED);
        let ceiling = self.own_memory_limit.unwrap_or(UNBOUNDED);
        let mut more = Bytes::ZERO;
        for ContainerAllowance { name, allowance } in &mut self.containers {
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

    /// The same for a pod that is there: with the periods that stand, and without quotas where none are enforced.
    #[must_use]
    pub fn beside(mut self, held: &PodTree, enforced: impl Fn(&Target) -> bool) -> Self {
        let period = |target: &Target| {
            let standing = held.get(target).and_then(Settings::cpu_max);
            enforced(target).then(|| standing.map_or(DEFAULT_CFS_PERIOD_US, |standing| standing.period_us))
        };
        self.pod.period_us = period(&Target::Pod);
        for container in &mut self.containers {
            container.allowance.period_us = period(&Target::Container(container.name.clone()));
        }
        self
    }

    /// What every file reads in a pod created like this, and what its runtime has stored.
    pub fn created(&self) -> PodValues {
        let mut state = self.state(|allowance, formula| allowance.all_settings(formula, &self.traits));
        for ContainerAllowance { name, allowance } in &self.containers {
            if let Some(spec) = state.specs.get_mut(name) {
                if let Some(period_us) = allowance.period_us {
                    spec.cpu_quota.get_or_insert(-1);
                    spec.cpu_period.get_or_insert(signed(period_us));
                }
                spec.memory_limit_in_bytes.get_or_insert(-1);
            }
        }
        state
    }

    /// The values there is a reason to write: everything but undeclared limits, which are kept as they are,
    /// like the kubelet keeps them.
    pub fn wanted(&self) -> PodValues {
        self.state(|allowance, formula| allowance.declared_settings(formula, &self.traits))
    }

    fn state(&self, settings: impl Fn(&Allowance, WeightFormula) -> Settings) -> PodValues {
        let named = |container: &ContainerAllowance| container.name.clone();
        let containers = self
            .containers
            .iter()
            .map(|container| {
                let formula = self.traits.container_weight;
                (named(container), settings(&container.allowance, formula))
            })
            .collect();
        let specs = self
            .containers
            .iter()
            .map(|container| (named(container), container.allowance.spec()));
        PodValues {
            // The kubelet writes the pod's cgroup itself, with its own formula (`getCPUWeight`,
            // `pkg/kubelet/cm/cgroup_manager_linux.go`).
            tree: PodTree {
                pod: settings(&self.pod, WeightFormula::Linear),
                containers,
            },
            specs: specs.collect(),
        }
    }
}

impl Allowance {
    /// Every file, undeclared limits unbounded, and no quota that is not enforced.
    fn all_settings(&self, formula: WeightFormula, traits: &NodeTraits) -> Settings {
        let cpu = self.cpu_max(traits.driver);
        let memory = MemoryLimit::of_limit(self.memory_limit).in_pages(traits.page);
        let mut settings = match traits.version {
            CgroupVersion::V2 => Settings::from_iter([
                Setting::CpuWeight(formula.weight(self.shares)),
                Setting::MemoryMax(memory),
            ]),
            CgroupVersion::V1 => Settings::from_iter([Setting::CpuShares(self.shares), Setting::MemoryLimit(memory)]),
        };
        match (cpu, traits.version) {
            (Some(cpu), CgroupVersion::V2) => settings.insert(Setting::CpuMax(cpu)),
            (Some(cpu), CgroupVersion::V1) => {
                settings.insert(Setting::CfsQuota(cpu.quota));
                settings.insert(Setting::CfsPeriod(cpu.period_us));
            }
            (None, _) => {}
        }
        settings
    }

    /// The files that have a reason: undeclared limits left out.
    fn declared_settings(&self, formula: WeightFormula, traits: &NodeTraits) -> Settings {
        self.all_settings(formula, traits)
            .iter()
            .filter(|setting| match setting {
                Setting::CpuMax(_) | Setting::CfsQuota(_) | Setting::CfsPeriod(_) => self.cpu_limit.is_some(),
                Setting::MemoryMax(_) | Setting::MemoryLimit(_) | Setting::MemswLimit(_) => self.memory_limit.is_some(),
                Setting::CpuWeight(_) | Setting::CpuShares(_) => true,
                Setting::MemoryHigh(_) | Setting::CpuMaxBurst(_) | Setting::CfsBurst(_) => false,
            })
            .collect()
    }

    /// systemd keeps whole percents of a cpu, and the kubelet and runtimes that drive it write the same to the file.
    fn cpu_max(&self, driver: Driver) -> Option<CpuMax> {
        let exact = CpuMax::with_period(self.cpu_limit, self.period_us?);
        Some(match driver {
            Driver::Cgroupfs => exact,
            Driver::Systemd => exact.systemd_rounded(),
        })
    }

    /// What the kubelet tells the runtime: exact, rounding is left to those who write files.
    /// Undeclared limits are not specified.
    fn spec(&self) -> CriResources {
        let cpu = self.period_us.map(|period| CpuMax::with_period(self.cpu_limit, period));
        let (quota, period) = match cpu {
            Some(CpuMax {
                quota: CpuQuota::Micros(micros),
                period_us,
            }) => (Some(signed(micros)), Some(signed(period_us))),
            _ => (None, None),
        };
        CriResources {
            cpu_shares: Some(signed(self.shares.get())),
            cpu_quota: quota,
            cpu_period: period,
            memory_limit_in_bytes: self.memory_limit.map(|limit| match MemoryLimit::of_bytes(limit.get()) {
                MemoryLimit::Max => -1,
                MemoryLimit::Bytes(bytes) => signed(bytes),
            }),
        }
    }
}

/// CRI's numbers are signed; no amount is beyond `i64`, and a quota that were is none the runtime could refuse more.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
