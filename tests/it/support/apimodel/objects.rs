//! Objects as the API server stores them.

use serde_json::{Value, json};

use crate::support::amounts::Amounts;
use crate::support::bare::BarePod;
use crate::support::cluster::objects::resources;

/// A running pod of the node with this label `app`, with the status that the kubelet writes.
pub(crate) fn running_pod(pod: &BarePod, app: &str, replica_set: &str, node: &str) -> Value {
    let containers = pod.containers.iter();
    let specs: Vec<_> = containers
        .clone()
        .map(|(name, container)| json!({"name": name, "image": "none", "resources": resources(container.amounts)}))
        .collect();
    let statuses: Vec<_> = containers
        .map(|(name, container)| {
            let has = resources(container.amounts);
            json!({
                "name": name, "containerID": format!("containerd://{}", container.id), "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                "resources": has, "allocatedResources": has["requests"],
            })
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod.name, "namespace": "test", "uid": pod.uid, "generation": 1, "labels": {"app": app},
            "annotations": {}, "ownerReferences": [owner("ReplicaSet", replica_set)],
        },
        "spec": {"nodeName": node, "containers": specs},
        "status": {
            "phase": "Running", "qosClass": "Burstable", "observedGeneration": 1, "conditions": [],
            "containerStatuses": statuses,
        },
    })
}

/// A workload whose pods have this label `app`.
pub(crate) fn workload(name: &str, app: &str, deployment: Option<&str>) -> Value {
    let owners: Vec<_> = deployment.iter().map(|name| owner("Deployment", name)).collect();
    json!({
        "metadata": {"name": name, "namespace": "test", "uid": "o", "ownerReferences": owners},
        "spec": {"selector": {"matchLabels": {"app": app}}},
    })
}

fn owner(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "o", "controller": true})
}

/// A VPA for the Deployment of the same name that recommends these requests.
pub(crate) fn vpa(name: &str, targets: &[(&str, Amounts)]) -> Value {
    let recommended: Vec<_> = targets
        .iter()
        .map(|(name, amounts)| {
            let requests = &resources(*amounts)["requests"];
            json!({"containerName": name, "target": requests, "lowerBound": requests, "upperBound": requests})
        })
        .collect();
    json!({
        "metadata": {"name": name, "namespace": "test"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
        },
        "status": {"recommendation": {"containerRecommendations": recommended}},
    })
}
