//! Promise: a container whose memory use is about to reach its limit gets a temporary limit before the kernel kills,
//! within the VPA's maximum and the node's capacity. The agent keeps the temporary limit in force, reports it, and
//! ends it. A leaking container is killed at the maximum, and the agent reports the reason once.
//!
//! The real agent runs with bare cgroups and processes that allocate memory. Needs root; the same on cgroup v1 and
//! v2.

mod bounds;
mod cpu;
mod descriptors;
mod growth;
mod loans;
mod restarts;

use std::path::PathBuf;

use vscaled::control::proto;
use vscaled::model::{CgroupPath, MemoryLimit, Settings};

use crate::support::agent::Agent;
use crate::support::allocator::{Allocation, Allocator};
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000031";
/// A limit of 128 MiB.
const APP: Amounts = Amounts::doubled(1000, 64);

/// A pod of one container that a VPA lets grow, and an agent that does not run yet.
struct Scene {
    agent: Agent,
    node: BareNode,
    pod: BarePod,
}

impl Scene {
    /// `max_allowed` is the VPA's `maxAllowed`.
    fn new(max_allowed: &str) -> Self {
        let scene = Self::of(APP);
        scene.agent.write("vpa.yaml", &vpa("web", max_allowed, 64));
        scene
    }

    /// A scene with these amounts and without a VPA.
    fn of(amounts: Amounts) -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = node.run("web", UID, &[("app", amounts)]);
        let agent = Agent::new(&kubepods)
            .with("--guard-reserve", "100Mi")
            .with("--guard-pod-budget", "100%")
            .with("--guard-node-budget", "100%");
        agent.write("pod.yaml", &pod.manifest());
        Self { agent, node, pod }
    }

    /// Like [`Self::new`], with a second container, whose cgroup is returned. `change` edits the manifest.
    fn of_two(change: impl FnOnce(String) -> String) -> (Self, CgroupPath) {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = node.run("web", UID, &[("app", APP), ("side", APP)]);
        let agent = Agent::new(&kubepods)
            .with("--guard-reserve", "100Mi")
            .with("--guard-pod-budget", "100%")
            .with("--guard-node-budget", "100%");
        agent.write("pod.yaml", &change(pod.manifest()));
        agent.write("vpa.yaml", &vpa("web", "4Gi", 64));
        let side = pod.containers["side"].cgroup.clone();
        (Self { agent, node, pod }, side)
    }

    /// Sets the memory limit of the pod's cgroup.
    fn lift_pod(&self, mebibytes: u64) {
        let limit = MemoryLimit::Bytes(mebibytes << 20);
        self.node.cgroups().limit_memory(&self.pod.cgroup, limit);
    }

    /// Checks that no pass has lowered a memory limit.
    async fn was_never_lowered(&self) {
        let changes = self.agent.history().await;
        for step in changes.iter().flat_map(|change| &change.steps) {
            let memory = step.file.starts_with("memory.");
            let [from, to] = [&step.from, &step.to].map(|text| text.parse::<u64>());
            assert!(!memory || from.unwrap() <= to.unwrap(), "{changes:#?}");
        }
    }

    /// Starts the agent with its guard.
    async fn guarded(max_allowed: &str) -> Self {
        Self::new(max_allowed).started().await
    }

    /// Like [`Self::guarded`], where unused temporary limits end after this period.
    async fn guarded_for(quiet_period: &str) -> Self {
        let mut scene = Self::new("4Gi");
        scene.agent.set("--guard-quiet-period", quiet_period);
        scene.started().await
    }

    async fn started(mut self) -> Self {
        self.agent.start().await;
        self.guards("web").await;
        self
    }

    /// Waits until the agent knows that a pod runs. From then on the guard watches it.
    async fn guards(&self, name: &str) {
        let lives = async || self.agent.pod(name).await.filter(|pod| pod.containers[0].id.is_some());
        self.agent.until("the pod to live", lives).await;
    }

    fn takes(&self, rate: u64, until: u64) -> Allocator {
        takes(&self.node, &self.pod, Allocation { rate, until })
    }

    /// Like [`Self::takes`], by a process that leaves the guard of a busy machine time.
    fn takes_carefully(&self, rate: u64, until: u64) -> Allocator {
        let cgroup = &self.pod.containers["app"].cgroup;
        Allocator::start_careful(self.node.cgroups(), cgroup, Allocation { rate, until })
    }

    /// A request to override the memory limit.
    fn by_hand(&self, memory: &str) -> proto::ResizeRequest {
        self.pod.limits_by_hand(proto::Amounts {
            cpu: None,
            memory: Some(memory.to_owned()),
        })
    }

    fn kills(&self) -> u64 {
        self.node.cgroups().oom_kills(&self.pod.containers["app"].cgroup)
    }

    /// The container's memory limit in MiB.
    fn limit(&self) -> u64 {
        mebibytes(&self.node.held(&self.pod)["app"])
    }

    /// The pod's memory limit in MiB.
    fn pod_limit(&self) -> u64 {
        mebibytes(&self.node.held(&self.pod)["pod"])
    }

    /// Waits for the container's temporary limit.
    async fn temporary_limit(&self) -> proto::Lease {
        let lent = async || self.agent.pod("web").await?.leases.first().cloned();
        self.agent.until("a loan", lent).await
    }

    /// The guard's changes, oldest first.
    async fn by_the_guard(&self) -> Vec<proto::Change> {
        let mut changes = self.agent.history().await;
        changes.retain(|change| change.cause.starts_with("guard:"));
        changes
    }
}

fn takes(node: &BareNode, pod: &BarePod, allocation: Allocation) -> Allocator {
    Allocator::start(node.cgroups(), &pod.containers["app"].cgroup, allocation)
}

fn mebibytes(settings: &Settings) -> u64 {
    match settings.memory_limit() {
        Some(MemoryLimit::Bytes(bytes)) => bytes >> 20,
        limit => panic!("{limit:?}"),
    }
}

/// A VPA that recommends this memory request and permits growth.
fn vpa(name: &str, max_allowed: &str, request: u64) -> String {
    let amounts = format!("{{cpu: 1000m, memory: {request}Mi}}");
    format!(
        "apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {{name: {name}, namespace: test}}
spec:
  targetRef: {{apiVersion: apps/v1, kind: StatefulSet, name: {name}}}
  updatePolicy: {{updateMode: InPlaceOrRecreate}}
  resourcePolicy: {{containerPolicies: [{{containerName: '*', maxAllowed: {{memory: {max_allowed}}}}}]}}
status:
  recommendation:
    containerRecommendations:
    - {{containerName: app, target: {amounts}, lowerBound: {amounts}, upperBound: {amounts}}}
"
    )
}

/// The MiB that one process of a test may allocate: two GiB, or the capacity of a small machine.
fn plenty() -> u64 {
    let available = procfs::Meminfo::current().unwrap().mem_available.unwrap() >> 20;
    (available / 3).min(2048)
}

use procfs::Current;

/// The directory with a cgroup's memory files.
fn memory_directory(node: &BareNode, below: &CgroupPath) -> PathBuf {
    let directories = node.cgroups().directories(below);
    let memory = directories
        .into_iter()
        .find(|directory| directory.join("memory.stat").exists());
    memory.expect("a cgroup has a memory controller")
}
