//! The JSON of a workload of any kind → an [`Owner`].

use serde::Deserialize;
use serde_json::{Value, json};

use crate::model::objects::{LabelSelector, ObjectMeta, Owner, OwnerKind};

/// The parts of a workload that the agent reads.
#[derive(Debug, Deserialize)]
pub(super) struct Workload {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WorkloadPart,
    #[serde(default)]
    status: WorkloadPart,
}

/// A spec or a status. Each field is in one of them.
#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadPart {
    selector: Option<LabelSelector>,
    replicas: Option<u64>,
    parallelism: Option<u64>,
    desired_number_scheduled: Option<u64>,
}

impl Workload {
    pub(super) fn into_owner(self, kind: OwnerKind) -> Owner {
        let Self { metadata, spec, status } = self;
        let pods = spec.replicas.max(spec.parallelism).max(status.desired_number_scheduled);
        Owner {
            kind,
            metadata,
            selector: spec.selector,
            pods: pods.unwrap_or(0),
        }
    }
}

/// Rewrites the selectors of CronJobs and ReplicationControllers in the notation of the other kinds.
pub(super) fn in_one_notation(kind: OwnerKind, workload: &mut Value) {
    let labels = match kind {
        OwnerKind::CronJob => workload
            .pointer("/spec/jobTemplate/spec/template/metadata/labels")
            .cloned(),
        OwnerKind::ReplicationController => workload.pointer("/spec/selector").cloned(),
        _ => None,
    };
    if let (Some(labels), Some(Value::Object(spec))) = (labels, workload.get_mut("spec")) {
        spec.insert("selector".to_owned(), json!({ "matchLabels": labels }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: OwnerKind, spec: &Value, status: &Value) -> Owner {
        let mut workload = json!({"metadata": {"name": "web"}, "spec": spec, "status": status});
        in_one_notation(kind, &mut workload);
        let workload: Workload = serde_json::from_value(workload).unwrap();
        workload.into_owner(kind)
    }

    #[test]
    fn each_kind_has_its_number_of_pods() {
        for (kind, spec, status, pods) in [
            (OwnerKind::Deployment, json!({"replicas": 3}), json!({}), 3),
            (OwnerKind::Job, json!({"parallelism": 4}), json!({}), 4),
            (OwnerKind::DaemonSet, json!({}), json!({"desiredNumberScheduled": 7}), 7),
            (OwnerKind::ReplicaSet, json!({}), json!({}), 0),
        ] {
            assert_eq!(owner(kind, &spec, &status).pods, pods, "{kind:?}");
        }
    }

    #[test]
    fn selectors_come_in_one_notation() {
        let labels = json!({"app": "web"});
        let template = json!({"jobTemplate": {"spec": {"template": {"metadata": {"labels": labels}}}}});
        for (kind, spec) in [
            (OwnerKind::Deployment, json!({"selector": {"matchLabels": labels}})),
            (OwnerKind::ReplicationController, json!({"selector": labels})),
            (OwnerKind::CronJob, template),
        ] {
            let selector = owner(kind, &spec, &json!({})).selector.unwrap();
            assert_eq!(selector.match_labels["app"], "web", "{kind:?}");
        }
    }
}
