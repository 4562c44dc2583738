//! Finds the workload above a pod, and the VPA that controls the pod.
//!
//! `GetControllingVPAForPod` (autoscaler `pkg/utils/vpa/api.go`) with `FindTopMostWellKnownOrScalable`
//! (`pkg/target/controller_fetcher`): the topmost workload counts, the strongest VPA is chosen from those that can control pods,
//! and the workload's selector must select the pod.
//!
//! A workload of a kind that is not well known counts if a VPA targets it by group, kind and name: whoever wrote the VPA says
//! that it can be scaled. It has no selector here, and ends the owner chain, because the agent does not read such kinds.
//!
//! Selectors of labels have the API's semantics (`LabelSelectorAsSelector`, apimachinery `pkg/apis/meta/v1/helpers.go`).

use std::collections::BTreeMap;

use super::index::{Namespace, Workload};
use crate::model::Resource;
use crate::model::objects::{
    HorizontalPodAutoscaler, LabelSelector, Owner, Pod, TargetRef, VerticalPodAutoscaler, WorkloadKey,
};

/// The workloads above a pod.
#[derive(Debug)]
pub(super) struct OwnerChain<'n, 'a> {
    /// The topmost workload.
    pub(super) workload: TargetRef,
    /// The workloads above the pod that the namespace's objects name, the nearest first, the topmost last.
    workloads: Vec<&'n Workload<'a>>,
    /// The topmost workload, if its kind is well known. Workloads of other kinds have no selector here.
    known: Option<&'a Owner>,
    /// The owner of the topmost workload, if the owner may be a scalable workload itself.
    pub(super) unknown_owner: Option<String>,
}

impl<'n, 'a> OwnerChain<'n, 'a> {
    /// Follows the owners of a pod up to its topmost workload: of a well-known kind, or of any kind that a VPA targets.
    ///
    /// Errors: why no VPA can control the pod.
    pub(super) fn above(pod: &'n Pod, namespace: &'n Namespace<'a>) -> Result<Self, String> {
        let mut next = pod.metadata.controller().map(WorkloadKey::from);
        let mut chain: Option<Self> = None;
        while let Some(key) = next {
            if key.is_node() {
                return Err("the pod belongs to its node: a static pod".to_owned());
            }
            let found = namespace.workloads.get(&key);
            let owner = found.and_then(|workload| workload.owner);
            if key.known.is_some() && owner.is_none() {
                return Err(format!("the pod's owner {key} is not known"));
            }
            let is_target = || found.is_some_and(|workload| !workload.vpas.is_empty());
            if key.known.is_none() && !is_target() {
                let chain =
                    chain.ok_or_else(|| format!("no VPA targets the pod's controller {key}, of an unknown kind"))?;
                let unknown_owner = Some(key.to_string());
                return Ok(Self { unknown_owner, ..chain });
            }
            let mut workloads = chain.map(|chain| chain.workloads).unwrap_or_default();
            if found.is_some_and(|found| workloads.iter().any(|known| std::ptr::eq(*known, found))) {
                return Err("the pod's owners own each other in a circle".to_owned());
            }
            workloads.extend(found);
            chain = Some(Self {
                workload: key.into(),
                workloads,
                known: owner,
                unknown_owner: None,
            });
            next = owner
                .and_then(|owner| owner.metadata.controller())
                .map(WorkloadKey::from);
        }
        chain.ok_or_else(|| "no owner reference of the pod names a controller".to_owned())
    }

    /// The VPAs of the topmost workload, the strongest first, if its selector selects the pod.
    ///
    /// Errors: why no VPA can control the pod.
    pub(super) fn vpas(&self, pod: &Pod) -> Result<&'n [&'a VerticalPodAutoscaler], String> {
        let vpas = self.workloads.last().map_or(&[][..], |workload| &workload.vpas);
        let selected = self.known.is_none_or(|owner| {
            let selector = owner.selector.as_ref();
            selector.is_some_and(|selector| selects(selector, &pod.metadata.labels))
        });
        match self.workloads.iter().flat_map(|workload| &workload.vpas).next() {
            Some(VerticalPodAutoscaler { metadata, .. }) if vpas.is_empty() => {
                let (vpa, TargetRef { kind, name, .. }) = (&metadata.name, &self.workload);
                Err(format!(
                    "VerticalPodAutoscaler {vpa} must target {kind} {name}, the topmost workload"
                ))
            }
            // Without a VPA the selector does not matter.
            _ if vpas.is_empty() || selected => Ok(vpas),
            _ => Err("the workload's selector (of a CronJob its pods' labels) does not select the pod".to_owned()),
        }
    }

    /// A horizontal autoscaler of any of the workloads that scales on the requests of a container.
    pub(super) fn hpa_on(&self, container: &str, resource: Resource) -> Option<&'a HorizontalPodAutoscaler> {
        let mut hpas = self.workloads.iter().flat_map(|workload| &workload.hpas);
        hpas.find(|hpa| scales_on(hpa, container, resource)).copied()
    }
}

/// The workload above a pod according to the pod alone. Pods of Deployments have their ReplicaSet's hash as a label.
pub(super) fn declared_workload(pod: &Pod) -> TargetRef {
    let metadata = &pod.metadata;
    let target = |kind: &str, name: &str| TargetRef {
        kind: kind.to_owned(),
        name: name.to_owned(),
        ..TargetRef::default()
    };
    let deployment = |replica_set: &str| {
        let hash = metadata.labels.get("pod-template-hash")?;
        let name = replica_set.strip_suffix(hash)?.strip_suffix('-')?;
        (!name.is_empty()).then(|| target("Deployment", name))
    };
    match metadata.controller() {
        Some(owner) if owner.kind == "ReplicaSet" => {
            deployment(&owner.name).unwrap_or_else(|| target(&owner.kind, &owner.name))
        }
        Some(owner) if owner.kind != "Node" => target(&owner.kind, &owner.name),
        Some(_) | None => target("Pod", &metadata.name),
    }
}

/// Whether an HPA scales on the requests of a container. An HPA without metrics scales on cpu: the API's default. A metric with
/// a target of type `AverageValue` compares use with an amount, so that no request moves it.
fn scales_on(hpa: &HorizontalPodAutoscaler, container: &str, resource: Resource) -> bool {
    let metrics = &hpa.spec.metrics;
    if metrics.is_empty() || hpa.spec.target_cpu_utilization_percentage.is_some() {
        return resource == Resource::Cpu;
    }
    let mut sources = metrics
        .iter()
        .flat_map(|metric| [&metric.resource, &metric.container_resource]);
    sources.any(|source| {
        source.as_ref().is_some_and(|source| {
            source.name == resource.name()
                && source.target.kind != "AverageValue"
                && (source.container.is_empty() || source.container == container)
        })
    })
}

/// Whether every requirement holds. A selector without requirements selects everything. A selector that the
/// API would refuse selects nothing.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter();
    let mut requirements = selector.match_expressions.iter();
    equal.all(|(key, value)| labels.get(key) == Some(value))
        && requirements.all(|requirement| requirement.holds(labels.get(&requirement.key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::SelectorRequirement;

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
