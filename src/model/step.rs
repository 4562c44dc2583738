//! The values of a pod's cgroups and of the runtime's stored specs; and one write of a plan: its target, its change, and the
//! interface that it uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::model::{
    Bytes, ContainerName, ControlFile, CpuMax, CpuQuota, CpuShares, MemoryLimit, PageSize, Requirements, Setting,
    Settings,
};

/// The interface that a step uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// A patch of the pod's `resize` subresource.
    Resize,
    /// `UpdateContainerResources`, which also changes the runtime's stored spec.
    Cri,
    /// One write to one cgroup file.
    Cgroup,
    /// `SetUnitProperties`, which also changes systemd's own record.
    Systemd,
}

/// The change that one step makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Change {
    File {
        from: Setting,
        to: Setting,
    },
    /// systemd's properties of a unit, as the files that they set. v1's quota and period change
    /// together: systemd keeps their ratio.
    Unit {
        from: Settings,
        to: Settings,
    },
    /// Requests and limits of a container in the pod spec, through the API server.
    Resize {
        from: Requirements,
        to: Requirements,
    },
    /// Fields of the runtime's stored spec. Only fields that change are set.
    Spec {
        from: CriResources,
        to: CriResources,
    },
}

/// One write of a plan.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{target} through {}: {change}", self.change.via())]
pub struct Step {
    pub target: Target,
    pub change: Change,
}

impl Step {
    /// The write of one file.
    pub fn of_file(target: Target, from: Setting, to: Setting) -> Self {
        let change = Change::File { from, to };
        Self { target, change }
    }
}

impl Change {
    /// Every cgroup file that this changes, with its present and its new value, in the order of the writes. v1's quota and period
    /// are written in the order in which the intermediate ratio is not below both ends: the pod's ratio would be below its
    /// containers' otherwise. `memory.high` goes up before its limit, and down after it.
    pub fn files(&self) -> Vec<(Setting, Setting)> {
        match self {
            Self::File { from, to } => vec![(*from, *to)],
            Self::Unit { from, to } => {
                let mut files: Vec<_> = to.iter().filter_map(|to| Some((from.get(to.file())?, to))).collect();
                files.sort_by_key(|(from, to)| comes_last(*from, *to));
                files
            }
            Self::Spec { .. } | Self::Resize { .. } => Vec::new(),
        }
    }

    /// Whether this changes cgroup files, directly or through systemd.
    pub const fn writes_cgroups(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Unit { .. })
    }

    /// The interface for this change.
    pub const fn via(&self) -> Via {
        match self {
            Self::File { .. } => Via::Cgroup,
            Self::Unit { .. } => Via::Systemd,
            Self::Spec { .. } => Via::Cri,
            Self::Resize { .. } => Via::Resize,
        }
    }

    /// The file, if this changes a single one.
    pub const fn file(&self) -> Option<ControlFile> {
        match self {
            Self::File { to, .. } => Some(to.file()),
            Self::Unit { .. } | Self::Spec { .. } | Self::Resize { .. } => None,
        }
    }

    /// The limit of memory, without swap, that this changes in a cgroup: the file, the present and the new limit.
    pub fn memory_limit(&self) -> Option<(ControlFile, MemoryLimit, MemoryLimit)> {
        let files = self.files().into_iter();
        let mut limits = files.filter(|(_, to)| to.file() != ControlFile::MemswLimit);
        limits.find_map(|(from, to)| Some((to.file(), from.memory()?, to.memory()?)))
    }

    /// The limit of memory, without swap, that this lowers in a cgroup: the present and the new limit.
    pub fn lowered_memory(&self) -> Option<(MemoryLimit, Bytes)> {
        let (_, from, to) = self.memory_limit()?;
        let lower = to.bounded().filter(|_| to < from)?;
        Some((from, lower))
    }

    /// Every value that this concerns, as text: its name, the present value, and the new one. `None` is an unset value.
    fn values(&self) -> Vec<(&'static str, Option<String>, Option<String>)> {
        let (from, to) = match self {
            Self::File { from, to } => return vec![(to.file().name(), Some(from.to_string()), Some(to.to_string()))],
            Self::Unit { from, to } => {
                let text = |settings: &Settings, file| settings.get(file).map(|setting| setting.to_string());
                let files: BTreeSet<_> = from.iter().chain(to.iter()).map(|setting| setting.file()).collect();
                let values = files.into_iter();
                return values
                    .map(|file| (file.name(), text(from, file), text(to, file)))
                    .collect();
            }
            Self::Spec { from, to } => (from.fields(), to.fields()),
            Self::Resize { from, to } => (from.fields(), to.fields()),
        };
        let both = from.into_iter().zip(to);
        both.map(|((name, from), (_, to))| (name, from, to)).collect()
    }

    /// The present and the new values as text: `cpu.max=20000 100000, memory.max=134217728`, or the value alone
    /// if this changes one file.
    pub fn texts(&self) -> (String, String) {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (name, from, to) in self.values() {
            let named = |value| match self {
                Self::File { .. } => value,
                _ => format!("{name}={value}"),
            };
            before.extend(from.map(named));
            after.extend(to.map(named));
        }
        (before.join(", "), after.join(", "))
    }
}

