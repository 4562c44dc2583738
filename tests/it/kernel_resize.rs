//! Promise: where the kubelet resizes in place, the pod spec at the API server is the truth. What is recommended is asked
//! for there, the kernel has it at once if the node has room, and when the kubelet says no every level is as before and
//! the reason is there to read.
//!
//! The real agent and real cgroups; the API server and the kubelet are made up (`apimodel`), because those that can be had
//! here know no resizing in place.

mod host_answers;
mod host_boost;
mod host_bounds;
mod host_canary;
mod host_faults;
mod host_killed;
mod host_kubelet_pods;
mod host_kubelets;
mod host_manners;
mod host_others;
mod host_outages;
mod host_restore;
mod host_spread;
mod host_tenants;
mod host_upstream;
mod memory;

use std::sync::Arc;

use serde_json::{Value, json};
use vscaled::control::proto::{Change, Pod, ResizeRequest};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::apimodel::{ApiModel, Verdict, objects};
use crate::support::bare::{BareNode, BarePod};
use crate::support::cluster::objects::resources;

const NODE: &str = "node-1";
const UID: &str = "0a1b2c3d-0000-4000-8000-000000000071";
const NAME: &str = "web-5c4f-x";

const APP: Amounts = Amounts::doubled(100, 64);
const AT_FIRST: [(&str, Amounts); 1] = [("app", APP)];
const LARGER: [(&str, Amounts); 1] = [("app", Amounts::doubled(300, 128))];
const SMALLER: [(&str, Amounts); 1] = [("app", Amounts::doubled(200, 96))];

/// Why a kubelet defers a resize.
const FULL: &str = "Node didn't have enough resource: cpu";

/// A pod of a Deployment, and an agent.
struct Scene {
    agent: Agent,
    node: BareNode,
    pod: BarePod,
    api: ApiModel,
}

impl Scene {
    /// The agent does not run yet.
    async fn new() -> Self {
        Self::of(APP).await
    }

