//! Where the API server serves the kinds that matter here, and what is kept of their objects.

use crate::kubernetes::{Kind, Object};
use crate::objects::{HorizontalPodAutoscaler, LimitRange, Node, ObjectMeta, OwnerKind, Pod, VerticalPodAutoscaler};
use crate::sources::validate::check_vpa;

macro_rules! followed {
    ($($object:ty: $kinds:expr $(, cited $cited:expr)? $(, check $check:expr)? $(, slim $slim:expr)?;)*) => {$(
        impl Object for $object {
            const KINDS: &'static [Kind] = $kinds;
            $(const IS_CITED: bool = $cited;)?

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            $(fn check(&self) -> Result<(), String> {
                $check(self).map_err(|invalid| format!("{}: {}", invalid.field, invalid.message))
            })?

            $(fn slim(&mut self) {
                $slim(self);
            })?
        }
    )*};
}

followed! {
    Pod: &[Kind::new("", "v1", "pods")], slim Pod::shrink_to_fit;
    Node: &[Kind::new("", "v1", "nodes")];
    LimitRange: &[Kind::new("", "v1", "limitranges")];
    // v2 came with 1.23; before, v2beta2 had the same shape.
    HorizontalPodAutoscaler: &[
        Kind::new("autoscaling", "v2", "horizontalpodautoscalers"),
        Kind::new("autoscaling", "v2beta2", "horizontalpodautoscalers"),
    ];
    VerticalPodAutoscaler: &[Kind::new("autoscaling.k8s.io", "v1", "verticalpodautoscalers")], cited true, check check_vpa;
}

/// Where workloads of a kind are served, newest version first.
pub(super) fn workloads(kind: OwnerKind) -> Vec<Kind> {
    match kind {
        OwnerKind::Deployment => vec![Kind::new("apps", "v1", "deployments")],
        OwnerKind::ReplicaSet => vec![Kind::new("apps", "v1", "replicasets")],
        OwnerKind::StatefulSet => vec![Kind::new("apps", "v1", "statefulsets")],
        OwnerKind::DaemonSet => vec![Kind::new("apps", "v1", "daemonsets")],
        OwnerKind::Job => vec![Kind::new("batch", "v1", "jobs")],
        // v1 came with 1.21.
        OwnerKind::CronJob => vec![
            Kind::new("batch", "v1", "cronjobs"),
            Kind::new("batch", "v1beta1", "cronjobs"),
        ],
        OwnerKind::ReplicationController => vec![Kind::new("", "v1", "replicationcontrollers")],
    }
}
