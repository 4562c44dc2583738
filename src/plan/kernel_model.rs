//! What the kernel, systemd and a runtime do with a step: a model to run plans on.
//!
//! v1 refuses what the real one refuses; v2 refuses nothing, but a memory limit below what is used would kill, so the
//! model refuses that in its place.

use std::collections::BTreeMap;

use crate::model::{
    CgroupVersion, Change, ContainerName, ControlFile, CpuMax, CpuQuota, CpuShares, CriResources, Driver, MemoryLimit,
    NodeTraits, PodTree, PodValues, Setting, Settings, Step, Target,
};

use super::planner::systemd_keeps;

/// The error number of a refused write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Errno {
    Einval,
    Ebusy,
}

/// A node with one pod on it.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) state: PodValues,
    traits: NodeTraits,
    /// Bytes of memory that cannot be reclaimed, by container.
    usage: BTreeMap<ContainerName, u64>,
}

impl Machine {
    pub(super) fn new(state: PodValues, traits: NodeTraits, usage: BTreeMap<ContainerName, u64>) -> Self {
        Self { state, traits, usage }
    }

    pub(super) fn run(&mut self, step: &Step) -> Result<(), Errno> {
        match &step.change {
            Change::File { to, .. } => self.write(&step.target, &Settings::from_iter([*to])),
            Change::Unit { to, .. } => self.write(&step.target, &systemd_keeps(to)),
            Change::Spec { to, .. } => self.update(&step.target, to),
            // Between the API server and the kubelet: no cgroup changes.
            Change::Resize { .. } => Ok(()),
        }
    }

    /// Writes files that their writer knows how to order among each other.
    fn write(&mut self, target: &Target, files: &Settings) -> Result<(), Errno> {
        let before = self.state.tree.clone();
        for setting in files.iter() {
            self.state.tree.set(target, setting.in_pages(self.traits.page));
        }
        let verdict = self.check(target);
        if verdict.is_err() {
            self.state.tree = before;
        }
        verdict
    }

    fn check(&self, target: &Target) -> Result<(), Errno> {
        let tree = &self.state.tree;
        let cgroup = tree.get(target).expect("steps are for cgroups that are there");
        let usage = match target {
            Target::Pod => self.usage.values().sum(),
            Target::Container(name) => self.usage[name],
        };
        if cgroup
            .memory_limit()
            .is_some_and(|limit| limit < MemoryLimit::Bytes(usage))
        {
            return Err(Errno::Ebusy);
        }
        let memsw = cgroup.get(ControlFile::MemswLimit).and_then(Setting::memory);
        if memsw.is_some_and(|memsw| Some(memsw) < cgroup.memory_limit()) {
            return Err(Errno::Einval);
        }
        let bound = cgroup.cpu_max().expect("every tree has quotas");
        let burst = cgroup.burst().and_then(Setting::burst_us).unwrap_or(0);
        let in_range = !matches!(bound.quota, CpuQuota::Micros(quota) if quota < burst.max(1000))
            && (1000..=1_000_000).contains(&bound.period_us);
        let within_pod = tree.containers.values().all(|container| self.quota_fits(container));
        if in_range && within_pod {
            Ok(())
        } else {
            Err(Errno::Einval)
        }
    }

    /// `tg_cfs_schedulable_down`: on v1 a child that has a quota must not have a larger one than its parent.
    fn quota_fits(&self, container: &Settings) -> bool {
        let pod = self.state.tree.pod.cpu_max().and_then(kernel_ratio);
        let own = container.cpu_max().and_then(kernel_ratio);
        self.traits.version == CgroupVersion::V2 || own.zip(pod).is_none_or(|(own, pod)| own <= pod)
    }

    /// containerd merges the fields into the stored spec, has the runtime write all of it, and gives no extra swap.
    fn update(&mut self, target: &Target, fields: &CriResources) -> Result<(), Errno> {
        let Target::Container(name) = target else {
            panic!("only containers have a stored spec");
        };
        let stored = self.state.specs.get_mut(name).expect("only known specs are updated");
        *stored = CriResources {
            cpu_shares: fields.cpu_shares.or(stored.cpu_shares),
            cpu_quota: fields.cpu_quota.or(stored.cpu_quota),
            cpu_period: fields.cpu_period.or(stored.cpu_period),
            memory_limit_in_bytes: fields.memory_limit_in_bytes.or(stored.memory_limit_in_bytes),
        };
        let spec = *stored;
        let there = self.state.tree.get(target).cloned().unwrap_or_default();
        let written = self.files_of(&spec);
        self.write(
            target,
            &written
                .iter()
                .filter(|setting| there.get(setting.file()).is_some())
                .collect(),
        )
    }

