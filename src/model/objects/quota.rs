//! `v1` ResourceQuota: what the pods of a namespace may request together.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{LabelSelector, ObjectMeta, Pod};
use crate::model::quantity::Quantities;
use crate::model::{QosClass, Requirements, ResourceList};

/// A quota for cpu and memory. Other resources are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    pub metadata: ObjectMeta,
    pub spec: QuotaSpec,
    pub status: QuotaStatus,
}

/// The amounts of a quota, and the pods that it counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaSpec {
    #[serde(deserialize_with = "amounts")]
    pub hard: Requirements,
    /// The quota counts a pod if all scopes match.
    pub scopes: Vec<String>,
    /// Scopes with their operators, in place of labels. All must match.
    pub scope_selector: Option<LabelSelector>,
}

/// The amounts that the API server has counted. Absent until it has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaStatus {
    #[serde(deserialize_with = "amounts")]
    pub hard: Requirements,
    #[serde(deserialize_with = "amounts")]
    pub used: Requirements,
}

/// Reads amounts by the names that a quota gives them: `cpu` is the same as `requests.cpu`.
fn amounts<'de, D: Deserializer<'de>>(amounts: D) -> Result<Requirements, D::Error> {
    let named = Quantities::deserialize(amounts)?;
    let lists = ["", "requests.", "limits."].map(|prefix| ResourceList::named(&named, prefix));
    let [bare, requests, limits] = lists;
    // Of two names for one amount the lower counts.
    let requests = requests.combine(bare, u64::min);
    Ok(Requirements { requests, limits })
}

impl ResourceQuota {
    /// Whether the quota counts a pod (`podMatchesScopeFunc`, kubernetes `pkg/quota/v1/evaluator/core/pods.go`). A scope that no
    /// API server of today knows counts no pod.
    pub fn counts(&self, pod: &Pod) -> bool {
        let selector = self.spec.scope_selector.iter();
        let mut requirements = selector.flat_map(|selector| &selector.match_expressions);
        let mut scopes = self.spec.scopes.iter();
        scopes.all(|scope| is_in_scope(pod, scope, |class| class.is_some()))
            && requirements.all(|scope| is_in_scope(pod, &scope.key, |class| scope.holds(class)))
    }
}

/// Whether a pod is in a scope; that of priority classes `holds` for some of them.
fn is_in_scope(pod: &Pod, scope: &str, holds: impl FnOnce(Option<&String>) -> bool) -> bool {
    let is_best_effort = || pod.qos_class() == QosClass::BestEffort;
    let terminates = || pod.spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0);
    match scope {
        "BestEffort" => is_best_effort(),
        "NotBestEffort" => !is_best_effort(),
        "Terminating" => terminates(),
        "NotTerminating" => !terminates(),
        "PriorityClass" => holds(Some(&pod.spec.priority_class_name).filter(|class| !class.is_empty())),
        "CrossNamespacePodAffinity" => pod.spec.crosses_namespaces,
        _ => false,
    }
}

/// Whether a pod's affinity has a term about other namespaces (`usesCrossNamespacePodAffinity`, as above).
pub(super) fn crosses_namespaces<'de, D: Deserializer<'de>>(affinity: D) -> Result<bool, D::Error> {
    let affinity = Option::<Value>::deserialize(affinity)?.unwrap_or_default();
    let crosses = |term: &Value| {
        let named = term["namespaces"].as_array().is_some_and(|names| !names.is_empty());
        named || !term["namespaceSelector"].is_null()
    };
    Ok(["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let terms = |rule: &str| affinity[kind][rule].as_array().into_iter().flatten();
        let mut preferred = terms("preferredDuringSchedulingIgnoredDuringExecution");
        terms("requiredDuringSchedulingIgnoredDuringExecution").any(crosses)
            || preferred.any(|one| crosses(&one["podAffinityTerm"]))
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
    }

    #[test]
    fn each_scope_counts_its_pods() {
        let requests = json!([{"name": "app", "resources": {"requests": {"cpu": "1"}}}]);
        let term = |more: Value| {
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [more]});
            json!({"affinity": {"podAntiAffinity": required}})
        };
        for (scope, counted, other) in [
            ("BestEffort", json!({}), json!({ "containers": requests })),
            ("NotBestEffort", json!({ "containers": requests }), json!({})),
            ("Terminating", json!({"activeDeadlineSeconds": 0}), json!({})),
            ("NotTerminating", json!({}), json!({"activeDeadlineSeconds": 5})),
            ("PriorityClass", json!({"priorityClassName": "low"}), json!({})),
            (
                "CrossNamespacePodAffinity",
                term(json!({"namespaces": ["bank"]})),
                term(json!({"namespaces": []})),
            ),
            (
                "CrossNamespacePodAffinity",
                term(json!({"namespaceSelector": {}})),
                json!({}),
            ),
        ] {
            let quota: ResourceQuota = serde_json::from_value(json!({"spec": {"scopes": [scope]}})).unwrap();
            assert!(quota.counts(&pod(&counted)), "{scope}");
            assert!(!quota.counts(&pod(&other)), "{scope}");
        }
        let preferred = json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"podAffinityTerm": {"namespaces": ["bank"]}}]}}});
        assert!(pod(&preferred).spec.crosses_namespaces);
        let of_class = json!({"spec": {"scopeSelector": {"matchExpressions":
            [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}});
        let quota: ResourceQuota = serde_json::from_value(of_class).unwrap();
        assert!(quota.counts(&pod(&json!({"priorityClassName": "high"}))));
        assert!(!quota.counts(&pod(&json!({"priorityClassName": "low"}))));
        let unknown: ResourceQuota = serde_json::from_value(json!({"spec": {"scopes": ["Novel"]}})).unwrap();
        assert!(!unknown.counts(&pod(&json!({}))));
        assert!(ResourceQuota::default().counts(&pod(&json!({}))));
    }

    #[test]
    fn each_name_of_an_amount_is_read() {
        let hard = json!({"cpu": "3", "requests.cpu": "2", "memory": "1Gi", "limits.cpu": "4", "limits.memory": "5Gi"});
        let amounts = amounts(hard).unwrap();
        let texts = amounts
            .fields()
            .map(|(name, text)| format!("{name}={}", text.unwrap_or_default()));
        assert_eq!(
            texts,
            [
                "requests.cpu=2",
                "requests.memory=1Gi",
                "limits.cpu=4",
                "limits.memory=5Gi"
            ]
        );
    }
}