impl fmt::Display for Change {
    /// `cpu.weight 39 → 79`. Commas separate several values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_resize = matches!(self, Self::Resize { .. });
        let changes = self.values().into_iter().filter_map(|(name, from, to)| {
            let to = to.as_ref().filter(|_| !is_resize || from != to)?;
            Some(format!("{name} {} → {to}", from.as_deref().unwrap_or("unset")))
        });
        f.write_str(&changes.collect::<Vec<_>>().join(", "))
    }
}

/// Whether v1's quota or `memory.high` comes down.
fn comes_last(from: Setting, to: Setting) -> bool {
    match (from, to) {
        (Setting::CfsQuota(from), Setting::CfsQuota(to)) => to < from,
        (Setting::MemoryHigh(from), Setting::MemoryHigh(to)) => to < from,
        _ => false,
    }
}

/// A cgroup of one of the two levels that vscaled writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(tag = "level", content = "name", rename_all = "lowercase")]
pub enum Target {
    #[display("pod")]
    Pod,
    /// The cgroup of the container of that name.
    #[display("container {_0}")]
    Container(ContainerName),
}

impl From<Option<&str>> for Target {
    /// The cgroup of the container of that name, or without a name the pod's.
    fn from(container: Option<&str>) -> Self {
        container.map_or(Self::Pod, |name| Self::Container(name.into()))
    }
}

impl Target {
    /// The level in one word.
    pub const fn level(&self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Container(_) => "container",
        }
    }

    /// The container's name, if this is a container's cgroup.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Pod => None,
            Self::Container(name) => Some(name),
        }
    }
}

/// The settings of a pod's cgroup and of its containers' cgroups, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodTree {
    pub pod: Settings,
    /// The running containers' cgroups, with sidecars and without the sandbox.
    pub containers: BTreeMap<ContainerName, Settings>,
}

impl PodTree {
    /// The values of the cgroup of that target, if it exists.
    pub fn get(&self, target: &Target) -> Option<&Settings> {
        match target {
            Target::Pod => Some(&self.pod),
            Target::Container(name) => self.containers.get(name),
        }
    }

    /// The pod, then its containers.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        std::iter::once(Target::Pod).chain(self.containers.keys().cloned().map(Target::Container))
    }

    /// Sets a value, if that cgroup exists.
    pub fn set(&mut self, target: &Target, setting: Setting) {
        let cgroup = match target {
            Target::Pod => Some(&mut self.pod),
            Target::Container(name) => self.containers.get_mut(name),
        };
        if let Some(settings) = cgroup {
            settings.insert(setting);
        }
    }

    /// The values that the kernel keeps when the agent writes these.
    #[must_use]
    pub fn in_pages(&self, page: PageSize) -> Self {
        let containers = self.containers.iter();
        Self {
            pod: self.pod.in_pages(page),
            containers: containers
                .map(|(name, files)| (name.clone(), files.in_pages(page)))
                .collect(),
        }
    }

    /// These values, overwritten by those of `newer`. Drops cgroups that only `newer` has.
    #[must_use]
    pub fn overlaid(mut self, newer: &Self) -> Self {
        for target in newer.targets() {
            for setting in newer.get(&target).into_iter().flat_map(Settings::iter) {
                self.set(&target, setting);
            }
        }
        self
    }
}

