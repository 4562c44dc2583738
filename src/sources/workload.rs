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
