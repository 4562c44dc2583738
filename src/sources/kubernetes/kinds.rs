//! The kinds that the agent follows: their versions at the API server, their memory, and the parts that the agent keeps.

use crate::kubernetes::{KeptObject, Kind, Object};
use crate::model::objects::annotation::AnnotatedKind;
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, Node, ObjectMeta, Owner, OwnerKind, Pod, ResourceQuota, TargetRef,
    VerticalPodAutoscaler,
};
use crate::sources::validate::check_vpa;

macro_rules! followed {
    ($($object:ty: $kinds:expr, $mebibytes:literal MiB $(, |$it:ident| $target:expr)?;)*) => {$(
        impl Object for $object {
            const KINDS: &'static [Kind] = $kinds;
            const MEMORY: u64 = $mebibytes << 20;

            $(fn target(&self) -> Option<&TargetRef> {
                let $it = self;
                $target
            })?
        }
    )*};
}

// Many times the objects of a full node in a well-run cluster, and together small beside the agent's memory limit.
followed! {
    Pod: &[Kind::new("", "v1", "pods")], 8 MiB;
    Node: &[Kind::new("", "v1", "nodes")], 1 MiB;
    LimitRange: &[Kind::new("", "v1", "limitranges")], 2 MiB;
    ResourceQuota: &[Kind::new("", "v1", "resourcequotas")], 2 MiB;
    // v2 came with Kubernetes 1.23. v2beta2 has the same shape.
    HorizontalPodAutoscaler: &[
        Kind::new("autoscaling", "v2", "horizontalpodautoscalers"),
        Kind::new("autoscaling", "v2beta2", "horizontalpodautoscalers"),
    ], 4 MiB, |hpa| Some(&hpa.spec.scale_target_ref);
    VerticalPodAutoscaler: &[Kind::new("autoscaling.k8s.io", "v1", "verticalpodautoscalers")], 8 MiB,
        |vpa| vpa.spec.target_ref.as_ref();
}

macro_rules! only_metadata {
    ($($object:ty),*) => {$(
        impl KeptObject for $object {
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}

only_metadata!(Node, LimitRange, ResourceQuota, HorizontalPodAutoscaler, Owner);

impl KeptObject for Pod {
    const KEEPS_LABELS: bool = true;
    const ANNOTATED: Option<AnnotatedKind> = Some(AnnotatedKind::Pod);

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn has_container(&self, name: &str) -> bool {
        self.all_containers().any(|container| container.name == name)
    }
}

impl KeptObject for VerticalPodAutoscaler {
    const IS_CITED: bool = true;
    const ANNOTATED: Option<AnnotatedKind> = Some(AnnotatedKind::Vpa);

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn check(&self) -> Result<(), String> {
        check_vpa(self)
    }
}

/// The versions of a workload kind at the API server, newest first.
pub(super) fn workloads(kind: OwnerKind) -> impl Iterator<Item = Kind> {
    let (group, versions, plural): (_, &[_], _) = match kind {
        OwnerKind::Deployment => ("apps", &["v1"], "deployments"),
        OwnerKind::ReplicaSet => ("apps", &["v1"], "replicasets"),
        OwnerKind::StatefulSet => ("apps", &["v1"], "statefulsets"),
        OwnerKind::DaemonSet => ("apps", &["v1"], "daemonsets"),
        OwnerKind::Job => ("batch", &["v1"], "jobs"),
        // v1 came with Kubernetes 1.21.
        OwnerKind::CronJob => ("batch", &["v1", "v1beta1"], "cronjobs"),
        OwnerKind::ReplicationController => ("", &["v1"], "replicationcontrollers"),
    };
    versions.iter().map(move |version| Kind::new(group, version, plural))
}
