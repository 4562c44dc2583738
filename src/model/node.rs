//! A node's cgroup version, driver, runtime and kubelet, and the pods that run there.

use std::str::FromStr;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::model::objects::{Pod, PodId};
use crate::model::{CgroupPath, ContainerId, ContainerName, PageSize, WeightFormula};

/// The version of the node's cgroup tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    V1,
    V2,
}

impl CgroupVersion {
    /// The value of this version.
    pub fn v1_or_v2<T>(self, v1: T, v2: T) -> T {
        match self {
            Self::V1 => v1,
            Self::V2 => v2,
        }
    }
}

/// The cgroup driver of the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum Driver {
    /// The kubelet and the runtime create the cgroups' directories.
    Cgroupfs,
    /// systemd creates slices and scopes, and rewrites their files from its own properties.
    Systemd,
}

/// The runtime whose names container cgroups have.
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

/// Whether the agent requests a resize that the node has no room for now. The scheduler may make room for a resize that a
/// kubelet has deferred (KEP-5836). The agent never requests more than the node could hold without any other pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AskWhenFull {
    #[default]
    Never,
    Always,
    /// If pods of lower priority request enough.
    Priority,
}

/// The minor version of a 1.x kubelet. Some rules depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("1.{_0}")]
pub struct KubeletVersion(pub u32);

/// The newest: what the agent assumes of a node that does not state it.
impl Default for KubeletVersion {
    fn default() -> Self {
        Self::NEWEST
    }
}

impl KubeletVersion {
    /// The newest released version whose rules this crate has.
    pub const NEWEST: Self = Self(37);
    /// The oldest version whose rules this crate has.
    pub const OLDEST: Self = Self(20);

    /// From this version on an init container without a limit leaves its pod's limit undeclared: `ResourceConfigForPod` uses the
    /// shared resource helpers. Before, only regular containers counted.
    pub const INIT_CONTAINERS_DECLARE_LIMITS: Self = Self(27);
    /// From this version on `ResourceConfigForPod` looks at each container alone: an init container without a limit leaves its pod's
    /// limit undeclared also after a sidecar with one. Before, the sum of the sidecars and the init container counted.
    pub const EACH_CONTAINER_DECLARES_LIMITS: Self = Self(37);
    /// From this version on an explicit cpu request of zero gives the least shares (kubernetes#108832) rather than those of the
    /// limit.
    pub const ZERO_REQUEST_IS_LEAST: Self = Self(25);
    /// From this version on the gate `InPlacePodVerticalScaling` is on by default.
    pub const RESIZES_BY_DEFAULT: Self = Self(33);
    /// From this version on that gate is locked.
    pub const ALWAYS_RESIZES: Self = Self(35);
    /// From this version on a quota compares the sums of a pod's spec and status: `AggregateContainerRequests`. Before, it compared
    /// each container.
    pub const QUOTAS_COMPARE_SUMS: Self = Self(37);
    /// From this version on a resize leaves a pod's limits of huge pages alone. Before, `maybeSetHugetlb` (`pkg/kubelet/cm`) set them to 0
    /// (kubernetes#141991).
    pub const KEEPS_HUGE_PAGES: Self = Self(38);
    /// From this version on `spec.resources` counts: the gate `PodLevelResources` is on by default.
    pub const POD_LEVEL_RESOURCES: Self = Self(34);
    /// From this version on init containers that are no sidecars are resized: the gate `InPlacePodVerticalScalingInitContainers` is on by
    /// default.
    pub const RESIZES_INIT_CONTAINERS: Self = Self(36);
    /// From this version on the API server, which is no older than its kubelets, also fills in limits of `spec.resources`, and does so at
    /// each resize: the gate `PodLevelResourcesFixDefaulting` is on by default.
    pub const POD_LIMITS_FILLED_IN: Self = Self(37);
    /// From this version on `spec.resources` without amounts does not decide the QoS class: the gate
    /// `PodLevelResourcesFixKubeletQOSClass` is on by default.
    pub const EMPTY_POD_LEVEL_IS_NONE: Self = Self(37);
    /// From this version on the API server checks no amounts against a LimitRange that a resize leaves as they are
    /// (`resourceUnchanged`, kubernetes `plugin/pkg/admission/limitranger`).
    pub const LIMIT_RANGES_LEAVE_OLD: Self = Self(38);
}

/// A text is not the version of a kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a kubelet version: expected one like v1.36.2, 1.36 or 36")]
pub struct ParseKubeletVersionError(String);

impl FromStr for KubeletVersion {
    type Err = ParseKubeletVersionError;

    /// Parses `v1.36.2` (with or without a vendor's suffix), `1.36`, or the minor version alone.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.strip_prefix('v').unwrap_or(text);
        let minor = match bare.split_once('.') {
            Some(("1", rest)) => rest.split_once(['.', '+', '-']).map_or(rest, |(minor, _)| minor),
            Some(_) => "",
            None => bare,
        };
        // Some vendors print the minor version as `20+`.
        let minor = minor.strip_suffix('+').unwrap_or(minor).parse();
        minor.map(Self).map_err(|_| ParseKubeletVersionError(text.to_owned()))
    }
}

/// The properties of a node that plans depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTraits {
    pub version: CgroupVersion,
    pub driver: Driver,
    pub runtime: RuntimeKind,
    /// The runtime's formula for weights. Pods always use the kubelet's linear formula.
    pub container_weight: WeightFormula,
    pub kubelet: KubeletVersion,
    pub page: PageSize,
}

/// A pod that has a cgroup, and its containers that have a cgroup and a known name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePod {
    pub id: PodId,
    pub path: CgroupPath,
    /// By name, in this order. Nearly every pod has one or two: a tree would take ten times the memory.
    pub containers: IndexMap<ContainerName, LiveContainer>,
}

/// A container that has a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveContainer {
    pub id: ContainerId,
    pub path: CgroupPath,
}

/// A pod that runs, together with the object that describes it. The agent writes to no other pod and requests nothing for one.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundPod {
    object: Arc<Pod>,
    live: Arc<LivePod>,
}

impl BoundPod {
    /// `None` if the object describes another pod ([`Pod::describes`]).
    pub fn new(object: &Arc<Pod>, live: &Arc<LivePod>) -> Option<Self> {
        object.describes(&live.id).then(|| Self {
            object: Arc::clone(object),
            live: Arc::clone(live),
        })
    }

    /// The pod's object from its source.
    pub const fn object(&self) -> &Arc<Pod> {
        &self.object
    }

    pub const fn live(&self) -> &Arc<LivePod> {
        &self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_versions_have_many_spellings() {
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
