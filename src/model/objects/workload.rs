//! Owners of pods, and the other objects of a namespace and a node that bound a decision.

use std::collections::BTreeMap;

use serde::de::value::{Error, StrDeserializer};
use serde::{Deserialize, Serialize};

use super::{NameReference, ObjectMeta, TargetRef};
use crate::model::ResourceList;

/// A workload kind with a known selector, which needs no request to `/scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OwnerKind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    ReplicationController,
}

impl OwnerKind {
    /// The kind of that name.
    pub fn named(kind: &str) -> Option<Self> {
        Self::deserialize(StrDeserializer::<Error>::new(kind)).ok()
    }
}

/// A workload in the chain above a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub kind: OwnerKind,
    pub metadata: ObjectMeta,
    /// Selects the workload's pods. None if the manifest has no selector.
    pub selector: Option<LabelSelector>,
    /// The wanted number of pods. 0 if unknown.
    pub pods: u64,
}

/// A label selector. All of its requirements must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that must have these values.
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<SelectorRequirement>,
}

/// One requirement of a selector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SelectorRequirement {
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values, for `In` and `NotIn`.
    pub values: Vec<String>,
}

/// Bounds for everything in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRange {
    pub metadata: ObjectMeta,
    pub spec: LimitRangeSpec,
}

/// The bounds of a LimitRange.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRangeSpec {
    pub limits: Vec<LimitRangeItem>,
}

/// Bounds for one type of object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRangeItem {
    /// `Container`, `Pod` or `PersistentVolumeClaim`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The highest limit.
    pub max: ResourceList,
    /// The lowest request.
    pub min: ResourceList,
    /// The limit of a container that has none.
    pub default: ResourceList,
}

/// `autoscaling/v2` HorizontalPodAutoscaler. An HPA and a VPA must not act on the same resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HorizontalPodAutoscaler {
    pub metadata: ObjectMeta,
    pub spec: HpaSpec,
}

/// Target and metrics of an HPA.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HpaSpec {
    pub scale_target_ref: TargetRef,
    pub metrics: Vec<HpaMetric>,
    /// `autoscaling/v1`: the cpu utilisation it scales on.
    #[serde(rename = "targetCPUUtilizationPercentage")]
    pub target_cpu_utilization_percentage: Option<i64>,
}

/// One metric of an HPA, of `type: Resource` or `ContainerResource`. Other types name no resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HpaMetric {
    /// `cpu` or `memory`.
    pub resource: Option<NameReference>,
    pub container_resource: Option<NameReference>,
}

/// The parts of a Node that decisions need.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: ObjectMeta,
    pub status: NodeStatus,
}

/// A node's resources and versions, as its kubelet reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub allocatable: ResourceList,
    pub capacity: ResourceList,
    #[serde(rename = "nodeInfo")]
    pub node_info: NodeInfo,
}

/// A kubelet's report about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Such as `v1.36.2`.
    pub kubelet_version: String,
}
