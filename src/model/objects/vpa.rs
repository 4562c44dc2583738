//! `autoscaling.k8s.io/v1` VerticalPodAutoscaler.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use crate::model::quantity::Quantities;
use crate::model::{MilliCpu, Resource, ResourceList};

/// A VerticalPodAutoscaler: its target, its policy and its recommendation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VerticalPodAutoscaler {
    pub metadata: ObjectMeta,
    pub spec: VpaSpec,
    pub status: VpaStatus,
}

/// The target and the policy of a VPA.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VpaSpec {
    pub target_ref: Option<TargetRef>,
    pub update_policy: Option<UpdatePolicy>,
    pub resource_policy: Option<ResourcePolicy>,
    /// The recommender of this VPA. None means the one named `default`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recommenders: Vec<NameReference>,
    /// The boost of all containers without one in their own policy.
    pub startup_boost: Option<StartupBoost>,
}

/// Additional cpu for a container while its pod starts (AEP-7862). VPA's webhook adds it when the pod is created.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartupBoost {
    pub cpu: Option<CpuBoost>,
}

/// The amount and the duration of a boost.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuBoost {
    /// `Factor` or `Quantity`.
    #[serde(rename = "type")]
    pub kind: String,
    /// With `Factor`: multiplies the request.
    pub factor: Option<i64>,
    /// With `Quantity`: is added to the request.
    pub quantity: Option<MilliCpu>,
    /// How long the boost lasts once the pod is ready, in seconds. None is 0.
    pub duration_seconds: Option<i64>,
}

/// The name of a recommender, or of a metric's resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NameReference {
    pub name: String,
}

/// Names a workload in the namespace of an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// Group and version, such as `apps/v1`. The group tells apart kinds that are not well known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Such as `Deployment`.
    pub kind: String,
    pub name: String,
}

/// When and how pods are changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdatePolicy {
    /// None means [`UpdateMode::Recreate`].
    pub update_mode: Option<UpdateMode>,
    /// A kill for memory within so many seconds after the container's start makes its pod due at once, for so many seconds.
    /// Overrides the agent's configuration. Numbers below 1 do not count.
    #[serde(rename = "evictAfterOOMSeconds")]
    pub evict_after_oom_seconds: Option<i64>,
}

/// The update mode of a VPA.
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
    /// An unknown mode. The agent does not act on it.
    #[serde(other)]
    Unknown,
}

impl UpdateMode {
    /// The modes in which upstream changes running pods.
    pub const UPDATING: [Self; 4] = [Self::Recreate, Self::Auto, Self::InPlaceOrRecreate, Self::InPlace];

    /// Whether upstream changes running pods in this mode.
    pub fn updates_running_pods(self) -> bool {
        Self::UPDATING.contains(&self)
    }
}

/// The bounds of recommendations.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePolicy {
    /// Bounds of the pod's own resources (AEP-7571), with an empty container name. With mode `Off` these keep their amounts.
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
    pub min_allowed: AllowedAmounts,
    pub max_allowed: AllowedAmounts,
    /// The resources to manage. None means both.
    pub controlled_resources: Option<Vec<String>>,
    /// `RequestsAndLimits` (default) or `RequestsOnly`.
    pub controlled_values: Option<ControlledValues>,
    /// The boost of this container, in place of the one for all containers.
    pub startup_boost: Option<StartupBoost>,
}

/// A bound of a policy, by resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, derive_more::Deref)]
#[serde(from = "Quantities")]
pub struct AllowedAmounts {
    #[deref]
    #[serde(flatten)]
    amounts: ResourceList,
    /// The first amount that is no whole number of bytes or of thousandths of a cpu, as it is written. VPA's webhook refuses it.
    #[serde(skip)]
    pub fraction: Option<(Resource, String)>,
}

impl From<Quantities> for AllowedAmounts {
    fn from(all: Quantities) -> Self {
        let fraction = Resource::ALL.into_iter().find_map(|resource| {
            let amount = (*all.0.get(resource.name())?)?;
            let is_whole = amount.exact(resource).is_some();
            (!is_whole).then(|| (resource, amount.to_string()))
        });
        Self {
            amounts: ResourceList::named(&all, ""),
            fraction,
        }
    }
}

