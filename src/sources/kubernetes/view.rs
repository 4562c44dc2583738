//! What is known of the cluster → what the agent may go by. Pure.
//!
//! A pod is told of only once everything that decides about it is known: whether its namespace has VPAs, who owns it, and
//! what bounds its workload. Half of that would look like an answer: "no VPA" lets go of what stands.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::owners::{OwnerKey, Owners, controller};
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, OwnerKind, Pod, VerticalPodAutoscaler};

/// What is known about one namespace.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    /// None while the list is not known.
    pub(super) vpas: Option<Vec<Arc<VerticalPodAutoscaler>>>,
    /// Whether a list is refused: waiting for it is in vain until somebody changes something.
    pub(super) refused: bool,
    /// None while one of the lists is not known.
    pub(super) bounds: Option<Bounds>,
}

/// What bounds the decisions in a namespace.
type Bounds = (Vec<Arc<LimitRange>>, Vec<Arc<HorizontalPodAutoscaler>>);

/// What one look found to be missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Workloads above pods that are here.
    pub(super) passed: BTreeSet<OwnerKey>,
    /// Workloads above pods to be asked for.
    pub(super) owners: BTreeSet<OwnerKey>,
    /// Namespaces of which it is to be known what bounds them.
    pub(super) bounds: BTreeSet<String>,
}

/// Whether VPAs can concern a pod at all: a workload stands above it. Static pods belong to their node.
pub(super) fn may_have_vpa(pod: &Pod) -> bool {
    controller(&pod.metadata).is_some_and(|owner| owner.kind != "Node")
}

/// Whether everything that decides about a pod is known, as far as it can be. Notes what is missing.
pub(super) fn is_known(pod: &Pod, namespace: Option<&Namespace>, owners: &Owners, missing: &mut Missing) -> bool {
    if !may_have_vpa(pod) {
        return true;
    }
    let Some(namespace) = namespace else { return false };
    let Some(vpas) = &namespace.vpas else {
        return namespace.refused;
    };
    if vpas.is_empty() {
        return true;
    }
    let top = match owners.climb(&pod.metadata, &mut missing.passed) {
        Ok(top) => top,
        Err(unknown) => {
            let refused = owners.is_refused(&unknown);
            missing.owners.insert(unknown);
            return refused;
        }
    };
    let bounded = namespace.bounds.is_some() || namespace.refused;
    if !bounded && top.is_some_and(|top| vpas.iter().any(|vpa| targets(vpa, &top))) {
        missing.bounds.insert(pod.metadata.namespace.clone());
        return false;
    }
    true
}

fn targets(vpa: &VerticalPodAutoscaler, (kind, name): &(OwnerKind, String)) -> bool {
    let target = vpa.spec.target_ref.as_ref();
    target.is_some_and(|target| OwnerKind::named(&target.kind) == Some(*kind) && target.name == *name)
}
