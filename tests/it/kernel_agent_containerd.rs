//! Promise: with a real container runtime, the kernel's values and the runtime's stored spec match the decision,
//! whether or not the runtime was available at the time of the decision. The containers notice nothing. The agent
//! reports kills in containers with their names.
//!
//! The real agent runs with a private containerd and runc, and with pods created through CRI as a kubelet creates
//! them, on cgroup v1 or v2. The manifests have no container ids: the agent reads those from the runtime.

mod containers;
mod hooks;
mod host_hooks;
mod host_operators;
mod host_outages;
mod host_pressure;
mod host_recipes;
mod host_signals;
mod kills;
mod notify;
mod values;

use std::time::Duration;

use vscaled::model::{CriResources, MemoryLimit};
use vscaled::runtime::proto::ContainerStatus;
use vscaled::runtime::{ContainerRuntime, Cri, Deadlines};

use crate::support::agent::Agent;
use crate::support::amounts::{Amounts, pod_manifest, vpa_manifest};
use crate::support::containerd::{Containerd, OciRuntime};
use crate::support::pods::{ContainerSpec, Pod, PodSpec};

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000031";
const APP: Amounts = Amounts::doubled(100, 64);
const SIDE: Amounts = Amounts::doubled(50, 32);
const IDLE: &str = "while true; do sleep 1000; done";

/// A pod of two containers in a containerd, and an agent that does not run yet. Fields are dropped in this order.
struct Scene {
    agent: Agent,
    containerd: Containerd,
    spec: PodSpec,
    pod: Pod,
    /// The pod's manifest.
    manifest: String,
}

impl Scene {
    /// The container `app` runs a script.
    async fn new(script: &'static str) -> Self {
        Self::of(&[("app", script, APP), ("side", IDLE, SIDE)]).await
    }

    /// A pod with these containers, scripts and amounts.
    async fn of(containers: &[(&'static str, &'static str, Amounts)]) -> Self {
        let containerd = Containerd::start(OciRuntime::Runc).await;
        let container = |&(name, script, amounts): &(_, _, Amounts)| ContainerSpec {
            name,
            script,
            resources: amounts.cri(),
            mounts: Vec::new(),
        };
        let spec = PodSpec {
            name: "web",
            uid: UID,
            memory_limit: MemoryLimit::Max,
            containers: containers.iter().map(container).collect(),
        };
        let pod = containerd.run(&spec).await;
        let version = containerd.cgroups().version();
        for setting in Amounts::sum(containers.iter().map(|of| of.2)).settings(version).iter() {
            containerd.cgroups().put(&pod.cgroup, setting);
        }
        let kubepods = containerd.cgroups().make("kubepods");
        let agent = Agent::new(&kubepods)
            .with("--runtime-socket", containerd.socket())
            .with("--hooks", "test")
            // The agent finds out the formula from the containers' values.
            .with("--weight-formula", "auto");
        let described: Vec<_> = containers.iter().map(|of| (of.0, of.2, None)).collect();
        let manifest = pod_manifest("web", UID, &described);
        agent.write("pod.yaml", &manifest);
        Self {
            manifest,
            agent,
            containerd,
            spec,
            pod,
        }
    }

    /// Starts the agent, which knows the pod and does not change it.
    async fn started(script: &'static str) -> Self {
        Self::new(script).await.begun().await
    }

    /// Starts the agent, which then knows all manifests that are written: the process may grow at once.
    async fn begun(mut self) -> Self {
        self.agent.start().await;
        self.knows_all().await;
        self
    }

    /// Waits until the agent knows the ids of both containers.
    async fn knows_all(&self) {
        let known = async || {
            let pod = self.agent.pod("web").await?;
            let ids: Vec<_> = pod
                .containers
                .into_iter()
                .filter_map(|container| container.id)
                .collect();
            let all = self.pod.containers.iter().all(|container| ids.contains(&container.id));
            (all && ids.len() == self.pod.containers.len()).then_some(())
        };
        self.agent.until("the agent to know the containers", known).await;
    }

    fn recommend(&self, app: Amounts, side: Amounts) {
        let vpa = vpa_manifest("web", "web", &[("app", app), ("side", side)]);
        self.agent.write("vpa.yaml", &vpa);
    }

    fn holds(&self, app: Amounts, side: Amounts) -> bool {
        let cgroups = self.containerd.cgroups();
        let holds = |path, amounts: Amounts| cgroups.holds(path, &amounts.settings(cgroups.version()));
        holds(&self.pod.cgroup, Amounts::sum([app, side]))
            && holds(&self.pod.containers[0].cgroup, app)
            && holds(&self.pod.containers[1].cgroup, side)
    }

    /// Waits until every level holds these values, the runtime has stored them, and the agent reports InSync.
    async fn settles(&self, app: Amounts, side: Amounts) {
        self.agent
            .wait_for(&format!("every level to hold {app:?} and {side:?}"), || {
                self.holds(app, side)
            })
            .await;
        self.agent.reaches("web", "InSync").await;
        assert_eq!(
            (self.stored(0).await, self.stored(1).await),
            (app.stored(), side.stored())
        );
        assert!(self.holds(app, side), "telling the runtime changed the files");
    }

    /// One container's process and its status from the runtime without resources.
    async fn life(&self, index: usize) -> (i32, ContainerStatus) {
        let id = &self.pod.containers[index].id;
        let mut status = self.containerd.life(id).await;
        status.resources = None;
        // containerd sets this reason after a kill of any process, even if the container still runs.
        status.reason.clear();
        (self.containerd.pid(id), status)
    }

    /// The resources of one container in the runtime's record.
    async fn stored(&self, index: usize) -> CriResources {
        let cri = Cri::new(&self.containerd.socket(), patient()).unwrap();
        cri.stored(&self.pod.containers[index].id).await.unwrap().unwrap()
    }

    /// Updates a container through CRI, as a foreign writer.
    async fn update(&self, index: usize, change: CriResources) {
        let cri = Cri::new(&self.containerd.socket(), patient()).unwrap();
        cri.update(&self.pod.containers[index].id, &change).await.unwrap();
    }
}

/// A slow guest kernel needs more time than a real one.
const fn patient() -> Deadlines {
    Deadlines {
        read: Duration::from_secs(20),
        update: Duration::from_secs(60),
    }
}
