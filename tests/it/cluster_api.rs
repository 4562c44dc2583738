//! Promise: a VPA's status at a real API server becomes the kernel's values on the node, with the rights the agent is
//! deployed with, and stays so while the API server is away.
//!
//! Pods are objects at the API server and bare cgroups with live processes, put together by the API server's own UIDs;
//! there is no kubelet here.

mod follows;
mod metrics;
mod outages;
mod plugin;
mod restore;

use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};
use crate::support::cluster::{ApiServer, User};

const NODE: &str = "node-1";

/// What the container has at first.
const APP: Amounts = Amounts::doubled(100, 64);
const AT_FIRST: [(&str, Amounts); 1] = [("app", APP)];
const LARGER: [(&str, Amounts); 1] = [("app", Amounts::doubled(300, 128))];

/// A pod below a ReplicaSet below a Deployment, and an agent that does not run yet.
struct Scene {
    agent: Agent,
    node: BareNode,
    pod: BarePod,
    cluster: ApiServer,
}

impl Scene {
    /// None where there is no API server to test with.
    fn new(test: &str) -> Option<Self> {
        let cluster = ApiServer::start(test)?;
        cluster.kubectl(&["apply", "--filename=deploy/base/namespace.yaml"], "");
        cluster.kubectl(&["apply", "--filename=deploy/base/rbac.yaml"], "");
        let bases = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "test"}}),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}),
            workload("Deployment", "web", None),
        ];
        for base in &bases {
            cluster.apply(base);
        }
        let deployment = cluster.uid("deployment", "web");
        cluster.apply(&workload(
            "ReplicaSet",
            "web-5c4f",
            Some(("Deployment", "web", &deployment)),
        ));
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = Self::pod(&cluster, &mut node, "web-5c4f-x", "web-5c4f");
        let agent = Agent::new(&kubepods)
            .with("--source", "kubernetes")
            .with("--node-name", NODE)
            .with("--kubeconfig", cluster.kubeconfig(User::Agent));
        Some(Self {
            agent,
            node,
            pod,
            cluster,
        })
    }

    /// A pod of a ReplicaSet: bound to the node, and running there.
    fn pod(cluster: &ApiServer, node: &mut BareNode, name: &'static str, replica_set: &str) -> BarePod {
        let owner = cluster.uid("replicaset", replica_set);
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "test", "labels": {"app": "web"}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": owner, "controller": true}
            ]},
            "spec": {"nodeName": NODE, "containers": [{"name": "app", "image": "none", "resources": resources(APP)}]},
        });
        cluster.apply(&object);
        let pod = node.run(name, cluster.uid("pod", name).leak(), &AT_FIRST);
        let id = format!("containerd://{}", pod.containers["app"].id);
        object["status"] = json!({"phase": "Running", "containerStatuses": [{
            "name": "app", "containerID": id, "image": "none", "imageID": "none", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }]});
        cluster.put_status("/api/v1/namespaces/test/pods", name, &object["status"]);
        pod
    }

    /// With the agent running, which knows the pod and leaves it alone.
    async fn started(test: &str) -> Option<Self> {
        let mut scene = Self::new(test)?;
        scene.agent.start().await;
        scene.agent.reaches(scene.pod.name, "NotManaged").await;
        Some(scene)
    }

    /// Makes a VPA for the Deployment, with nothing to say yet.
    fn make_vpa(&self, mode: &str) {
        self.cluster.apply(&json!({
            "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "test"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "updatePolicy": {"updateMode": mode},
            },
        }));
    }

    /// Has the recommender speak.
    fn recommend(&self, targets: &[(&str, Amounts)]) {
        let recommended: Vec<_> = targets
            .iter()
            .map(|(name, Amounts { cpu, memory, .. })| {
                let amounts = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
                json!({"containerName": name, "target": amounts, "lowerBound": amounts, "upperBound": amounts})
            })
            .collect();
        let status = json!({"recommendation": {"containerRecommendations": recommended}});
        let vpas = "/apis/autoscaling.k8s.io/v1/namespaces/test/verticalpodautoscalers";
        self.cluster.put_status(vpas, "web", &status);
    }

    /// Waits until every level holds these values and the agent is content.
    async fn settles(&self, containers: &[(&str, Amounts)]) {
        let wanted = format!("every level to hold {containers:?}");
        let holds = || self.node.holds(&self.pod, containers);
        self.agent.wait_for(&wanted, holds).await;
        self.agent.reaches(self.pod.name, "InSync").await;
    }
}

/// A Deployment or ReplicaSet of the pods labelled `app: web`.
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

fn resources(amounts: Amounts) -> Value {
    let list = |cpu: u64, memory: u64| json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
    json!({
        "requests": list(amounts.cpu, amounts.memory),
        "limits": list(amounts.cpu_limit.unwrap(), amounts.memory_limit.unwrap()),
    })
}
