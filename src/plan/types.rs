//! The types plans are made of.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::resources::{ControlFile, PageSize, Setting, Settings, WeightFormula};

/// Which kernel interface the node's tree has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    V1,
    /// One unified hierarchy.
    V2,
}

/// Who creates the kubelet's cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The kubelet and the runtime make directories.
    Cgroupfs,
    /// systemd makes slices and scopes, and rewrites their files from its own properties.
    Systemd,
}

/// Which runtime's names container cgroups carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// `cri-containerd-<id>.scope`, or `<id>`.
    Containerd,
    /// `crio-<id>.scope`, or `crio-<id>`.
    Crio,
    /// `docker-<id>.scope`, or `<id>`.
    Docker,
}

/// The minor version of a 1.x kubelet: some of its rules changed over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KubeletVersion(pub u32);

impl KubeletVersion {
    /// The newest whose rules are known here.
    pub const NEWEST: Self = Self(36);
    /// The oldest whose rules are known here.
    pub const OLDEST: Self = Self(20);

    /// Whether a limit-less init container leaves its pod's limit undeclared: so since `ResourceConfigForPod` takes
    /// its limits from the shared resource helpers, 1.27. Before, only regular containers counted.
    #[must_use]
    pub const fn init_containers_declare_limits(self) -> bool {
        self.0 >= 27
    }

    /// Whether a cpu request of explicitly zero gives the least shares (kubernetes#108832, 1.25) rather than the
    /// shares of the limit.
    #[must_use]
    pub const fn zero_request_is_least(self) -> bool {
        self.0 >= 25
    }

    /// Whether the kubelet resizes in place unless its gate `InPlacePodVerticalScaling` is switched off: since 1.33.
    #[must_use]
    pub const fn resizes_by_default(self) -> bool {
        self.0 >= 33
    }

    /// Whether resizing in place cannot be switched off: the gate is locked since 1.35.
    #[must_use]
    pub const fn always_resizes(self) -> bool {
        self.0 >= 35
    }

    /// Whether `spec.resources` counts: the gate `PodLevelResources` is on by default from 1.34.
    #[must_use]
    pub const fn pod_level_resources(self) -> bool {
        self.0 >= 34
    }
}

/// A text that is not the version of a kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a kubelet version: expected one like v1.36.2, 1.36 or 36")]
pub struct ParseKubeletVersionError(String);

impl FromStr for KubeletVersion {
    type Err = ParseKubeletVersionError;

    /// Reads `v1.36.2` (with or without a vendor's suffix), `1.36`, or the minor version alone.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.strip_prefix('v').unwrap_or(text);
        let minor = match bare.split_once('.') {
            Some(("1", rest)) => rest.split_once(['.', '+', '-']).map_or(rest, |(minor, _)| minor),
            Some(_) => "",
            None => bare,
        };
        // Some vendors print the minor version as `20+`.
        minor
            .strip_suffix('+')
            .unwrap_or(minor)
            .parse()
            .map(Self)
            .map_err(|_| ParseKubeletVersionError(text.to_owned()))
    }
}

impl fmt::Display for KubeletVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

/// What a node is like, as far as plans depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTraits {
    /// The kernel interface.
    pub version: CgroupVersion,
    /// Who creates cgroups.
    pub driver: Driver,
    /// Whose names containers carry.
    pub runtime: RuntimeKind,
    /// How the runtime turns shares into weights; pods always use the kubelet's linear formula.
    pub container_weight: WeightFormula,
    /// Whose rules the pod level follows.
    pub kubelet: KubeletVersion,
    /// The unit of memory limits.
    pub page: PageSize,
}

/// One of the two levels vscaled writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "level", content = "name", rename_all = "lowercase")]
pub enum Target {
    /// The pod's cgroup.
    Pod,
    /// The cgroup of the container of that name.
    Container(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => f.write_str("pod"),
            Self::Container(name) => write!(f, "container {name}"),
        }
    }
}