    fn files_of(&self, spec: &CriResources) -> Settings {
        let mut files = Settings::default();
        if let Some(shares) = spec.cpu_shares {
            let shares = CpuShares::new(shares.unsigned_abs());
            files.insert(Setting::CpuShares(shares));
            files.insert(Setting::CpuWeight(self.traits.container_weight.weight(shares)));
        }
        if let (Some(quota), Some(period)) = (spec.cpu_quota, spec.cpu_period) {
            let quota = u64::try_from(quota).map_or(CpuQuota::Max, CpuQuota::Micros);
            let exact = CpuMax {
                quota,
                period_us: period.unsigned_abs(),
            };
            let bound = match self.traits.driver {
                Driver::Cgroupfs => exact,
                Driver::Systemd => exact.systemd_rounded(),
            };
            files.insert(Setting::CpuMax(bound));
            files.insert(Setting::CfsQuota(bound.quota));
            files.insert(Setting::CfsPeriod(bound.period_us));
        }
        if let Some(limit) = spec.memory_limit_in_bytes {
            let limit = u64::try_from(limit).map_or(MemoryLimit::Max, MemoryLimit::Bytes);
            files.insert(Setting::MemoryMax(limit));
            files.insert(Setting::MemoryLimit(limit));
            files.insert(Setting::MemswLimit(limit));
        }
        files
    }
}

/// `to_ratio` (kernel/sched/core.c): quota by period with 20 fractional bits, rounded down; none if unbounded.
fn kernel_ratio(bound: CpuMax) -> Option<u64> {
    match bound.quota {
        CpuQuota::Max => None,
        CpuQuota::Micros(quota) => Some((quota << 20) / bound.period_us),
    }
}

#[test]
fn the_model_refuses_as_the_kernel_did() {
    let traits = super::tests::traits(CgroupVersion::V1, Driver::Cgroupfs);
    let refused = |pod: (u64, u64), container: (u64, u64), target: Target, write: Setting| {
        let cgroup = |(quota, period)| {
            Settings::from_iter([
                Setting::CfsQuota(CpuQuota::Micros(quota)),
                Setting::CfsPeriod(period),
                Setting::CfsBurst(quota / 2),
                Setting::MemoryLimit(MemoryLimit::Bytes(64 << 20)),
                Setting::MemswLimit(MemoryLimit::Bytes(64 << 20)),
            ])
        };
        let tree = PodTree {
            pod: cgroup(pod),
            containers: [("c".into(), cgroup(container))].into(),
        };
        let state = PodValues {
            tree,
            ..PodValues::default()
        };
        let mut machine = Machine::new(state, traits, [("c".into(), 40 << 20)].into());
        machine.write(&target, &Settings::from_iter([write])).err()
    };
    let quota = |micros| Setting::CfsQuota(CpuQuota::Micros(micros));
    let container = || Target::Container("c".into());
    let even = (100_000, 100_000);
    assert_eq!(refused(even, even, container(), quota(200_000)), Some(Errno::Einval));
    assert_eq!(refused(even, even, Target::Pod, quota(50_000)), Some(Errno::Einval));
    assert_eq!(
        refused(
            (200_000, 100_000),
            (200_000, 100_000),
            container(),
            Setting::CfsPeriod(50_000)
        ),
        Some(Errno::Einval)
    );
    assert_eq!(
        refused((10_000, 100_000), (3333, 33_333), container(), quota(3334)),
        Some(Errno::Einval)
    );
    assert_eq!(
        refused((10_000, 100_000), (1000, 33_333), container(), quota(3333)),
        None
    );
    assert_eq!(refused(even, even, container(), quota(999)), Some(Errno::Einval));
    assert_eq!(
        refused(even, even, container(), Setting::CfsBurst(100_001)),
        Some(Errno::Einval)
    );
    assert_eq!(refused(even, even, container(), Setting::CfsBurst(100_000)), None);
    assert_eq!(refused(even, even, container(), quota(49_999)), Some(Errno::Einval));
    assert_eq!(refused(even, even, container(), quota(50_000)), None);
    assert_eq!(refused(even, even, container(), Setting::CfsQuota(CpuQuota::Max)), None);
    let limit = |mebibytes: u64| MemoryLimit::Bytes(mebibytes << 20);
    assert_eq!(
        refused(even, even, container(), Setting::MemoryLimit(limit(20))),
        Some(Errno::Ebusy)
    );
    assert_eq!(
        refused(even, even, container(), Setting::MemoryLimit(limit(65))),
        Some(Errno::Einval)
    );
    assert_eq!(
        refused(even, even, container(), Setting::MemswLimit(limit(63))),
        Some(Errno::Einval)
    );
    assert_eq!(refused(even, even, container(), Setting::MemswLimit(limit(65))), None);
}