impl From<ResourceList> for AllowedAmounts {
    fn from(amounts: ResourceList) -> Self {
        Self {
            amounts,
            fraction: None,
        }
    }
}

/// The amounts that a VPA changes in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ControlledValues {
    RequestsOnly,
    /// Requests, and limits in proportion. The default. An unknown text means this too.
    #[default]
    #[serde(other)]
    RequestsAndLimits,
}

impl ContainerPolicy {
    /// Whether the policy leaves the container alone.
    pub fn is_off(&self) -> bool {
        self.mode.as_deref() == Some("Off")
    }

    /// The first bound that is no whole number of bytes or of thousandths of a cpu: its field, and its value.
    pub fn fraction(&self) -> Option<(String, &str)> {
        let bounds = [("minAllowed", &self.min_allowed), ("maxAllowed", &self.max_allowed)];
        bounds.into_iter().find_map(|(field, bound)| {
            let (resource, value) = bound.fraction.as_ref()?;
            Some((format!("{field}.{resource}"), value.as_str()))
        })
    }

    /// Whether the policy manages this resource.
    pub fn controls(&self, resource: Resource) -> bool {
        let controlled = self.controlled_resources.as_ref();
        controlled.is_none_or(|list| list.iter().any(|name| name == resource.name()))
    }
}

/// The recommender's status of a VPA.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VpaStatus {
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
    /// The requests that the container should have.
    pub target: ResourceList,
    /// Requests below this are too small.
    pub lower_bound: ResourceList,
    /// Requests above this are too large.
    pub upper_bound: ResourceList,
    /// The target before any capping.
    pub uncapped_target: ResourceList,
}

impl VerticalPodAutoscaler {
    /// The VPA's mode (`api.go:GetUpdateMode`).
    pub fn update_mode(&self) -> UpdateMode {
        let policy = self.spec.update_policy.as_ref();
        policy.and_then(|policy| policy.update_mode).unwrap_or_default()
    }

    /// The policies for containers.
    pub fn policies(&self) -> &[ContainerPolicy] {
        let policy = self.spec.resource_policy.as_ref();
        policy.map_or(&[], |policy| &policy.container_policies)
    }

    /// The recommendations for containers.
    pub fn recommendations(&self) -> &[ContainerRecommendation] {
        let recommendation = self.status.recommendation.as_ref();
        recommendation.map_or(&[], |recommendation| &recommendation.container_recommendations)
    }

    /// The recommendation for one container.
    pub fn recommendation_for(&self, container: &str) -> Option<&ContainerRecommendation> {
        let mut all = self.recommendations().iter();
        all.find(|one| one.container_name == container)
    }

    /// Whether the VPA has a startup boost, for all containers or for some (`HasStartupBoost`).
    pub fn has_startup_boost(&self) -> bool {
        let mut policies = self.policies().iter();
        self.spec.startup_boost.is_some() || policies.any(|policy| policy.startup_boost.is_some())
    }

    /// Whether the VPA boosts containers of this name, by their own policy or for all.
    pub fn boosts(&self, container: &str) -> bool {
        self.startup_boosts(container).next().is_some()
    }

    /// How long a container's boost lasts once the pod is ready: by its own policy, or else by the boost for all.
    pub fn boost_duration(&self, container: &str) -> SignedDuration {
        let seconds = self.startup_boosts(container).find_map(|cpu| cpu.duration_seconds);
        SignedDuration::from_secs(seconds.unwrap_or(0).max(0))
    }

    /// The boost of a container's own policy, then the one for all.
    fn startup_boosts(&self, container: &str) -> impl Iterator<Item = &CpuBoost> {
        let own = self
            .policy_for(container)
            .and_then(|policy| policy.startup_boost.as_ref());
        let boosts = own.into_iter().chain(&self.spec.startup_boost);
        boosts.filter_map(|boost| boost.cpu.as_ref())
    }

