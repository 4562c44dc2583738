//! The known objects → whether a pod may be decided about. Pure.
//!
//! A pod keeps its last decision, or its saved state, until all objects that decide about it are known: the VPAs of its namespace, its
//! owners, and the bounds of its workload. With only some of them the decision would be wrong: "no VPA" reverts the pod's limits.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::owners::{OwnerKey, Owners};
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, OwnerKind, OwnerReference, Pod, ResourceQuota, Shared, VerticalPodAutoscaler,
    WorkloadKey,
};
use crate::sources::{NodeView, Undecided};

/// The known objects of one namespace.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    /// None while the list is unknown.
    pub(super) vpas: Option<Vec<Shared<VerticalPodAutoscaler>>>,
    /// Whether a list is refused until a change of rules.
    pub(super) refused: bool,
    /// None while one of the lists is unknown.
    pub(super) bounds: Option<Bounds>,
    /// The targets of the VPAs, from the first pod on that needs them.
    pub(super) targets: OnceCell<Targets>,
}

/// The workloads that the VPAs of a namespace target. Both these and the pods may be thousands.
#[derive(Debug, Default)]
pub(super) struct Targets {
    known: BTreeSet<(OwnerKind, String)>,
    /// Whether a VPA targets a workload of another kind. Such a workload above a pod is known by references alone, so it may be
    /// any.
    has_others: bool,
}

impl Targets {
    fn of(vpas: &[Shared<VerticalPodAutoscaler>]) -> Self {
        let mut targets = Self::default();
        for target in vpas.iter().filter_map(|vpa| vpa.spec.target_ref.as_ref()) {
            match WorkloadKey::from(target).known {
                Some(kind) => {
                    targets.known.insert((kind, target.name.clone()));
                }
                None => targets.has_others = true,
            }
        }
        targets
    }

    /// Whether one of them may be above a pod with this topmost well-known workload.
    fn may_contain(&self, top: Option<&(OwnerKind, String)>) -> bool {
        self.has_others || top.is_some_and(|top| self.known.contains(top))
    }
}

/// The objects that bound the decisions in a namespace. There are no quotas while their list is refused.
type Bounds = (
    Vec<Shared<LimitRange>>,
    Vec<Shared<HorizontalPodAutoscaler>>,
    Vec<Shared<ResourceQuota>>,
);

/// The objects that the pods of a namespace need.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Known workloads above local pods.
    pub(super) passed: BTreeSet<OwnerKey>,
    /// Unknown workloads above local pods.
    pub(super) owners: BTreeSet<OwnerKey>,
    /// Whether a pod needs the bounds, which are unknown.
    pub(super) bounds: bool,
}

/// The pods of the first list. The first view waits for these and for the Node, and not for ever: a namespace whose pods come and
/// go, or change their owners, or whose objects cannot be listed, holds up no other. Those that are not waited for any more are in
/// the first view all the same, without a decision: a pod that is not would lose its saved state.
#[derive(Debug)]
pub(super) struct FirstPods {
    /// By UID: the controllers at the time of the first list.
    controllers: BTreeMap<String, Option<OwnerReference>>,
    /// The end of the wait.
    pub(super) until: Instant,
}

impl FirstPods {
    pub(super) fn new(view: &NodeView, until: Instant) -> Self {
        let pods = view.pods().map(|pod| &pod.metadata);
        let controllers = pods.map(|pod| (pod.uid.clone(), pod.controller().cloned()));
        Self {
            controllers: controllers.collect(),
            until,
        }
    }

    /// Whether the first view waits for the objects about the pod, which was in the first list and still has the controller of then.
    pub(super) fn waits_for(&self, pod: &Pod, now: Instant) -> bool {
        let controller = self.controllers.get(&pod.metadata.uid);
        now < self.until && controller.is_some_and(|known| known.as_ref() == pod.metadata.controller())
    }
}

/// Whether a VPA can target a pod: a workload owns it. The Node owns static pods.
pub(super) fn may_have_vpa(pod: &Pod) -> bool {
    pod.metadata.controller().is_some_and(|owner| owner.kind != "Node")
}

const fn unknown(is_refused: bool) -> Undecided {
    if is_refused {
        Undecided::Refused
    } else {
        Undecided::Awaited
    }
}

/// Whether all objects that decide about a pod are known, as far as a decision needs them. Adds the missing ones to `missing`.
///
/// Errors: why one is not known.
pub(super) fn objects_about(
    pod: &Pod,
    namespace: Option<&Namespace>,
    owners: &Owners,
    missing: &mut Missing,
) -> Result<(), Undecided> {
    if !may_have_vpa(pod) {
        return Ok(());
    }
    let namespace = namespace.ok_or(Undecided::Awaited)?;
    let vpas = namespace.vpas.as_ref().ok_or(unknown(namespace.refused))?;
    if vpas.is_empty() {
        return Ok(());
    }
    let top = owners.climb(&pod.metadata, &mut missing.passed).map_err(|owner| {
        let why = unknown(owners.is_refused(&owner));
        missing.owners.insert(owner);
        why
    })?;
    let targets = namespace.targets.get_or_init(|| Targets::of(vpas));
    if namespace.bounds.is_some() || !targets.may_contain(top.as_ref()) {
        return Ok(());
    }
    missing.bounds = true;
    Err(unknown(namespace.refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::parse_manifests;

    #[test]
    fn another_kind_may_be_above_any_pod() {
        for (target, may_contain) in [
            ("{kind: Deployment, name: web}", [true, false, false]),
            ("{kind: Rollout, name: web}", [true; 3]),
            ("{apiVersion: example.com/v1, kind: Deployment, name: web}", [true; 3]),
        ] {
            let metadata = "{name: v, namespace: shop}";
            let text = format!("{{kind: VerticalPodAutoscaler, metadata: {metadata}, spec: {{targetRef: {target}}}}}");
            let view = parse_manifests("vpa", &text).unwrap().view;
            let targets = Targets::of(&view.vpas);
            let [own, other] = [OwnerKind::Deployment, OwnerKind::StatefulSet].map(|kind| (kind, "web".to_owned()));
            let tops = [Some(&own), Some(&other), None];
            assert_eq!(tops.map(|top| targets.may_contain(top)), may_contain, "{target}");
        }
    }
}
