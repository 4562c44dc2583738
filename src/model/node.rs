//! A node's cgroup version, driver, runtime and kubelet.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::{PageSize, WeightFormula};

/// The version of the node's cgroup tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    V1,
    V2,
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

/// Whether the agent asks a kubelet for a resize that its node has no room for now. The scheduler may make room for a resize that
/// a kubelet has deferred (KEP-5836). The agent never asks for more than the node could hold without any other pod.
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

impl KubeletVersion {
    /// The newest version whose rules this crate knows.
    pub const NEWEST: Self = Self(36);
    /// The oldest version whose rules this crate knows.
    pub const OLDEST: Self = Self(20);

    /// Whether an init container without a limit leaves its pod's limit undeclared: since 1.27, in which `ResourceConfigForPod`
    /// uses the shared resource helpers. Before, only regular containers counted.
    pub const fn init_containers_declare_limits(self) -> bool {
        self.0 >= 27
    }

    /// Whether an explicit cpu request of zero gives the least shares (since 1.25, kubernetes#108832) rather
    /// than those of the limit.
    pub const fn zero_request_is_least(self) -> bool {
        self.0 >= 25
    }

    /// Whether the gate `InPlacePodVerticalScaling` is on by default: since 1.33.
    pub const fn resizes_by_default(self) -> bool {
        self.0 >= 33
    }

    /// Whether that gate is locked: since 1.35.
    pub const fn always_resizes(self) -> bool {
        self.0 >= 35
    }

    /// Whether `spec.resources` counts: the gate `PodLevelResources` is on by default since 1.34.
    pub const fn pod_level_resources(self) -> bool {
        self.0 >= 34
    }
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
        minor
            .strip_suffix('+')
            .unwrap_or(minor)
            .parse()
            .map(Self)
            .map_err(|_| ParseKubeletVersionError(text.to_owned()))
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
