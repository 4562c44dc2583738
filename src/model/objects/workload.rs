//! Owners of pods, and the other objects of a namespace and a node that bound a decision.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::value::{Error, StrDeserializer};
use serde::{Deserialize, Serialize};

use super::{ObjectMeta, OwnerReference, TargetRef};
use crate::model::{MilliCpu, Requirements, Resource, ResourceList};

/// A workload kind with a known selector, which needs no request to `/scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
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

    /// The kind of that name in the groups of Kubernetes: other projects have kinds of the same names in groups of their own.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::named(kind).filter(|_| ["", "apps", "batch", "extensions"].contains(&group_of(api_version)))
    }
}

/// The group of an API version such as `apps/v1`; empty for `v1`.
pub fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// The key of a workload in its namespace. The group is empty for well-known kinds: a reference may name any version of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{kind} {name}")]
pub struct WorkloadKey<'a> {
    /// Set for a well-known kind.
    pub known: Option<OwnerKind>,
    group: &'a str,
    kind: &'a str,
    name: &'a str,
}

impl<'a> WorkloadKey<'a> {
    fn new(api_version: &'a str, kind: &'a str, name: &'a str) -> Self {
        let known = OwnerKind::of(api_version, kind);
        let group = if known.is_some() { "" } else { group_of(api_version) };
        Self {
            known,
            group,
            kind,
            name,
        }
    }

    /// Whether this is a Node, which owns the copies of its static pods.
    pub fn is_node(&self) -> bool {
        self.kind == "Node"
    }
}

impl From<WorkloadKey<'_>> for TargetRef {
    fn from(key: WorkloadKey<'_>) -> Self {
        Self {
            api_version: String::new(),
            kind: key.kind.to_owned(),
            name: key.name.to_owned(),
        }
    }
}

impl<'a> From<&'a TargetRef> for WorkloadKey<'a> {
    fn from(target: &'a TargetRef) -> Self {
        Self::new(&target.api_version, &target.kind, &target.name)
    }
}

impl<'a> From<&'a OwnerReference> for WorkloadKey<'a> {
    fn from(owner: &'a OwnerReference) -> Self {
        Self::new(&owner.api_version, &owner.kind, &owner.name)
    }
}

impl<'a> From<&'a Owner> for WorkloadKey<'a> {
    fn from(owner: &'a Owner) -> Self {
        Self::new("", owner.kind.into(), &owner.metadata.name)
    }
}

/// A workload in the chain above a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// A label, or a scope of a quota.
    #[serde(alias = "scopeName")]
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values, for `In` and `NotIn`.
    pub values: Vec<String>,
}

impl SelectorRequirement {
    /// Whether a label with this value, or none, meets the requirement. A malformed one is never met.
    pub fn holds(&self, label: Option<&String>) -> bool {
        let values = &self.values;
        match self.operator.as_str() {
            "In" => label.is_some_and(|label| values.contains(label)),
            // An absent label is in no set. An empty set is malformed.
            "NotIn" => !values.is_empty() && label.is_none_or(|label| !values.contains(label)),
            "Exists" => values.is_empty() && label.is_some(),
            "DoesNotExist" => values.is_empty() && label.is_none(),
            _ => false,
        }
    }
}

/// Bounds for everything in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRange {
    pub metadata: ObjectMeta,
    pub spec: LimitRangeSpec,
}

impl LimitRange {
    /// The amounts of containers that have none. Of several lists the last one that has an amount counts
    /// (`defaultContainerResourceRequirements`, kubernetes `plugin/pkg/admission/limitranger`).
    pub fn container_defaults(&self) -> Option<Requirements> {
        let lists = self.spec.limits.iter().filter(|item| item.kind == "Container");
        let defaults = lists.map(|item| Requirements {
            requests: item.default_request,
            limits: item.default,
        });
        defaults.reduce(|earlier, later| later.or(earlier))
    }
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
    /// The request of a container that has none.
    #[serde(rename = "defaultRequest")]
    pub default_request: ResourceList,
    /// The highest limit as a multiple of its request.
    #[serde(rename = "maxLimitRequestRatio")]
    pub max_ratio: Ratios,
}

/// The highest ratios of limit to request, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ratios {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<MilliCpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MilliCpu>,
}

