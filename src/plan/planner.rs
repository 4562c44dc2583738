//! Makes a [`Plan`]: the steps from the observed values to the desired ones.
//!
//! Input: two [`PodValues`]. Output: ordered [`Step`]s. First every cgroup file in the order that `order` finds, because a
//! written value is in force at once. Then one update for each container whose runtime has stored another spec, so that no
//! later update of the runtime restores the old values. With systemd, a plan sets the pod's files through the properties of
//! its slice. All containers are one transaction. To undo a plan, plan back to the values that were observed before it.

use crate::model::{
    CgroupVersion, Change, ControlFile, CpuMax, CpuQuota, CpuShares, CriResources, DEFAULT_CFS_PERIOD_US, Driver,
    MemoryLimit, NodeTraits, PageSize, PodTree, PodValues, Resource, Setting, Settings, Step, Target,
};

use super::order::{Write, edges, ordered_writes};

/// Ordered steps. Only the planner makes one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
}

/// There is no plan: the v1 kernel would refuse the desired values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "container {container}: quota and period {wanted} exceed its pod's {pod}, which the kernel refuses: the pod's limit has \
     to grow as well"
)]
pub struct PlanError {
    pub container: String,
    /// The container's quota and period, in microseconds.
    wanted: Setting,
    /// The pod's quota and period, in microseconds.
    pod: Setting,
}

impl Plan {
    /// The steps from `observed` to `desired`.
    ///
    /// Values are compared by what they mean to the kernel. The plan leaves out files and containers that do not exist, unknown
    /// stored specs, and everything that `desired` does not set. A plan from where another plan ended early completes it. After
    /// all steps a new plan is empty.
    ///
    /// Errors: [`PlanError`] if the v1 kernel would refuse the desired values.
    pub fn between(observed: &PodValues, desired: &PodValues, traits: &NodeTraits) -> Result<Self, PlanError> {
        let mut plan = Self::of_files(&observed.tree, &desired.tree, traits)?;
        let specs = desired.specs.iter();
        let updates =
            specs.filter_map(|(name, wanted)| spec_step(name, observed.specs.get(name)?, wanted, traits.page));
        plan.steps.extend(updates);
        Ok(plan)
    }

    /// The steps of [`Self::between`] for the files alone.
    ///
    /// Errors: as there.
    pub fn of_files(observed: &PodTree, desired: &PodTree, traits: &NodeTraits) -> Result<Self, PlanError> {
        let desired = desired.in_pages(traits.page);
        if traits.version == CgroupVersion::V1 {
            check_quotas(observed, &desired)?;
        }
        let writes = ordered_writes(observed, &desired, traits.page);
        let steps = match traits.driver {
            Driver::Cgroupfs => writes.into_iter().map(file_step).collect(),
            Driver::Systemd => through_systemd(&writes, observed.pod.clone()),
        };
        Ok(Self { steps })
    }

    /// The steps of [`Self::of_files`] once the runtime has got the specs of `desired`. It may have written their quotas as they are,
    /// although systemd rounds them: crun into its inner cgroup, runc before 1.3 into the container's.
    ///
    /// Errors: as there.
    pub fn after_update(observed: &PodTree, desired: &PodValues, traits: &NodeTraits) -> Result<Self, PlanError> {
        let mut tree = desired.tree.clone();
        for (name, spec) in desired.specs.iter().filter(|(_, spec)| spec.cpu_quota.is_some()) {
            let (target, exact) = (Target::Container(name.clone()), meaning(spec, traits.page).1);
            let held = observed.get(&target).filter(|held| held.cpu_max() == Some(exact));
            for setting in held.into_iter().flat_map(Settings::iter) {
                if setting.quota().is_some() {
                    tree.set(&target, setting);
                }
            }
        }
        Self::of_files(observed, &tree, traits)
    }
}

/// Refuses desired values in which a container's quota is above its pod's, unless it is so already.
fn check_quotas(observed: &PodTree, desired: &PodTree) -> Result<(), PlanError> {
    let end = observed.clone().overlaid(desired);
    let broken = edges(&end).find(|edge| edge.resource == Resource::Cpu && !edge.holds(&end) && edge.holds(observed));
    let error = broken.and_then(|edge| {
        Some(PlanError {
            container: edge.container.to_owned(),
            wanted: end.containers.get(edge.container)?.cpu_max().map(Setting::CpuMax)?,
            pod: end.pod.cpu_max().map(Setting::CpuMax)?,
        })
    });
    error.map_or(Ok(()), Err)
}

fn file_step(Write { target, from, to }: Write) -> Step {
    Step::of_file(target, from, to)
}

