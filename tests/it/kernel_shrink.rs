//! Promise: a lower memory limit kills no process, whatever the container does meanwhile. An impossible limit is
//! refused with numbers, a failed shrink is undone, and no cgroup stays frozen, whatever happens to the agent.
//!
//! The real agent runs with bare cgroups whose processes allocate and free memory, on v1 or v2.

mod cache;
mod churning;
mod ended;
mod frozen;
mod regretted;
mod room;
mod turns;
mod undone;
mod waiting;

use std::fs;

use vscaled::control::proto;
use vscaled::model::{CgroupPath, MemoryLimit};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};
use crate::support::cached::Cached;

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000051";
/// The initial limit in MiB.
const ROOMY: u64 = 200;

/// A container with small requests and this limit in MiB.
const fn roomy(limit: u64) -> Amounts {
    Amounts {
        cpu: 100,
        cpu_limit: Some(200),
        memory: 8,
        memory_limit: Some(limit),
    }
}

/// A pod of one container, and an agent that runs.
struct Scene {
    agent: Agent,
    node: BareNode,
    pod: BarePod,
}

impl Scene {
    async fn started() -> Self {
        Self::with(ROOMY).await
    }

    /// A scene with a container whose spec has this limit in MiB.
    async fn with(limit: u64) -> Self {
        Self::of(roomy(limit)).await
    }

    async fn of(amounts: Amounts) -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = node.run("web", UID, &[("app", amounts)]);
        let mut agent = Agent::new(&kubepods);
        agent.write("pod.yaml", &pod.manifest());
        agent.start().await;
        agent.reaches("web", "NotManaged").await;
        Self { agent, node, pod }
    }

    /// Starts a shell command in the container.
    fn spawn(&mut self, command: &str) -> u32 {
        let cgroup = self.app();
        self.node.spawn(&cgroup, command)
    }

    /// Makes the container hold 150 MiB of page cache.
    async fn caches(&mut self) -> Cached {
        let cgroup = self.app();
        Cached::by(&mut self.node, &cgroup, &self.agent).await
    }

    fn app(&self) -> CgroupPath {
        self.pod.containers["app"].cgroup.clone()
    }

    /// A request for a memory limit in MiB.
    fn limit(&self, mebibytes: u64) -> proto::ResizeRequest {
        self.pod.limits_by_hand(proto::Amounts {
            cpu: None,
            memory: Some(format!("{mebibytes}Mi")),
        })
    }

    async fn resize(&self, mebibytes: u64) -> proto::Change {
        self.agent.resize(self.limit(mebibytes)).await.unwrap()
    }

    /// The limits of the container and the pod in MiB.
    fn limits(&self) -> [u64; 2] {
        let held = self.node.held(&self.pod);
        ["app", "pod"].map(|level| match held[level].memory_limit() {
            Some(MemoryLimit::Bytes(bytes)) => bytes >> 20,
            other => panic!("{level}: {other:?}"),
        })
    }

    fn usage(&self) -> u64 {
        self.node.cgroups().memory_usage(&self.app())
    }

    /// The number of kills in the pod.
    fn kills(&self) -> u64 {
        let cgroups = self.node.cgroups();
        cgroups.oom_kills(&self.app()).max(cgroups.oom_kills(&self.pod.cgroup))
    }

    /// Whether a cgroup of the pod is frozen or being frozen.
    fn is_frozen(&self) -> bool {
        [self.app(), self.pod.cgroup.clone()].iter().any(|cgroup| {
            let directories = self.node.cgroups().directories(cgroup);
            directories.iter().any(|directory| {
                let read = |file| fs::read_to_string(directory.join(file)).unwrap_or_default();
                read("cgroup.freeze").trim() == "1" || read("cgroup.events").contains("frozen 1")
            })
        })
    }

    /// The number of the agent's records of frozen cgroups.
    fn markers(&self) -> usize {
        let directory = self.agent.state_file().with_file_name("frozen");
        fs::read_dir(directory).unwrap().count()
    }
}

/// A random generator whose seed is printed.
fn random() -> fastrand::Rng {
    let random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    random
}