impl Ratios {
    /// The ratio for a resource, in thousandths. Zero is no ratio.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        let ratio = match resource {
            Resource::Cpu => self.cpu,
            Resource::Memory => self.memory,
        };
        ratio.map(MilliCpu::get).filter(|ratio| *ratio > 0)
    }

    /// The lower ratio of both for each resource.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        let lower = |one: Option<MilliCpu>, other| one.into_iter().chain(other).min();
        Self {
            cpu: lower(self.cpu, other.cpu),
            memory: lower(self.memory, other.memory),
        }
    }
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
    pub resource: Option<ResourceMetric>,
    pub container_resource: Option<ResourceMetric>,
}

/// The use of a resource that an HPA scales on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceMetric {
    /// `cpu` or `memory`.
    pub name: String,
    /// The container whose use counts. Empty in a metric of the whole pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    pub target: MetricTarget,
}

/// What an HPA compares the use of a resource with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricTarget {
    /// `Utilization`: a share of the requests. `AverageValue`: an amount, whatever the requests are.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
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
    #[serde(rename = "nodeInfo")]
    pub node_info: NodeInfo,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<NodeCondition>,
}

impl NodeStatus {
    /// When the node became ready, or stopped being ready.
    pub fn ready_since(&self) -> Option<Timestamp> {
        let mut conditions = self.conditions.iter();
        conditions.find(|one| one.kind == "Ready")?.last_transition_time
    }
}

/// A condition of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub last_transition_time: Option<Timestamp>,
}

/// A kubelet's report about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Such as `v1.36.2`.
    pub kubelet_version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_compares_in_its_way() {
        for (operator, values, of_a, of_c, of_none) in [
            ("In", &["a", "b"][..], true, false, false),
            ("NotIn", &["a", "b"], false, true, true),
            ("NotIn", &[], false, false, false),
            ("Exists", &[], true, true, false),
            ("Exists", &["a"], false, false, false),
            ("DoesNotExist", &[], false, false, true),
            ("Gt", &["a"], false, false, false),
        ] {
            let requirement = SelectorRequirement {
                key: "tier".to_owned(),
                operator: operator.to_owned(),
                values: values.iter().map(|value| (*value).to_owned()).collect(),
            };
            let holds = |label: Option<&str>| requirement.holds(label.map(str::to_owned).as_ref());
            assert_eq!(
                [holds(Some("a")), holds(Some("c")), holds(None)],
                [of_a, of_c, of_none],
                "{operator} {values:?}"
            );
        }
    }

    #[test]
    fn kinds_of_others_keep_their_group() {
        for (version, known) in [
            ("apps/v1", true),
            ("batch/v1", true),
            ("v1", true),
            ("", true),
            ("apps.example.com/v1", false),
        ] {
            assert_eq!(OwnerKind::of(version, "Deployment").is_some(), known, "{version}");
        }
        let target = |version: &str| TargetRef {
            api_version: version.to_owned(),
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
        };
        let (old, new, other) = (
            target("extensions/v1beta1"),
            target("apps/v1"),
            target("example.com/v1"),
        );
        assert_eq!(WorkloadKey::from(&old), WorkloadKey::from(&new));
        assert_ne!(WorkloadKey::from(&other), WorkloadKey::from(&new));
        assert_eq!(WorkloadKey::from(&other).to_string(), "Deployment web");
    }

    #[test]
    fn of_two_ratios_the_lower_counts() {
        let ratios = |cpu: u64, memory: u64| Ratios {
            cpu: Some(MilliCpu::new(cpu)),
            memory: (memory > 0).then(|| MilliCpu::new(memory)),
        };
        let both = ratios(1500, 0).min(ratios(2000, 3000));
        assert_eq!(
            Resource::ALL.map(|resource| both.get(resource)),
            [Some(1500), Some(3000)]
        );
        assert_eq!(ratios(0, 0).get(Resource::Cpu), None);
    }

    #[test]
    fn readiness_has_a_condition_of_its_own() {
        let condition = |kind: &str, second: i64| NodeCondition {
            kind: kind.to_owned(),
            last_transition_time: Timestamp::from_second(second).ok(),
        };
        let status = NodeStatus {
            conditions: vec![condition("MemoryPressure", 1), condition("Ready", 2)],
            ..NodeStatus::default()
        };
        assert_eq!(status.ready_since(), Timestamp::from_second(2).ok());
        assert_eq!(NodeStatus::default().ready_since(), None);
    }
}
