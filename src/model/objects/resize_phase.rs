//! How far the kubelet has got with a pod's latest resize, as the pod's status tells it (KEP-1287).
//!
//! The kubelet first allocates the spec's amounts, then writes them. Conditions say where a resize stopped.

use super::{Pod, annotation};
use crate::model::Withheld;

/// The phase of a pod's latest resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizePhase {
    /// The API server has accepted the resize, and the kubelet has not answered yet.
    Accepted,
    /// The kubelet has deferred the resize, found it infeasible, or failed to write the amounts that it had allocated.
    Withheld(Withheld),
    /// The kubelet has allocated the amounts and is writing them.
    InProgress,
    /// The containers run with the amounts of the spec.
    Settled,
}

impl ResizePhase {
    /// The phase of the resize that led to the pod's present spec.
    ///
    /// A condition about an earlier spec does not count. Kubelets before 1.34 do not say which spec a condition is about: there
    /// every condition counts, and without one this function compares the containers' amounts.
    ///
    /// The kubelet resizes no mirror pod, and reports what others have written to the static pod's containers.
    pub fn of(pod: &Pod) -> Self {
        if pod.metadata.annotations.contains_key(annotation::MIRROR) {
            return Self::Settled;
        }
        if let Some(pending) = pod.resize_condition("PodResizePending") {
            let why = pending.message.clone();
            return Self::Withheld(match pending.reason.as_str() {
                "Infeasible" => Withheld::Infeasible(why),
                _ => Withheld::Deferred(why),
            });
        }
        if let Some(progress) = pod.resize_condition("PodResizeInProgress") {
            return match progress.reason.as_str() {
                "Error" => Self::Withheld(Withheld::Failed(progress.message.clone())),
                _ => Self::InProgress,
            };
        }
        let settled = match pod.status.observed_generation {
            0 => runs_with_spec(pod),
            observed => observed >= pod.metadata.generation,
        };
        if settled { Self::Settled } else { Self::Accepted }
    }

    /// Whether the kubelet has not allocated the amounts of the spec.
    pub const fn is_open(&self) -> bool {
        use Withheld::{Deferred, Infeasible};
        matches!(self, Self::Accepted | Self::Withheld(Deferred(_) | Infeasible(_)))
    }
}

impl Pod {
    /// Whether the status shows that the pod's kubelet resizes in place: it then has the containers' resources, as
    /// `ValidatePodResize` (kubernetes `pkg/apis/core/validation`) demands. The API server resizes no mirror pod.
    pub fn resizes_in_place(&self) -> bool {
        let mut statuses = self.status.container_statuses.iter();
        !self.metadata.annotations.contains_key(annotation::MIRROR) && statuses.any(|status| status.resources.is_some())
    }
}

fn runs_with_spec(pod: &Pod) -> bool {
    pod.running_containers().all(|container| {
        let status = pod.container_status(&container.name);
        let in_force = status.and_then(|status| status.resources);
        in_force.is_none_or(|in_force| container.resources.or(in_force) == in_force)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod of the second generation.
    fn pod(status: &Value) -> Pod {
        let spec = json!({"containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}]});
        let metadata = json!({"name": "web", "generation": 2});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn the_status_says_how_far_a_resize_is() {
        let why = || "why".to_owned();
        let condition = |kind: &str, reason: &str, observed: i64| {
            json!({"observedGeneration": 2, "conditions": [{"type": kind, "status": "True", "reason": reason, "message": "why",
                "observedGeneration": observed}]})
        };
        let pending = |reason: &str, observed| condition("PodResizePending", reason, observed);
        let in_force =
            |amounts: Value| json!({"containerStatuses": [{"name": "app", "resources": {"requests": amounts}}]});
        for (status, phase, is_open) in [
            (
                pending("Deferred", 2),
                ResizePhase::Withheld(Withheld::Deferred(why())),
                true,
            ),
            (
                pending("Infeasible", 2),
                ResizePhase::Withheld(Withheld::Infeasible(why())),
                true,
            ),
            (
                pending("Infeasible", 0),
                ResizePhase::Withheld(Withheld::Infeasible(why())),
                true,
            ),
            (pending("Infeasible", 1), ResizePhase::Settled, false),
            (
                condition("PodResizeInProgress", "Error", 2),
                ResizePhase::Withheld(Withheld::Failed(why())),
                false,
            ),
            (condition("PodResizeInProgress", "", 2), ResizePhase::InProgress, false),
            (json!({"observedGeneration": 1}), ResizePhase::Accepted, true),
            (json!({"observedGeneration": 2}), ResizePhase::Settled, false),
            // A kubelet that reports no generation.
            (
                in_force(json!({"cpu": "200m", "memory": "1Mi"})),
                ResizePhase::Settled,
                false,
            ),
            (in_force(json!({"cpu": "100m"})), ResizePhase::Accepted, true),
            (json!({}), ResizePhase::Settled, false),
        ] {
            let mut pod = pod(&status);
            let found = ResizePhase::of(&pod);
            assert_eq!((&found, found.is_open()), (&phase, is_open), "{status}");
            pod.metadata
                .annotations
                .insert(annotation::MIRROR.to_owned(), String::new());
            assert_eq!(ResizePhase::of(&pod), ResizePhase::Settled, "a mirror pod: {status}");
        }
    }

    #[test]
    fn only_reported_resources_show_a_kubelet_that_resizes() {
        let mut resizes = pod(&json!({"containerStatuses": [{"name": "app", "resources": {}}]}));
        assert!(resizes.resizes_in_place());
        assert!(!pod(&json!({"containerStatuses": [{"name": "app"}]})).resizes_in_place());
        resizes
            .metadata
            .annotations
            .insert(annotation::MIRROR.to_owned(), String::new());
        assert!(!resizes.resizes_in_place());
    }
}
