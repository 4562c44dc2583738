//! Finds the workload above a pod, and the VPA that controls the pod.
//!
//! `GetControllingVPAForPod` (autoscaler `pkg/utils/vpa/api.go`) with `FindTopMostWellKnownOrScalable`
//! (`pkg/target/controller_fetcher`): the topmost workload counts, the strongest VPA is chosen from those that the agent acts
//! on, and the workload's selector must select the pod.
//!
//! A workload of a kind that is not well known ends the owner chain: only an API server can say whether it can be scaled, and
//! by which labels.
//!
//! Selectors of labels have the API's semantics (`LabelSelectorAsSelector`, apimachinery `pkg/apis/meta/v1/helpers.go`).

use std::collections::BTreeMap;

use super::index::Namespace;
use crate::model::Resource;
use crate::model::objects::{
    HorizontalPodAutoscaler, LabelSelector, ObjectMeta, Owner, OwnerKind, OwnerReference, Pod, SelectorRequirement,
    TargetRef, VerticalPodAutoscaler,
};

/// The workloads above a pod.
#[derive(Debug)]
pub(super) struct OwnerChain<'a> {
    top: &'a Owner,
    /// The workloads between the pod and the topmost, the nearest first.
    below: Vec<&'a Owner>,
}

impl<'a> OwnerChain<'a> {
    /// Follows the owners of a pod up to its topmost well-known workload.
    ///
    /// Errors: why no VPA can control the pod.
    pub(super) fn above(pod: &Pod, namespace: &Namespace<'a>) -> Result<Self, String> {
        let mut reference =
            controller(&pod.metadata).ok_or_else(|| "no owner reference of the pod names a controller".to_owned())?;
        let mut below: Vec<&'a Owner> = Vec::with_capacity(2);
        loop {
            if reference.kind == "Node" {
                return Err("the pod belongs to its node: a static pod".to_owned());
            }
            let OwnerReference { kind, name, .. } = reference;
            let Some(known) = OwnerKind::named(kind) else {
                let unknown = || format!("the pod's controller is {kind} {name}, of an unknown kind");
                let top = below.pop().ok_or_else(unknown)?;
                return Ok(Self { top, below });
            };
            let missing = || format!("the pod's owner {kind} {name} is not known");
            let owner = namespace.owner(known, name).ok_or_else(missing)?;
            if below.iter().any(|below| std::ptr::eq(*below, owner)) {
                return Err("the pod's owners own each other in a circle".to_owned());
            }
            match controller(&owner.metadata) {
                Some(next) => reference = next,
                None => return Ok(Self { top: owner, below }),
            }
            below.push(owner);
        }
    }

    pub(super) fn workload(&self) -> TargetRef {
        TargetRef {
            kind: format!("{:?}", self.top.kind),
            name: self.top.metadata.name.clone(),
        }
    }

    /// The VPAs of the topmost workload, the strongest first, if its selector selects the pod.
    ///
    /// Errors: why no VPA can control the pod.
    pub(super) fn vpas<'n>(
        &self,
        pod: &Pod,
        namespace: &'n Namespace<'a>,
    ) -> Result<&'n [&'a VerticalPodAutoscaler], String> {
        let vpas = namespace.workload(self.top).map_or(&[][..], |workload| &workload.vpas);
        let selector = self.top.selector.as_ref();
        // Without a VPA the selector does not matter.
        if vpas.is_empty() || selector.is_some_and(|selector| selects(selector, &pod.metadata.labels)) {
            return Ok(vpas);
        }
        Err("the workload's selector does not select the pod".to_owned())
    }

    /// A horizontal autoscaler of any of the workloads that scales on a resource.
    pub(super) fn hpa_on(&self, resource: Resource, namespace: &Namespace<'a>) -> Option<&'a HorizontalPodAutoscaler> {
        let owners = self.below.iter().chain([&self.top]);
        let workloads = owners.filter_map(|owner| namespace.workload(owner));
        let mut hpas = workloads.flat_map(|workload| &workload.hpas);
        hpas.find(|hpa| scales_on(hpa, resource)).copied()
    }
}

