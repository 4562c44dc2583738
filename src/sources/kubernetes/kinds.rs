//! The kinds that the agent follows: their versions at the API server, and the parts that the agent keeps.

use crate::kubernetes::{Kind, Object, Share};
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, Node, ObjectMeta, OwnerKind, Pod, VerticalPodAutoscaler, annotation,
};
use crate::sources::validate::check_vpa;

macro_rules! followed {
    ($($object:ty: $kinds:expr, at most $objects:literal of $kibibytes:literal KiB
    $(, cited $cited:expr)? $(, labels $labels:expr)? $(, reads $reads:expr)? $(, finish $finish:expr)?;)*) => {$(
        impl Object for $object {
            const KINDS: &'static [Kind] = $kinds;
            const SHARE: Share = Share {
                objects: $objects,
                bytes: $kibibytes << 10,
            };
            $(const IS_CITED: bool = $cited;)?
            $(const KEEPS_LABELS: bool = $labels;)?

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            $(fn reads(&self, annotation: &str) -> bool {
                $reads(self, annotation)
            })?

            $(fn finish(&mut self) -> Result<(), String> {
                $finish(self)
            })?
        }
    )*};
}

// The shares are many times the objects of a well-run namespace, and small beside the agent's memory limit.
followed! {
    Pod: &[Kind::new("", "v1", "pods")], at most 1000 of 4096 KiB, labels true, reads reads_of_pod,
        finish finish_pod;
    Node: &[Kind::new("", "v1", "nodes")], at most 1 of 64 KiB;
    LimitRange: &[Kind::new("", "v1", "limitranges")], at most 100 of 256 KiB;
    // v2 came with Kubernetes 1.23. v2beta2 has the same shape.
    HorizontalPodAutoscaler: &[
        Kind::new("autoscaling", "v2", "horizontalpodautoscalers"),
        Kind::new("autoscaling", "v2beta2", "horizontalpodautoscalers"),
    ], at most 1000 of 1024 KiB;
    VerticalPodAutoscaler: &[Kind::new("autoscaling.k8s.io", "v1", "verticalpodautoscalers")], at most 1000 of 2048 KiB,
        cited true, reads reads_of_vpa, finish check_vpa;
}

fn reads_of_pod(pod: &Pod, name: &str) -> bool {
    use annotation::{APPLIED, BOOST_PREFIX, IGNORE, MIRROR, OBSERVED, UPDATED};
    let boosted = name.strip_prefix(BOOST_PREFIX);
    let hooked = annotation::former_hook(name);
    [APPLIED, IGNORE, MIRROR, OBSERVED, UPDATED].contains(&name)
        || hooked.is_some_and(|(_, container)| container.is_none())
        || boosted
            .or(hooked.and_then(|(_, container)| container))
            .is_some_and(|named| pod.all_containers().any(|container| container.name == named))
}

fn finish_pod(pod: &mut Pod) -> Result<(), String> {
    pod.shrink_to_fit();
    Ok(())
}

fn reads_of_vpa(_: &VerticalPodAutoscaler, name: &str) -> bool {
    [annotation::ACT, annotation::CANARY, annotation::CANARY_BAKE].contains(&name)
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
