//! A pod, and an agent with the guard or without.

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};

/// A limit of 128 MiB.
pub(crate) const APP: Amounts = Amounts::doubled(1000, 64);

/// Dropping the value ends and removes everything.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) agent: Agent,
    pub(crate) node: BareNode,
    pub(crate) pods: Vec<BarePod>,
}

impl Scene {
    /// Pods of one container that a VPA lets grow to 4 GiB, known to a running agent.
    pub(crate) async fn start(pods: usize, guard: bool) -> Self {
        Self::of(pods, guard, APP).await
    }

    /// Like [`Self::start`], with other amounts.
    pub(crate) async fn of(pods: usize, guard: bool, app: Amounts) -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let mut agent = Agent::new(&kubepods)
            .with("--guard", guard.to_string())
            .with("--log-level", "info,vscaled::guard=trace")
            .with("--guard-reserve", "64Mi")
            .with("--guard-pod-budget", "100%")
            .with("--guard-node-budget", "100%");
        let pods: Vec<BarePod> = (0..pods)
            .map(|number| {
                let uid: &'static str = format!("0a1b2c3d-0000-4000-8000-{number:012x}").leak();
                let name: &'static str = format!("web-{number}").leak();
                node.run(name, uid, &[("app", app)])
            })
            .collect();
        for pod in &pods {
            agent.write(
                &format!("{}.yaml", pod.name),
                &format!("{}---\n{}", pod.manifest(), vpa(pod.name, app)),
            );
        }
        agent.start().await;
        let live = async || {
            let known = agent.get().await.pods;
            let live = |pod: &vscaled::control::proto::Pod| pod.containers.iter().all(|one| one.id.is_some());
            (known.len() == pods.len() && known.iter().all(live)).then_some(())
        };
        agent.until("all pods to live", live).await;
        Self { agent, node, pods }
    }

    /// The memory limit of the first pod's container in MiB.
    pub(crate) fn limit(&self) -> u64 {
        match self.node.held(&self.pods[0])["app"].memory_limit() {
            Some(vscaled::model::MemoryLimit::Bytes(bytes)) => bytes >> 20,
            _ => u64::MAX,
        }
    }
}

/// Recommends the current values, and permits four times as much cpu.
pub(crate) fn vpa(name: &str, app: Amounts) -> String {
    let amounts = format!("{{cpu: {}m, memory: {}Mi}}", app.cpu, app.memory);
    let cpu = format!("{}m", 4 * app.cpu);
    format!(
        "apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {{name: {name}, namespace: test}}
spec:
  targetRef: {{apiVersion: apps/v1, kind: StatefulSet, name: {name}}}
  updatePolicy: {{updateMode: InPlaceOrRecreate}}
  resourcePolicy: {{containerPolicies: [{{containerName: '*', maxAllowed: {{memory: 4Gi, cpu: {cpu}}}}}]}}
status:
  recommendation:
    containerRecommendations:
    - {{containerName: app, target: {amounts}, lowerBound: {amounts}, upperBound: {amounts}}}
"
    )
}
