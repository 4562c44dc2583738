//! What a node is like: its cgroup version, driver, runtime and kubelet.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::{PageSize, WeightFormula};

/// Which kernel interface the node's tree has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    V1,
    V2,
}

/// Who creates the kubelet's cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
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

/// Whether a kubelet is asked for what its node has no room for now. The scheduler may make room for what a kubelet has
/// deferred (KEP-5836). What the node could not hold without any other pod is never asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AskWhenFull {
    #[default]
    Never,
    Always,
    /// Where pods of lower priority request enough.
    Priority,
}

/// The minor version of a 1.x kubelet: some of its rules changed over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("1.{_0}")]
pub struct KubeletVersion(pub u32);

impl KubeletVersion {
    /// The newest whose rules are known here.
    pub const NEWEST: Self = Self(36);
    /// The oldest whose rules are known here.
    pub const OLDEST: Self = Self(20);

    /// Whether a limit-less init container leaves its pod's limit undeclared: so since `ResourceConfigForPod` takes
    /// its limits from the shared resource helpers, 1.27. Before, only regular containers counted.
    pub const fn init_containers_declare_limits(self) -> bool {
        self.0 >= 27
    }

    /// Whether a cpu request of explicitly zero gives the least shares (kubernetes#108832, 1.25) rather than
    /// the shares of the limit.
    pub const fn zero_request_is_least(self) -> bool {
        self.0 >= 25
    }

    /// Whether the kubelet resizes in place unless its gate `InPlacePodVerticalScaling` is switched off: since 1.33.
    pub const fn resizes_by_default(self) -> bool {
        self.0 >= 33
    }

    /// Whether resizing in place cannot be switched off: the gate is locked since 1.35.
    pub const fn always_resizes(self) -> bool {
        self.0 >= 35
    }

    /// Whether `spec.resources` counts: the gate `PodLevelResources` is on by default from 1.34.
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

/// What a node is like, as far as plans depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTraits {
    pub version: CgroupVersion,
    pub driver: Driver,
    pub runtime: RuntimeKind,
    /// How the runtime turns shares into weights; pods always use the kubelet's linear formula.
    pub container_weight: WeightFormula,
    /// Whose rules the pod level follows.
    pub kubelet: KubeletVersion,
    /// The unit of memory limits.
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
