//! Promise: a real API server enforces the shipped admission policy: the token of a node's agent resizes pods of that
//! node, and writes nothing to others. `admission_policy` tries more requests, with an interpreter.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::amounts::Amounts;
use crate::support::cluster::{ApiServer, Release, objects};

const PATIENCE: Duration = Duration::from_secs(60);

fn pod(namespace: &str, name: &str, node: &str, account: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node, "serviceAccountName": account,
            "containers": [{"name": "app", "image": "none", "resources": objects::resources(Amounts::doubled(100, 64))}],
        },
    })
}

/// Asks for a resize of a pod as an agent does, and returns the API server's complaint.
fn resize(cluster: &ApiServer, kubeconfig: &Path, pod: &str, cpu: u64) -> Result<String, String> {
    let resources = objects::resources(Amounts::doubled(cpu, 64));
    let patch = json!({"spec": {"containers": [{"name": "app", "resources": resources}]}});
    cluster.patch(
        kubeconfig,
        &format!("/api/v1/namespaces/shop/pods/{pod}/resize"),
        &patch,
    )
}

#[test]
fn the_agent_of_a_node_resizes_pods_of_that_node_alone() {
    let Some(cluster) = ApiServer::start(Release::Today, "cluster_policy::the_agent_of_a_node") else {
        return;
    };
    for directory in ["deploy/base", "deploy/overlays/admission-policy"] {
        cluster.kubectl(&["apply", &format!("--kustomize={directory}")], "");
    }
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    for node in ["node-1", "node-2"] {
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}));
        // The API server refuses a resize beyond the node's size.
        let size = json!({"cpu": "4", "memory": "8Gi"});
        cluster.put_status("/api/v1/nodes", node, &json!({"capacity": size, "allocatable": size}));
        cluster.apply(&pod("shop", &format!("web-on-{node}"), node, "default"));
    }
    cluster.apply(&pod("vscaled", "vscaled-x", "node-1", "vscaled"));
    let agent = cluster.kubeconfig_in_pod("vscaled-x");
    let unbound = cluster.deployed_kubeconfig();

    // The API server takes a moment to enforce a new policy.
    let started = Instant::now();
    let refused = loop {
        match resize(&cluster, &agent, "web-on-node-2", 200 + started.elapsed().as_secs()) {
            Ok(_) => assert!(started.elapsed() < PATIENCE, "the policy is never enforced"),
            Err(refused) => break refused,
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(refused.contains("belongs to another node than the pod"), "{refused}");
    resize(&cluster, &agent, "web-on-node-1", 300).unwrap();
    let resized = cluster.get("/api/v1/namespaces/shop/pods/web-on-node-1");
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "300m");

    // A token that is bound to no pod names no node.
    let refused = resize(&cluster, &unbound, "web-on-node-1", 400).unwrap_err();
    assert!(refused.contains("belongs to another node than the pod"), "{refused}");
    // What the policy does not allow, RBAC may: the rights of deploy/base have no such patch.
    let label = json!({"metadata": {"labels": {"team": "bank"}}});
    let refused = cluster
        .patch(&agent, "/api/v1/namespaces/shop/pods/web-on-node-1", &label)
        .unwrap_err();
    assert!(refused.contains("forbidden"), "{refused}");
}
