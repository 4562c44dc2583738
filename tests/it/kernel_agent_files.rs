//! Promise: a recommendation becomes the kernel's values at every level of a running pod, and stays so whatever else
//! happens on the node. An impossible change is refused with a reason and leaves every value unchanged.
//!
//! The real agent runs with bare cgroups and live processes, on cgroup v1 or v2. Periodic passes are hours apart,
//! unless a test is about them.

mod agent_restarts;
mod bursts;
mod cgroup_lifetimes;
mod changes;
mod confinement;
mod drift;
mod host_callers;
mod host_connections;
mod host_manifests;
mod host_operators;
mod host_overrides;
mod host_refusals;
mod host_runtime_answers;
mod host_runtime_socket;
mod host_tenants;
mod memory_high;
mod pod_levels;
mod quotas;
mod refusals;
mod restore;
mod sidecars;
mod wanted_bursts;
mod writable_cgroups;

use std::collections::BTreeMap;
use std::fs;

use vscaled::control::proto;
use vscaled::model::Settings;

use crate::support::agent::Agent;
use crate::support::amounts::{Amounts, vpa_manifest};
use crate::support::bare::{BareNode, BarePod};
use crate::support::victims::holding;

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000011";

/// The initial amounts of the containers of [`Scene::new`].
const APP: Amounts = Amounts::doubled(100, 64);
const SIDE: Amounts = Amounts::doubled(50, 32);
const AT_FIRST: [(&str, Amounts); 2] = [("app", APP), ("side", SIDE)];
/// More of everything.
const ROOMY: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

const UNLIMITED: [(&str, Amounts); 2] = [("app", Amounts::unlimited(100, 64)), ("side", SIDE)];

/// A pod of two containers, and an agent that does not run yet.
struct Scene {
    agent: Agent,
    node: BareNode,
    pod: BarePod,
}

impl Scene {
    fn new() -> Self {
        Self::of(&AT_FIRST)
    }

    fn of(containers: &[(&'static str, Amounts)]) -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = node.run("web", UID, containers);
        let agent = Agent::new(&kubepods);
        agent.write("pod.yaml", &pod.manifest());
        Self { agent, node, pod }
    }

    /// Starts the agent, which knows the pod and does not change it.
    async fn started() -> Self {
        let mut scene = Self::new();
        scene.agent.start().await;
        scene.agent.reaches("web", "NotManaged").await;
        scene
    }

    /// Starts the agent and waits until it has applied a recommendation.
    async fn managed(targets: &[(&'static str, Amounts)]) -> Self {
        let scene = Self::started().await;
        scene.recommend(targets);
        scene.settles(targets).await;
        scene
    }

    fn recommend(&self, targets: &[(&str, Amounts)]) {
        self.agent.write("vpa.yaml", &vpa_manifest("web", "web", targets));
    }

    fn holds(&self, containers: &[(&str, Amounts)]) -> bool {
        self.node.holds(&self.pod, containers)
    }

    /// Waits until every level holds these values and the agent reports InSync.
    async fn settles(&self, containers: &[(&str, Amounts)]) {
        let wanted = format!("every level to hold {containers:?}");
        self.agent.wait_for(&wanted, || self.holds(containers)).await;
        self.agent.reaches("web", "InSync").await;
    }

    /// Waits until the state file contains a text.
    async fn saves(&self, text: &str) {
        let saved = || fs::read_to_string(self.agent.state_file()).is_ok_and(|state| state.contains(text));
        self.agent.wait_for(&format!("{text} to be saved"), saved).await;
    }

    /// A request to override the limits of the container `app`.
    fn by_hand(&self, limits: proto::Amounts) -> proto::ResizeRequest {
        proto::ResizeRequest {
            reason: "a test".to_owned(),
            ..self.pod.limits_by_hand(limits)
        }
    }

    /// A scene with a container without limits, and the current values.
    async fn unlimited() -> (Self, BTreeMap<&'static str, Settings>) {
        let mut scene = Self::of(&UNLIMITED);
        scene.agent.start().await;
        scene.agent.reaches("web", "NotManaged").await;
        let held = scene.node.held(&scene.pod);
        (scene, held)
    }

    /// Makes the container `app` use this many MiB.
    async fn occupy(&mut self, mebibytes: u64) {
        let bytes = mebibytes << 20;
        let cgroup = self.pod.containers["app"].cgroup.clone();
        self.node.spawn(&cgroup, &holding(bytes));
        let used = || self.node.cgroups().memory_usage(&cgroup) >= bytes;
        self.agent.wait_for("the memory to be in use", used).await;
    }
}

fn cpu(text: &str) -> proto::Amounts {
    proto::Amounts {
        cpu: Some(text.to_owned()),
        memory: None,
    }
}

fn memory(text: &str) -> proto::Amounts {
    proto::Amounts {
        cpu: None,
        memory: Some(text.to_owned()),
    }
}
