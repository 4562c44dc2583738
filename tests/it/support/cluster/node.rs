//! A whole node of a cluster.

use serde_json::Value;
use vscaled::model::CgroupPath;

use super::{ApiServer, Kubelet, NODE, objects};
use crate::support::agent::Agent;
use crate::support::containerd::{Containerd, OciRuntime};

/// A node that has joined its cluster, and an agent with the rights it is deployed with that does not run yet. Drop them in
/// this order, and the cluster after the kubelet.
pub(crate) struct Node {
    pub(crate) agent: Agent,
    pub(crate) kubelet: Kubelet,
    pub(crate) containerd: Containerd,
    /// The root of its pods' cgroups.
    pub(crate) kubepods: CgroupPath,
}

impl Node {
    /// With these fields in the kubelet's configuration beside those of every test.
    pub(crate) async fn join(cluster: &ApiServer, kubelet: &Value) -> Self {
        objects::prepare(cluster);
        let containerd = Containerd::enclosed(OciRuntime::Runc).await;
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