/// The workload above a pod according to the pod alone. Pods of Deployments have their ReplicaSet's hash as a label.
pub(super) fn declared_workload(pod: &Pod) -> TargetRef {
    let metadata = &pod.metadata;
    let target = |kind: &str, name: &str| TargetRef {
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    let deployment = |replica_set: &str| {
        let hash = metadata.labels.get("pod-template-hash")?;
        let name = replica_set.strip_suffix(hash)?.strip_suffix('-')?;
        (!name.is_empty()).then(|| target("Deployment", name))
    };
    match controller(metadata) {
        Some(owner) if owner.kind == "ReplicaSet" => {
            deployment(&owner.name).unwrap_or_else(|| target(&owner.kind, &owner.name))
        }
        Some(owner) if owner.kind != "Node" => target(&owner.kind, &owner.name),
        Some(_) | None => target("Pod", &metadata.name),
    }
}

/// The managing controller. Of several, the last counts, as upstream.
fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut references = metadata.owner_references.iter().rev();
    references.find(|reference| reference.controller == Some(true))
}

/// Whether an HPA scales on a resource. An HPA without metrics scales on cpu: the API's default.
fn scales_on(hpa: &HorizontalPodAutoscaler, resource: Resource) -> bool {
    let metrics = &hpa.spec.metrics;
    if metrics.is_empty() || hpa.spec.target_cpu_utilization_percentage.is_some() {
        return resource == Resource::Cpu;
    }
    let name = resource.to_string();
    metrics
        .iter()
        .flat_map(|metric| [&metric.resource, &metric.container_resource])
        .flatten()
        .any(|source| source.name == name)
}

/// Whether every requirement holds. A selector without requirements selects everything. A selector that the
/// API would refuse selects nothing.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter();
    let mut requirements = selector.match_expressions.iter();
    equal.all(|(key, value)| labels.get(key) == Some(value))
        && requirements.all(|requirement| holds(requirement, labels))
}

fn holds(requirement: &SelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let values = &requirement.values;
    let label = labels.get(&requirement.key);
    match requirement.operator.as_str() {
        "In" => label.is_some_and(|label| values.contains(label)),
        // An absent label is in no set. An empty set is malformed.
        "NotIn" => !values.is_empty() && label.is_none_or(|label| !values.contains(label)),
        "Exists" => values.is_empty() && label.is_some(),
        "DoesNotExist" => values.is_empty() && label.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(operator: &str, values: &[&str]) -> SelectorRequirement {
        SelectorRequirement {
            key: "tier".to_owned(),
            operator: operator.to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }
    }

    fn holds_for(tier: Option<&str>, operator: &str, values: &[&str]) -> bool {
        let labels = tier
            .map(|tier| ("tier".to_owned(), tier.to_owned()))
            .into_iter()
            .collect();
        let selector = LabelSelector {
            match_expressions: vec![requirement(operator, values)],
            ..LabelSelector::default()
        };
        selects(&selector, &labels)
    }

    #[test]
    fn expressions_mean_what_the_api_says() {
        assert!(holds_for(Some("db"), "In", &["web", "db"]));
        assert!(!holds_for(None, "In", &["db"]));
        assert!(!holds_for(Some("db"), "NotIn", &["db"]));
        assert!(holds_for(None, "NotIn", &["db"]));
        assert!(holds_for(Some("db"), "Exists", &[]));
        assert!(!holds_for(None, "Exists", &[]));
        assert!(holds_for(None, "DoesNotExist", &[]));
        assert!(!holds_for(Some("db"), "DoesNotExist", &[]));
    }

    #[test]
    fn a_malformed_expression_selects_nothing() {
        for tier in [None, Some("db")] {
            assert!(!holds_for(tier, "In", &[]));
            assert!(!holds_for(tier, "NotIn", &[]));
            assert!(!holds_for(tier, "Exists", &["db"]));
            assert!(!holds_for(tier, "DoesNotExist", &["db"]));
            assert!(!holds_for(tier, "Gt", &["1"]));
        }
    }

    #[test]
    fn labels_and_expressions_must_all_hold() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let mut selector = LabelSelector::default();
        assert!(selects(&selector, &labels), "no requirement at all");
        selector.match_labels.clone_from(&labels);
        assert!(selects(&selector, &labels));
        selector.match_expressions.push(requirement("Exists", &[]));
        assert!(!selects(&selector, &labels));
    }
}
