//! Objects in namespace `test`, as users, controllers and the recommender write them.

use serde_json::{Value, json};

use super::{Api, NODE, Release};
use crate::support::amounts::Amounts;
use crate::support::image::BUSYBOX;

pub(crate) const PODS: &str = "/api/v1/namespaces/test/pods";
pub(crate) const EVENTS: &str = "/api/v1/namespaces/test/events";
const WORKLOADS: &str = "/apis/apps/v1/namespaces/test";
pub(crate) const VPAS: &str = "/apis/autoscaling.k8s.io/v1/namespaces/test/verticalpodautoscalers";

/// The ReplicaSet of the Deployment's pods.
pub(crate) const REPLICA_SET: &str = "web-5c4f";

/// The overlay for API servers without `pods/resize`.
pub(crate) const LEGACY: &str = "deploy/overlays/legacy";

/// Grants the agent its deployed rights, and creates a Deployment and its ReplicaSet.
pub(crate) fn prepare(cluster: &Api) {
    cluster.grant(match cluster.release() {
        Release::Legacy => LEGACY,
        Release::Today => "deploy/base",
    });
    make_workload(cluster);
}

/// Creates a Deployment and its ReplicaSet.
pub(crate) fn make_workload(cluster: &Api) {
    make_namespace(cluster, "test");
    cluster.apply(&workload("Deployment", "web", None));
    let deployment = cluster.uid(&format!("{WORKLOADS}/deployments/web"));
    let owner = ("Deployment", "web", deployment.as_str());
    cluster.apply(&workload("ReplicaSet", REPLICA_SET, Some(owner)));
}

/// Creates a namespace, with the service account that controllers make in each.
pub(crate) fn make_namespace(cluster: &Api, name: &str) {
    let account = json!({"name": "default", "namespace": name});
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}));
}

/// A pod bound to the node, with idle containers.
pub(crate) fn pod(name: &str, owners: &Value, containers: &[(&str, Amounts)]) -> Value {
    let containers: Vec<_> = containers
        .iter()
        .map(|(name, amounts)| {
            json!({
                "name": name, "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", "while true; do sleep 1000; done"],
                "resources": resources(*amounts),
            })
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "test", "labels": {"app": "web"}, "ownerReferences": owners},
        "spec": {
            "nodeName": NODE, "hostNetwork": true, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0, "containers": containers,
        },
    })
}

/// The owner references of the ReplicaSet's pods.
pub(crate) fn owned(cluster: &Api) -> Value {
    let uid = cluster.uid(&format!("{WORKLOADS}/replicasets/{REPLICA_SET}"));
    json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": REPLICA_SET, "uid": uid, "controller": true}])
}

/// A Deployment or ReplicaSet of the pods labelled `app: web`; `owner` is kind, name and UID.
fn workload(kind: &str, name: &str, owner: Option<(&str, &str, &str)>) -> Value {
    let labels = json!({"app": "web"});
    let owners: Vec<_> = owner
        .iter()
        .map(|(kind, name, uid)| json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}))
        .collect();
    json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": name, "namespace": "test", "ownerReferences": owners},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "none"}]},
        }},
    })
}

pub(crate) fn resources(amounts: Amounts) -> Value {
    // As the API server writes them.
    let cpu = |cpu: u64| match cpu % 1000 {
        0 => (cpu / 1000).to_string(),
        _ => format!("{cpu}m"),
    };
    let list = |of: u64, memory: u64| json!({"cpu": cpu(of), "memory": format!("{memory}Mi")});
    json!({
        "requests": list(amounts.cpu, amounts.memory),
        "limits": list(amounts.cpu_limit.unwrap(), amounts.memory_limit.unwrap()),
    })
}

/// A VPA for the Deployment, without a recommendation.
pub(crate) fn vpa(mode: &str) -> Value {
    json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "test"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "updatePolicy": {"updateMode": mode},
        },
    })
}

/// The status that the recommender writes to a VPA. The bounds equal the target, so vscaled acts on every difference.
pub(crate) fn recommendation(targets: &[(&str, Amounts)]) -> Value {
    let recommended: Vec<_> = targets
        .iter()
        .map(|(name, Amounts { cpu, memory, .. })| {
            let amounts = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
            json!({"containerName": name, "target": amounts, "lowerBound": amounts, "upperBound": amounts})
        })
        .collect();
    json!({"recommendation": {"containerRecommendations": recommended}})
}
