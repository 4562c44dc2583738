//! Promise: a VPA's status at a real API server becomes the kernel's values on the node, with the deployed rights,
//! and the values stay during an outage of the API server.
//!
//! Pods are objects at the API server and bare cgroups with live processes, matched by the UIDs of the API server.
//! There is no kubelet.

mod boost;
mod follows;
mod metrics;
mod others;
mod outages;
mod plugin;
mod restore;

use serde_json::json;

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};
use crate::support::cluster::{ApiServer, NODE, Release, User, objects};

/// The container's initial amounts.
const APP: Amounts = Amounts::doubled(100, 64);
const AT_FIRST: [(&str, Amounts); 1] = [("app", APP)];
pub(crate) const LARGER: [(&str, Amounts); 1] = [("app", Amounts::doubled(300, 128))];

/// A Deployment with its ReplicaSet and pod, and an agent that does not run yet.
pub(crate) struct Scene {
    pub(crate) agent: Agent,
    pub(crate) node: BareNode,
    pub(crate) pod: BarePod,
    pub(crate) cluster: ApiServer,
}

impl Scene {
    /// Returns `None` without an API server to test with.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let cluster = ApiServer::start(Release::Legacy, test)?;
        objects::prepare(&cluster);
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}));
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = Self::pod(&cluster, &mut node, "web-5c4f-x");
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

    /// A pod of a ReplicaSet, bound to the node, with processes on it.
    pub(crate) fn pod(cluster: &ApiServer, node: &mut BareNode, name: &'static str) -> BarePod {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "test", "labels": {"app": "web"}, "ownerReferences": objects::owned(cluster),
            },
            "spec": {"nodeName": NODE, "containers": [{"name": "app", "image": "none", "resources": objects::resources(APP)}]},
        });
        cluster.apply(&object);
        let pod = node.run(
            name,
            cluster.uid(&format!("{}/{name}", objects::PODS)).leak(),
            &AT_FIRST,
        );
        let id = format!("containerd://{}", pod.containers["app"].id);
        object["status"] = json!({"phase": "Running", "containerStatuses": [{
            "name": "app", "containerID": id, "image": "none", "imageID": "none", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }]});
        cluster.put_status(objects::PODS, name, &object["status"]);
        pod
    }

    /// Starts the agent, which knows the pod and does not change it.
    async fn started(test: &str) -> Option<Self> {
        let mut scene = Self::new(test)?;
        scene.agent.start().await;
        scene.agent.reaches(scene.pod.name, "NotManaged").await;
        Some(scene)
    }

    /// Creates a VPA for the Deployment, without a recommendation.
    pub(crate) fn make_vpa(&self, mode: &str) {
        self.cluster.apply(&objects::vpa(mode));
    }

    /// Writes a recommendation as the recommender does.
    pub(crate) fn recommend(&self, targets: &[(&str, Amounts)]) {
        let status = objects::recommendation(targets);
        self.cluster.put_status(objects::VPAS, "web", &status);
    }

    /// Waits until every level holds these values and the agent reports InSync.
    pub(crate) async fn settles(&self, containers: &[(&str, Amounts)]) {
        let wanted = format!("every level to hold {containers:?}");
        let holds = || self.node.holds(&self.pod, containers);
        self.agent.wait_for(&wanted, holds).await;
        self.agent.reaches(self.pod.name, "InSync").await;
    }
}