/// Combines consecutive writes to the pod's files into one change of its unit. `pod` is what the pod's files hold before.
///
/// Containers' scopes belong to the runtime, which sets their properties when its stored spec is updated.
fn through_systemd(writes: &[Write], mut pod: Settings) -> Vec<Step> {
    let in_unit = |write: &Write| write.target == Target::Pod && is_unit_property(write.to.file());
    let mut steps = Vec::with_capacity(writes.len());
    for run in writes.chunk_by(|one, next| in_unit(one) && in_unit(next)) {
        if run.iter().all(in_unit) {
            steps.extend(unit_steps(run.iter().map(|write| write.to).collect(), &pod));
        } else {
            steps.extend(run.iter().cloned().map(file_step));
        }
        for write in run.iter().filter(|write| write.target == Target::Pod) {
            pod.insert(write.to);
        }
    }
    steps
}

/// systemd has no property for v1's limit of memory and swap, and none for bursts.
fn is_unit_property(file: ControlFile) -> bool {
    !matches!(
        file,
        ControlFile::MemswLimit | ControlFile::CpuMaxBurst | ControlFile::CfsBurst
    )
}

/// The change of the pod's unit to these values, and writes of the files in which systemd's rounding leaves another value.
fn unit_steps(mut to: Settings, pod: &Settings) -> impl Iterator<Item = Step> {
    // One property holds both of v1's files, so the agent sets both together.
    for (file, partner) in [
        (ControlFile::CfsQuota, ControlFile::CfsPeriod),
        (ControlFile::CfsPeriod, ControlFile::CfsQuota),
    ] {
        if let (Some(_), None, Some(unchanged)) = (to.get(file), to.get(partner), pod.get(partner)) {
            to.insert(unchanged);
        }
    }
    let from = to.iter().filter_map(|setting| pod.get(setting.file())).collect();
    let kept = systemd_keeps(&to);
    let exact = |setting: Setting| {
        let rounded = kept.get(setting.file()).filter(|rounded| *rounded != setting)?;
        Some(Step::of_file(Target::Pod, rounded, setting))
    };
    let exact: Vec<_> = to.iter().filter_map(exact).collect();
    let unit = Step {
        target: Target::Pod,
        change: Change::Unit { from, to },
    };
    std::iter::once(unit).chain(exact)
}

/// The values that systemd writes to the files for these properties: it keeps quotas in whole percents.
pub fn systemd_keeps(told: &Settings) -> Settings {
    let rounded = told.cpu_max().map(CpuMax::systemd_rounded);
    told.iter()
        .map(|setting| match (setting, rounded) {
            (Setting::CpuMax(_), Some(rounded)) => Setting::CpuMax(rounded),
            (Setting::CfsQuota(_), Some(rounded)) => Setting::CfsQuota(rounded.quota),
            (other, _) => other,
        })
        .collect()
}

/// The update of a container's stored spec: the fields whose values differ in meaning from the wanted ones. Quota and period change
/// together.
pub fn spec_step(container: &str, stored: &CriResources, wanted: &CriResources, page: PageSize) -> Option<Step> {
    let (mut from, mut to) = (*stored, *wanted);
    let [(old_shares, old_cpu, old_memory), (shares, cpu, memory)] = [stored, wanted].map(|spec| meaning(spec, page));
    for spec in [&mut from, &mut to] {
        if wanted.cpu_shares.is_none() || old_shares == shares {
            spec.cpu_shares = None;
        }
        if wanted.cpu_quota.is_none() || old_cpu == cpu {
            (spec.cpu_quota, spec.cpu_period) = (None, None);
        }
        if wanted.memory_limit_in_bytes.is_none() || old_memory == memory {
            spec.memory_limit_in_bytes = None;
        }
    }
    (to != CriResources::default()).then(|| Step {
        target: Target::Container(container.into()),
        change: Change::Spec { from, to },
    })
}

/// The kernel's values for a stored spec.
fn meaning(spec: &CriResources, page: PageSize) -> (Option<CpuShares>, CpuMax, MemoryLimit) {
    // Zero and less means "not specified" or unbounded.
    let positive = |number: Option<i64>| u64::try_from(number?).ok().filter(|number| *number > 0);
    let cpu = CpuMax {
        quota: positive(spec.cpu_quota).map_or(CpuQuota::Max, CpuQuota::Micros),
        period_us: positive(spec.cpu_period).unwrap_or(DEFAULT_CFS_PERIOD_US),
    };
    let memory = positive(spec.memory_limit_in_bytes).map_or(MemoryLimit::Max, MemoryLimit::of_bytes);
    (
        positive(spec.cpu_shares).map(CpuShares::new),
        cpu,
        memory.in_pages(page),
    )
}