/// The settings of a pod's cgroup and of its containers' cgroups, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodTree {
    /// The pod's own cgroup.
    pub pod: Settings,
    /// Its running containers' cgroups, sidecars included; the sandbox is not one of them.
    pub containers: BTreeMap<String, Settings>,
}

impl PodTree {
    /// What the cgroup of that target holds, if it is there.
    #[must_use]
    pub fn get(&self, target: &Target) -> Option<&Settings> {
        match target {
            Target::Pod => Some(&self.pod),
            Target::Container(name) => self.containers.get(name),
        }
    }

    /// Puts a value in its place, if that cgroup is there.
    pub fn set(&mut self, target: &Target, setting: Setting) {
        let cgroup = match target {
            Target::Pod => Some(&mut self.pod),
            Target::Container(name) => self.containers.get_mut(name),
        };
        if let Some(settings) = cgroup {
            settings.insert(setting);
        }
    }

    /// The values the kernel keeps when these are written.
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

    /// These values, with those of `newer` in place of the ones they replace; cgroups only `newer` knows are left out.
    #[must_use]
    pub fn overlaid(mut self, newer: &Self) -> Self {
        for setting in newer.pod.iter() {
            self.pod.insert(setting);
        }
        for (name, cgroup) in &mut self.containers {
            for setting in newer.containers.get(name).into_iter().flat_map(Settings::iter) {
                cgroup.insert(setting);
            }
        }
        self
    }
}

/// The values of a pod's cgroups, and what the runtime has stored about its containers. Both sides of a plan have
/// this shape: what is there, and what should be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodState {
    /// The cgroup files. Read: what is absent is not there. Wanted: what is absent is nobody's business.
    pub tree: PodTree,
    /// The runtime's stored specs by container name; what is absent is unknown, or nobody's business.
    pub specs: BTreeMap<String, CriResources>,
}

/// What a runtime keeps in a container's stored spec, in CRI's terms. `None` is "not specified".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CriResources {
    /// `cpu_shares`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<i64>,
    /// `cpu_quota` in microseconds; −1 is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<i64>,
    /// `cpu_period` in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_period: Option<i64>,
    /// `memory_limit_in_bytes`; −1 is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_in_bytes: Option<i64>,
}

impl CriResources {
    /// Leaves the field behind a file unspecified; quota and period go together.
    pub fn forget(&mut self, file: ControlFile) {
        match file {
            ControlFile::CpuMax | ControlFile::CfsQuota | ControlFile::CfsPeriod => {
                (self.cpu_quota, self.cpu_period) = (None, None);
            }
            ControlFile::CpuWeight | ControlFile::CpuShares => self.cpu_shares = None,
            ControlFile::MemoryMax | ControlFile::MemoryLimit => self.memory_limit_in_bytes = None,
            ControlFile::MemswLimit | ControlFile::CpuMaxBurst | ControlFile::CfsBurst => {}
        }
    }

    /// Every field with its name in CRI.
    #[must_use]
    pub const fn fields(&self) -> [(&'static str, Option<i64>); 4] {
        [
            ("cpu_shares", self.cpu_shares),
            ("cpu_quota", self.cpu_quota),
            ("cpu_period", self.cpu_period),
            ("memory_limit_in_bytes", self.memory_limit_in_bytes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_versions_are_read_in_every_usual_spelling() {
        for (text, minor) in [
            ("1.20", 20),
            ("v1.36.2", 36),
            ("36", 36),
            ("v1.29.4-gke.1043002", 29),
            ("v1.33.5+k3s1", 33),
            ("1.20+", 20),
        ] {
            assert_eq!(text.parse(), Ok(KubeletVersion(minor)), "{text}");
        }
        for text in ["", "v", "2.1", "1.", "1.x", "newest", "-3"] {
            let error = text.parse::<KubeletVersion>().unwrap_err();
            assert!(error.to_string().contains("v1.36.2"), "{error}");
        }
    }
}