    /// The same, with a container that has these amounts and a VPA that recommends them.
    async fn of(at_first: Amounts) -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = node.run(NAME, UID, &[("app", at_first)]);
        let api = ApiModel::start(NODE, &json!({"cpu": "4", "memory": "8Gi"})).await;
        api.put("deployments", workload("web", None));
        api.put("replicasets", workload("web-5c4f", Some("web")));
        api.put("pods", object(&pod, "web-5c4f"));
        api.put("verticalpodautoscalers", vpa(&[("app", at_first)]));
        let agent = Agent::new(&kubepods)
            .with("--source", "kubernetes")
            .with("--node-name", NODE)
            .with("--kubeconfig", api.kubeconfig());
        let scene = Self { agent, node, pod, api };
        scene.kubelet_writes();
        scene
    }

    /// The agent knows the pod and leaves it alone.
    async fn started() -> Self {
        let mut scene = Self::new().await;
        scene.start().await;
        scene
    }

    async fn start(&mut self) {
        self.agent.start().await;
        self.agent.reaches(NAME, "NotManaged").await;
    }

    /// The agent has resized the pod once, and the kubelet has followed.
    async fn managed() -> Self {
        let scene = Self::started().await;
        scene.recommend(&SMALLER);
        scene.settles(&SMALLER).await;
        scene.confirmed(&SMALLER).await;
        scene
    }

    /// The kubelet has deferred a larger resize for want of room, and the agent says so.
    async fn deferred() -> Self {
        let scene = Self::managed().await;
        scene.kubelet_says(Verdict::Deferred(FULL));
        scene.recommend(&LARGER);
        scene.says("Deferred", FULL).await;
        scene
    }

    /// The kubelet writes the same cgroups, as it does in real life.
    fn kubelet_writes(&self) {
        let version = self.node.cgroups().version();
        let cgroups = [&self.pod.cgroup, &self.pod.containers["app"].cgroup].map(Clone::clone);
        let hierarchy = vscaled::cgroup::Hierarchy::discover(None).unwrap();
        let write = move |pod: &vscaled::model::objects::Pod| {
            let amounts = Amounts::of(&pod.spec.containers[0].resources);
            for cgroup in &cgroups {
                let cgroup = vscaled::cgroup::CgroupDir::open(&hierarchy, cgroup).unwrap();
                for setting in amounts.settings(version).iter() {
                    cgroup
                        .write(setting)
                        .map_or_else(|error| eprintln!("the kubelet: {error}"), drop);
                }
            }
        };
        self.api.kubelet(|kubelet| kubelet.writes = Some(Arc::new(write)));
    }

    fn recommend(&self, targets: &[(&str, Amounts)]) {
        self.api.put("verticalpodautoscalers", vpa(targets));
    }

    /// The same, with upper bounds far above; the agent has heard of it. Pods come on a watch of their own.
    async fn recommend_widely(&self, targets: &[(&str, Amounts)]) {
        let mut wide = vpa(targets);
        wide["status"]["recommendation"]["containerRecommendations"][0]["upperBound"] =
            json!({"cpu": "1", "memory": "1Gi"});
        self.api.put("verticalpodautoscalers", wide);
        let heard = async || {
            let reply = self.agent.client().await.explain(self.pod.full_name()).await.ok()?;
            let bounds = reply.amounts.iter().filter_map(|amount| amount.upper_bound.as_deref());
            bounds.into_iter().any(|bound| bound == "1Gi").then_some(())
        };
        self.agent.until("the bounds to be heard of", heard).await;
    }

    /// Waits until the agent has heard how large the node is, in the words in which it refuses more. Nodes come on a watch
    /// of their own.
    async fn hears(&self, size: &str) {
        let request = || ResizeRequest {
            dry_run: true,
            ..host_others::limits(&self.pod, Some("640"), None)
        };
        let refused = async || self.agent.resize(request()).await.err().map(|error| error.to_string());
        let heard = async || refused().await.filter(|why| why.contains(size)).map(drop);
        self.agent.until("the node's size to be heard of", heard).await;
    }

    fn kubelet_says(&self, verdict: Verdict) {
        self.api.kubelet(|kubelet| kubelet.verdict = verdict);
    }

    fn holds(&self, containers: &[(&str, Amounts)]) -> bool {
        self.node.holds_as_specified(&self.pod, containers)
    }

    async fn holds_soon(&self, containers: &[(&str, Amounts)]) {
        let wanted = format!("every level to hold {containers:?}");
        self.agent.wait_for(&wanted, || self.holds(containers)).await;
    }

    /// Waits until every level holds these values and the agent is content.
    async fn settles(&self, containers: &[(&str, Amounts)]) {
        self.holds_soon(containers).await;
        self.agent.reaches(NAME, "InSync").await;
    }

    /// Waits until the kubelet says that the pod has these amounts.
    async fn confirmed(&self, containers: &[(&str, Amounts)]) {
        let wanted = resources(containers[0].1);
        let confirmed = || {
            let pod = self.object();
            pod["status"]["containerStatuses"][0]["resources"] == wanted
                && pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
                && pod["status"]["conditions"].as_array().is_some_and(Vec::is_empty)
        };
        self.agent.wait_for("the kubelet to confirm", confirmed).await;
    }

    fn object(&self) -> Value {
        self.api.get("pods", &self.pod.full_name()).unwrap()
    }

    fn spec(&self) -> Value {
        self.object()["spec"]["containers"][0]["resources"].clone()
    }

    /// Waits until the pod is in a state whose detail says this.
    async fn says(&self, state: &str, words: &str) -> Pod {
        let said = async || {
            self.agent
                .pod(NAME)
                .await
                .filter(|pod| pod.state == state && pod.detail.contains(words))
        };
        self.agent.until(&format!("{state}: {words}"), said).await
    }

    /// Waits for a pass with this outcome.
    async fn passes(&self, outcome: &str) -> Change {
        let passed = async || {
            self.agent
                .history()
                .await
                .into_iter()
                .rev()
                .find(|change| change.outcome == outcome)
        };
        self.agent.until(&format!("a pass that is {outcome}"), passed).await
    }
}

fn workload(name: &str, deployment: Option<&str>) -> Value {
    objects::workload(name, "web", deployment)
}

fn object(pod: &BarePod, replica_set: &str) -> Value {
    objects::running_pod(pod, "web", replica_set, NODE)
}

fn vpa(targets: &[(&str, Amounts)]) -> Value {
    objects::vpa("web", targets)
}