    /// The policy for a container: the first one for its name, or else the last one for `*` (`GetContainerResourcePolicy`).
    pub fn policy_for(&self, container: &str) -> Option<&ContainerPolicy> {
        let policies = self.policies();
        let own = policies.iter().find(|policy| policy.container_name == container);
        own.or_else(|| policies.iter().rfind(|policy| policy.container_name == "*"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vpa(spec: &Value) -> VerticalPodAutoscaler {
        serde_json::from_value(json!({ "metadata": {"name": "web"}, "spec": spec })).unwrap()
    }

    #[test]
    fn a_containers_own_policy_comes_first() {
        let policies = json!([
            {"containerName": "*", "mode": "Off"},
            {"containerName": "app", "controlledResources": ["cpu"]},
            {"containerName": "app", "mode": "Off"},
            {"containerName": "*", "controlledValues": "RequestsOnly"},
        ]);
        let vpa = vpa(&json!({"resourcePolicy": {"containerPolicies": policies}}));
        let app = vpa.policy_for("app").unwrap();
        assert!(!app.is_off() && app.controls(Resource::Cpu) && !app.controls(Resource::Memory));
        let other = vpa.policy_for("side").unwrap();
        assert_eq!(other.controlled_values, Some(ControlledValues::RequestsOnly));
        assert!(!other.is_off() && other.controls(Resource::Memory));
        assert_eq!(VerticalPodAutoscaler::default().policy_for("app"), None);
    }

    #[test]
    fn a_boost_lasts_as_its_policy_says() {
        let boost = |seconds: Value| json!({"cpu": {"type": "Factor", "factor": 2, "durationSeconds": seconds}});
        let spec = json!({"startupBoost": boost(json!(60)), "resourcePolicy": {"containerPolicies": [
            {"containerName": "app", "startupBoost": boost(json!(30))},
            {"containerName": "side", "startupBoost": boost(json!(-5))}]}});
        let vpa = vpa(&spec);
        let seconds = ["app", "side", "other"].map(|name| vpa.boost_duration(name).as_secs());
        assert_eq!(seconds, [30, 0, 60]);
        assert!(vpa.has_startup_boost() && vpa.boosts("other"));
        let none = VerticalPodAutoscaler::default();
        assert!(!none.has_startup_boost() && !none.boosts("app"));
    }

    #[test]
    fn a_bound_of_a_fraction_is_named() {
        let fraction = |policy: Value| {
            let policy: ContainerPolicy = serde_json::from_value(policy).unwrap();
            policy.fraction().map(|(field, value)| format!("{field} {value}"))
        };
        assert_eq!(
            fraction(json!({"minAllowed": {"cpu": "1m"}, "maxAllowed": {"memory": "1500m"}})).as_deref(),
            Some("maxAllowed.memory 1500m")
        );
        assert_eq!(
            fraction(json!({"minAllowed": {"cpu": "100u"}})).as_deref(),
            Some("minAllowed.cpu 100000n")
        );
        assert_eq!(fraction(json!({"maxAllowed": {"cpu": "1500m", "memory": "1Ki"}})), None);
        // VPA's own definition of the kind allows this.
        assert_eq!(
            fraction(json!({"maxAllowed": {"cpu": "1", "nvidia.com/gpu": "-1"}})),
            None
        );
    }

    #[test]
    fn each_mode_is_read_as_it_is_written() {
        for (mode, read, updates) in [
            (json!("Off"), UpdateMode::Off, false),
            (json!("Initial"), UpdateMode::Initial, false),
            (json!("Recreate"), UpdateMode::Recreate, true),
            (json!(""), UpdateMode::Recreate, true),
            (Value::Null, UpdateMode::Recreate, true),
            (json!("Auto"), UpdateMode::Auto, true),
            (json!("InPlaceOrRecreate"), UpdateMode::InPlaceOrRecreate, true),
            (json!("InPlace"), UpdateMode::InPlace, true),
            (json!("Novel"), UpdateMode::Unknown, false),
        ] {
            let found = vpa(&json!({"updatePolicy": {"updateMode": mode}})).update_mode();
            assert_eq!((found, found.updates_running_pods()), (read, updates), "{mode}");
        }
    }
}