/// The values of a pod's cgroups, and the runtime's stored specs of its containers: either the observed
/// values or the desired ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodValues {
    /// The cgroup files. An absent observed value does not exist. The agent leaves a file without a desired value alone.
    pub tree: PodTree,
    /// The runtime's stored specs by container name. An absent observed spec is unknown.
    pub specs: BTreeMap<ContainerName, CriResources>,
}

/// A container's stored spec in the runtime, in CRI's terms. `None` means "not specified".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CriResources {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<i64>,
    /// In microseconds. −1 is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<i64>,
    /// In microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_period: Option<i64>,
    /// −1 is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_in_bytes: Option<i64>,
}

impl CriResources {
    /// The fields for these values. CRI's numbers are signed; no amount of Kubernetes is above `i64::MAX`, and a runtime could not
    /// refuse a larger one better.
    pub fn new(shares: Option<CpuShares>, cpu: Option<CpuMax>, memory: Option<MemoryLimit>) -> Self {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Self {
            cpu_shares: shares.map(|shares| signed(shares.get())),
            cpu_quota: cpu.map(|cpu| match cpu.quota {
                CpuQuota::Max => -1,
                CpuQuota::Micros(micros) => signed(micros),
            }),
            cpu_period: cpu.map(|cpu| signed(cpu.period_us)),
            memory_limit_in_bytes: memory.map(|limit| match limit {
                MemoryLimit::Max => -1,
                MemoryLimit::Bytes(bytes) => signed(bytes),
            }),
        }
    }

    /// Unsets the field that corresponds to a file. Quota and period belong together.
    pub fn forget(&mut self, file: ControlFile) {
        match file {
            ControlFile::CpuMax | ControlFile::CfsQuota | ControlFile::CfsPeriod => {
                (self.cpu_quota, self.cpu_period) = (None, None);
            }
            ControlFile::CpuWeight | ControlFile::CpuShares => self.cpu_shares = None,
            ControlFile::MemoryMax | ControlFile::MemoryLimit => self.memory_limit_in_bytes = None,
            ControlFile::MemoryHigh | ControlFile::MemoryMin | ControlFile::MemoryLow | ControlFile::MemswLimit => {}
            ControlFile::CpuMaxBurst | ControlFile::CfsBurst => {}
        }
    }

