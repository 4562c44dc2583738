//! The types plans are made of.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::resources::{Setting, Settings, WeightFormula};

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

/// How a step is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// A patch of the pod's `resize` subresource.
    Resize,
    /// `UpdateContainerResources`: the runtime's stored spec agrees afterwards.
    Cri,
    /// One write to one cgroup file.
    Cgroup,
    /// `SetUnitProperties`: systemd's own record agrees afterwards.
    Systemd,
}

/// What one step changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// One cgroup file, directly.
    File {
        /// What it holds now, if it could be read.
        from: Option<Setting>,
        /// What it should hold.
        to: Setting,
    },
    /// systemd's properties of a unit, for these files.
    Unit {
        /// What the files hold now.
        from: Settings,
        /// What they should hold.
        to: Settings,
    },
    /// Fields of the runtime's stored spec; only those that change are set.
    Spec {
        /// What the runtime has stored in these fields.
        from: CriResources,
        /// What it should store.
        to: CriResources,
    },
}

/// One write, in its place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Whose values change.
    pub target: Target,
    /// What changes.
    pub change: Change,
}

impl Step {
    /// How this step is carried out.
    #[must_use]
    pub const fn via(&self) -> Via {
        match self.change {
            Change::File { .. } => Via::Cgroup,
            Change::Unit { .. } => Via::Systemd,
            Change::Spec { .. } => Via::Cri,
        }
    }
}
