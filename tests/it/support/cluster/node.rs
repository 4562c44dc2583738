//! A node of a cluster: containerd, a kubelet and an agent.

use serde_json::Value;
use vscaled::model::CgroupPath;

use super::{ApiServer, Kubelet, NODE, objects};
use crate::support::agent::Agent;
use crate::support::containerd::{Containerd, OciRuntime};

/// A node that has joined its cluster, and an agent with the deployed rights, which does not run yet. Drop the fields
/// in this order, and the cluster after the kubelet.
pub(crate) struct Node {
    pub(crate) agent: Agent,
    pub(crate) kubelet: Kubelet,
    pub(crate) containerd: Containerd,
    /// The root of the pods' cgroups.
    pub(crate) kubepods: CgroupPath,
}

impl Node {
    /// Joins a node; `kubelet` adds fields to the kubelet's configuration of every test.
    pub(crate) async fn join(cluster: &ApiServer, kubelet: &Value) -> Self {
        objects::prepare(cluster);
        let containerd = Containerd::enclosed(OciRuntime::Runc, cluster).await;
        let kubepods = containerd.cgroups().make_everywhere().child("kubepods").unwrap();
        let agent = Agent::new(&kubepods)
            .with("--source", "kubernetes")
            .with("--node-name", NODE)
            .with("--kubeconfig", cluster.deployed_kubeconfig())
            .with("--runtime-socket", containerd.socket());
        let mut kubelet = Kubelet::new(cluster, &containerd, kubelet);
        kubelet.launch(&containerd);
        Self {
            agent,
            kubelet,
            containerd,
            kubepods,
        }
    }
}