    /// Every field with its name in CRI, as text.
    pub fn fields(&self) -> [(&'static str, Option<String>); 4] {
        let fields = [
            ("cpu_shares", self.cpu_shares),
            ("cpu_quota", self.cpu_quota),
            ("cpu_period", self.cpu_period),
            ("memory_limit_in_bytes", self.memory_limit_in_bytes),
        ];
        fields.map(|(name, value)| (name, value.map(|value| value.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MilliCpu, ResourceList};

    fn cpu_max(quota: u64) -> Setting {
        Setting::CpuMax(CpuMax {
            quota: CpuQuota::Micros(quota),
            period_us: 100_000,
        })
    }

    fn unit<const N: usize>(files: [(Setting, Setting); N]) -> Change {
        let (from, to): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        Change::Unit {
            from: from.into_iter().collect(),
            to: to.into_iter().collect(),
        }
    }

    fn memory(file: fn(MemoryLimit) -> Setting, from: u64, to: u64) -> (Setting, Setting) {
        (file(MemoryLimit::Bytes(from)), file(MemoryLimit::Bytes(to)))
    }

    #[test]
    fn each_change_is_told_with_old_and_new() {
        let amounts = |cpu: u64| Requirements {
            requests: ResourceList {
                cpu: Some(MilliCpu::new(cpu)),
                memory: None,
            },
            limits: ResourceList {
                cpu: None,
                memory: Some(Bytes::new(1 << 30)),
            },
        };
        let stored = |shares: Option<i64>, limit| CriResources {
            cpu_shares: shares,
            memory_limit_in_bytes: Some(limit),
            ..CriResources::default()
        };
        let file = Change::File {
            from: cpu_max(20_000),
            to: cpu_max(50_000),
        };
        let of_unit = unit([
            (cpu_max(20_000), cpu_max(50_000)),
            memory(Setting::MemoryMax, 8192, 4096),
        ]);
        let resize = Change::Resize {
            from: amounts(100),
            to: amounts(200),
        };
        let spec = Change::Spec {
            from: stored(None, 8192),
            to: stored(Some(102), 4096),
        };
        for (change, via, told, from, to) in [
            (
                file,
                "cgroup",
                "cpu.max 20000 100000 → 50000 100000",
                "20000 100000",
                "50000 100000",
            ),
            (
                of_unit,
                "systemd",
                "cpu.max 20000 100000 → 50000 100000, memory.max 8192 → 4096",
                "cpu.max=20000 100000, memory.max=8192",
                "cpu.max=50000 100000, memory.max=4096",
            ),
            (
                resize,
                "resize",
                "requests.cpu 100m → 200m",
                "requests.cpu=100m, limits.memory=1Gi",
                "requests.cpu=200m, limits.memory=1Gi",
            ),
            (
                spec,
                "cri",
                "cpu_shares unset → 102, memory_limit_in_bytes 8192 → 4096",
                "memory_limit_in_bytes=8192",
                "cpu_shares=102, memory_limit_in_bytes=4096",
            ),
        ] {
            assert_eq!(change.via().to_string(), via);
            assert_eq!(change.to_string(), told);
            assert_eq!(change.texts(), (from.to_owned(), to.to_owned()));
            assert_eq!(change.file(), (via == "cgroup").then_some(ControlFile::CpuMax));
            assert_eq!(change.writes_cgroups(), ["cgroup", "systemd"].contains(&via));
        }
    }

    #[test]
    fn what_comes_down_is_written_last() {
        let order = |change: Change| {
            let files = change.files().into_iter();
            files.map(|(_, to)| to.file()).collect::<Vec<_>>()
        };
        let v1 = |from, to| {
            let quota = |micros| Setting::CfsQuota(CpuQuota::Micros(micros));
            unit([
                (quota(from), quota(to)),
                (Setting::CfsPeriod(100_000), Setting::CfsPeriod(50_000)),
            ])
        };
        assert_eq!(
            order(v1(10_000, 20_000)),
            [ControlFile::CfsQuota, ControlFile::CfsPeriod]
        );
        assert_eq!(
            order(v1(20_000, 10_000)),
            [ControlFile::CfsPeriod, ControlFile::CfsQuota]
        );
        let high = |from, to| {
            unit([
                memory(Setting::MemoryHigh, from, to),
                memory(Setting::MemoryMax, from, to),
            ])
        };
        assert_eq!(order(high(1, 2)), [ControlFile::MemoryHigh, ControlFile::MemoryMax]);
        assert_eq!(order(high(2, 1)), [ControlFile::MemoryMax, ControlFile::MemoryHigh]);
    }

    #[test]
    fn only_a_lower_limit_of_memory_is_lowered() {
        let of = |(from, to): (Setting, Setting)| Change::File { from, to }.lowered_memory();
        let lower = Some((MemoryLimit::Bytes(8192), Bytes::new(4096)));
        assert_eq!(of(memory(Setting::MemoryMax, 8192, 4096)), lower);
        assert_eq!(of(memory(Setting::MemoryLimit, 8192, 4096)), lower);
        assert_eq!(of(memory(Setting::MemoryMax, 4096, 8192)), None);
        assert_eq!(of(memory(Setting::MemoryMax, 4096, 4096)), None);
        assert_eq!(of(memory(Setting::MemswLimit, 8192, 4096)), None);
        assert_eq!(of(memory(Setting::MemoryHigh, 8192, 4096)), None);
        let (max, bytes) = (
            Setting::MemoryMax(MemoryLimit::Max),
            Setting::MemoryMax(MemoryLimit::Bytes(4096)),
        );
        assert_eq!(of((max, bytes)), Some((MemoryLimit::Max, Bytes::new(4096))));
        assert_eq!(of((bytes, max)), None);
        let both = unit([
            memory(Setting::MemswLimit, 1, 2),
            memory(Setting::MemoryLimit, 8192, 4096),
        ]);
        let limit = (
            ControlFile::MemoryLimit,
            MemoryLimit::Bytes(8192),
            MemoryLimit::Bytes(4096),
        );
        assert_eq!(both.memory_limit(), Some(limit));
    }

    #[test]
    fn newer_values_replace_those_of_the_same_cgroup() {
        let tree = |pod: u64, app: u64, name: &str| PodTree {
            pod: [cpu_max(pod)].into_iter().collect(),
            containers: [(name.into(), [cpu_max(app)].into_iter().collect())].into(),
        };
        let app = Target::Container("app".into());
        let held = |tree: &PodTree, target: &Target| tree.get(target).and_then(|files| files.get(ControlFile::CpuMax));
        let mut end = tree(1000, 2000, "app").overlaid(&tree(3000, 4000, "app"));
        assert_eq!(held(&end, &Target::Pod), Some(cpu_max(3000)));
        assert_eq!(held(&end, &app), Some(cpu_max(4000)));
        end.set(&app, cpu_max(5000));
        assert_eq!(
            (held(&end, &Target::Pod), held(&end, &app)),
            (Some(cpu_max(3000)), Some(cpu_max(5000)))
        );
        let end = tree(1000, 2000, "app").overlaid(&tree(3000, 4000, "side"));
        assert_eq!(held(&end, &app), Some(cpu_max(2000)));
        assert_eq!(end.targets().collect::<Vec<_>>(), [Target::Pod, app]);
    }

    #[test]
    fn each_file_has_its_field_in_the_runtime() {
        let whole = CriResources {
            cpu_shares: Some(1),
            cpu_quota: Some(2),
            cpu_period: Some(3),
            memory_limit_in_bytes: Some(4),
        };
        let without = |file| {
            let mut left = whole;
            left.forget(file);
            left.fields().map(|(_, value)| value.unwrap_or_default()).join(" ")
        };
        for (files, left) in [
            (
                &[ControlFile::CpuMax, ControlFile::CfsQuota, ControlFile::CfsPeriod][..],
                "1   4",
            ),
            (&[ControlFile::CpuWeight, ControlFile::CpuShares], " 2 3 4"),
            (&[ControlFile::MemoryMax, ControlFile::MemoryLimit], "1 2 3 "),
            (
                &[
                    ControlFile::MemoryHigh,
                    ControlFile::MemswLimit,
                    ControlFile::CpuMaxBurst,
                ],
                "1 2 3 4",
            ),
        ] {
            for file in files {
                assert_eq!(without(*file), left, "{file}");
            }
        }
        let names = whole.fields().map(|(name, _)| name);
        assert_eq!(
            names,
            ["cpu_shares", "cpu_quota", "cpu_period", "memory_limit_in_bytes"]
        );
    }

    #[test]
    fn a_step_names_its_cgroup() {
        let app = Target::from(Some("app"));
        assert_eq!(
            (app.to_string().as_str(), app.level(), app.container()),
            ("container app", "container", Some("app"))
        );
        let pod = Target::from(None::<&str>);
        assert_eq!(
            (pod.to_string().as_str(), pod.level(), pod.container()),
            ("pod", "pod", None)
        );
        let [from, to] = [102, 204].map(|shares| Setting::CpuShares(CpuShares::new(shares)));
        assert_eq!(
            Step::of_file(app, from, to).to_string(),
            "container app through cgroup: cpu.shares 102 → 204"
        );
    }
}
