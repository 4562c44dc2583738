//! What is known of the cluster → what the agent may go by. Pure.
//!
//! A pod is told of only once everything that decides about it is known: whether its namespace has VPAs, who owns it, and
//! what bounds its workload. Half of that would look like an answer: "no VPA" lets go of what stands.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::owners::{Climb, OwnerKey, Owners, controller};
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, OwnerKind, Pod, VerticalPodAutoscaler};

/// What is known about one namespace.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    /// None while the list is not known.
    pub(super) vpas: Option<Vec<Arc<VerticalPodAutoscaler>>>,
    /// Whether a list is refused: waiting for it is in vain until somebody changes something.
    pub(super) refused: bool,
    /// None while the lists are not known.
    pub(super) bounds: Option<Bounds>,
}

/// What bounds the decisions in a namespace.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    pub(super) limit_ranges: Vec<Arc<LimitRange>>,
    pub(super) hpas: Vec<Arc<HorizontalPodAutoscaler>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PodReadiness {
    /// Everything about it is known.
    Ready,
    /// This workload above it is to be asked for.
    NeedsOwner(OwnerKey),
    /// A VPA follows its workload, so what bounds the namespace is to be known.
    NeedsBounds,
    /// The namespace's VPAs are not known yet.
    NeedsVpas,
}

/// Whether VPAs can concern a pod at all: a workload stands above it. Static pods belong to their node.
pub(super) fn may_have_vpa(pod: &Pod) -> bool {
    controller(&pod.metadata).is_some_and(|owner| owner.kind != "Node")
}

/// What is missing to decide about a pod. Workloads passed on the way are noted.
pub(super) fn readiness(
    pod: &Pod,
    namespace: Option<&Namespace>,
    owners: &Owners,
    passed: &mut BTreeSet<OwnerKey>,
) -> PodReadiness {
    if !may_have_vpa(pod) {
        return PodReadiness::Ready;
    }
    let Some(namespace) = namespace else {
        return PodReadiness::NeedsVpas;
    };
    let Some(vpas) = &namespace.vpas else {
        return if namespace.refused {
            PodReadiness::Ready
        } else {
            PodReadiness::NeedsVpas
        };
    };
    let bounded = namespace.bounds.is_some() || namespace.refused;
    if vpas.is_empty() {
        return PodReadiness::Ready;
    }
    match owners.climb(&pod.metadata, passed) {
        Climb::Unknown(key) => PodReadiness::NeedsOwner(key),
        Climb::Top(Some(top)) if !bounded && vpas.iter().any(|vpa| targets(vpa, &top)) => PodReadiness::NeedsBounds,
        Climb::Top(_) => PodReadiness::Ready,
    }
}

fn targets(vpa: &VerticalPodAutoscaler, (kind, name): &(OwnerKind, String)) -> bool {
    let target = vpa.spec.target_ref.as_ref();
    target.is_some_and(|target| OwnerKind::named(&target.kind) == Some(*kind) && target.name == *name)
}
