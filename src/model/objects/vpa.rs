//! `autoscaling.k8s.io/v1` VerticalPodAutoscaler.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use crate::model::{MilliCpu, Resource, ResourceList};

/// A VerticalPodAutoscaler: whose resources to follow, within which bounds, and what the recommender says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VerticalPodAutoscaler {
    pub metadata: ObjectMeta,
    pub spec: VpaSpec,
    pub status: VpaStatus,
}

/// What the author of a VPA wants.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VpaSpec {
    pub target_ref: Option<TargetRef>,
    /// When and how pods are changed.
    pub update_policy: Option<UpdatePolicy>,
    pub resource_policy: Option<ResourcePolicy>,
    /// The recommender that serves this VPA; none means the one called `default`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recommenders: Vec<RecommenderSelector>,
    /// More cpu for the containers of a pod that starts.
    pub startup_boost: Option<StartupBoost>,
}

/// What a container has more of while its pod starts (AEP-7862). VPA's webhook gives it, at the pod's creation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartupBoost {
    pub cpu: Option<CpuBoost>,
}

/// How much more cpu, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuBoost {
    /// `Factor` or `Quantity`.
    #[serde(rename = "type")]
    pub kind: String,
    /// How many times the request; with `Factor`.
    pub factor: Option<i64>,
    /// What is added to the request; with `Quantity`.
    pub quantity: Option<MilliCpu>,
    /// How long the boost goes on once the pod is ready, in seconds; none is 0.
    pub duration_seconds: Option<i64>,
}

/// The name of a recommender that writes the status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecommenderSelector {
    pub name: String,
}

/// Names a workload in the VPA's namespace. The API version plays no part in matching.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    /// Kind, such as `Deployment`.
    pub kind: String,
    pub name: String,
}

/// When and how pods are changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdatePolicy {
    /// None means [`UpdateMode::Recreate`].
    pub update_mode: Option<UpdateMode>,
    /// How soon after its start a container's kill for memory makes its pod due at once, in seconds, in place of what the agent's
    /// configuration says. Numbers below 1 say nothing.
    #[serde(rename = "evictAfterOOMSeconds")]
    pub evict_after_oom_seconds: Option<i64>,
}

/// What a VPA's mode allows to be done to running pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum UpdateMode {
    Off,
    Initial,
    /// Evict to apply. The default, and the empty text.
    #[default]
    #[serde(alias = "")]
    Recreate,
    /// As [`Self::Recreate`]; deprecated.
    Auto,
    InPlaceOrRecreate,
    InPlace,
    /// A mode this version does not know; never acted on.
    #[serde(other)]
    Unknown,
}

impl UpdateMode {
    /// Whether this mode changes running pods.
    pub const fn updates_running_pods(self) -> bool {
        match self {
            Self::Recreate | Self::Auto | Self::InPlaceOrRecreate | Self::InPlace => true,
            Self::Off | Self::Initial | Self::Unknown => false,
        }
    }
}

/// The bounds of what may be recommended, for each container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePolicy {
    /// Bounds of the pod's own resources (AEP-7571); its container name is empty. With mode `Off` they stay as they are.
    pub pod_policy: Option<ContainerPolicy>,
    /// One for each container, or for `*`.
    pub container_policies: Vec<ContainerPolicy>,
}

/// Bounds for one container, or for all others (`*`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPolicy {
    /// The container's name, or `*`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_name: String,
    /// `Auto` (default) or `Off`.
    pub mode: Option<String>,
    pub min_allowed: ResourceList,
    pub max_allowed: ResourceList,
    /// Resources to manage; none means both.
    pub controlled_resources: Option<Vec<String>>,
    /// `RequestsAndLimits` (default) or `RequestsOnly`.
    pub controlled_values: Option<ControlledValues>,
    /// More cpu while the pod starts, instead of what the VPA says of all containers.
    pub startup_boost: Option<StartupBoost>,
}

/// What a VPA changes in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ControlledValues {
    RequestsOnly,
    /// Requests, and limits in proportion. The default, and what any word says that this version does not know.
    #[default]
    #[serde(other)]
    RequestsAndLimits,
}

impl ContainerPolicy {
    /// Whether the container is left alone.
    pub fn is_off(&self) -> bool {
        self.mode.as_deref() == Some("Off")
    }

    /// Whether the policy manages this resource.
    pub fn controls(&self, resource: Resource) -> bool {
        self.controlled_resources
            .as_ref()
            .is_none_or(|list| list.iter().any(|name| *name == resource.to_string()))
    }
}

/// The recommender's latest words about the workload.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VpaStatus {
    /// Its latest word, if there is one.
    pub recommendation: Option<Recommendation>,
}

/// A recommendation for the pods of one workload.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Recommendation {
    /// One for each container that has one.
    pub container_recommendations: Vec<ContainerRecommendation>,
}

/// A recommendation for one container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRecommendation {
    pub container_name: String,
    /// What its requests should be.
    pub target: ResourceList,
    /// Requests below this are too small.
    pub lower_bound: ResourceList,
    /// Requests above this are too large.
    pub upper_bound: ResourceList,
    /// The target before any capping.
    pub uncapped_target: ResourceList,
}

impl VerticalPodAutoscaler {
    /// The mode (`api.go:GetUpdateMode`).
    pub fn update_mode(&self) -> UpdateMode {
        let policy = self.spec.update_policy.as_ref();
        policy.and_then(|policy| policy.update_mode).unwrap_or_default()
    }

    /// Whether containers of this name are boosted, by their own policy or for all.
    pub fn boosts(&self, container: &str) -> bool {
        self.startup_boosts(container).next().is_some()
    }

    /// How long a container's boost goes on once the pod is ready: what its own policy says, else what is said of all.
    pub fn boost_duration(&self, container: &str) -> SignedDuration {
        let seconds = self.startup_boosts(container).find_map(|cpu| cpu.duration_seconds);
        SignedDuration::from_secs(seconds.unwrap_or(0).max(0))
    }

    /// What a container's own policy says of its cpu while it starts, then what is said of all.
    fn startup_boosts(&self, container: &str) -> impl Iterator<Item = &CpuBoost> {
        let own = self
            .policy_for(container)
            .and_then(|policy| policy.startup_boost.as_ref());
        let boosts = own.into_iter().chain(&self.spec.startup_boost);
        boosts.filter_map(|boost| boost.cpu.as_ref())
    }

    /// The policy for a container: the first of its own, else the last for `*` (`GetContainerResourcePolicy`).
    pub fn policy_for(&self, container: &str) -> Option<&ContainerPolicy> {
        let policies = &self.spec.resource_policy.as_ref()?.container_policies;
        let own = policies.iter().find(|policy| policy.container_name == container);
        own.or_else(|| policies.iter().rfind(|policy| policy.container_name == "*"))
    }
}
