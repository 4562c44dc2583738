//! Promise: where the kubelet resizes in place, the pod spec at the API server is authoritative. The agent patches
//! recommendations there and writes them to the kernel at once if the node has capacity. If the kubelet refuses,
//! every level has its earlier values, and the agent reports the reason.
//!
//! The agent and the cgroups are real. The API server and the kubelet are models (`apimodel`), for faults and orders that real
//! ones cannot be made to show: each module says which. `cluster_today` tests everything else with real ones.

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
mod host_withdrawn;
mod memory;

use std::sync::Arc;

use serde_json::{Value, json};
use vscaled::control::proto::{Change, Pod, ResizeRequest};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::apimodel::{ApiModel, Effect, Fault, ResizeResult, objects};
use crate::support::bare::{BareNode, BarePod};
use crate::support::cluster::objects::resources;

const NODE: &str = "node-1";
const UID: &str = "0a1b2c3d-0000-4000-8000-000000000071";
const NAME: &str = "web-5c4f-x";

const APP: Amounts = Amounts::doubled(100, 64);
const AT_FIRST: [(&str, Amounts); 1] = [("app", APP)];
const LARGER: [(&str, Amounts); 1] = [("app", Amounts::doubled(300, 128))];
const SMALLER: [(&str, Amounts); 1] = [("app", Amounts::doubled(200, 96))];

/// The message with which a kubelet defers a resize.
const FULL: &str = "Node didn't have enough resource: cpu, requested: 9000, used: 100, capacity: 4000";

/// A pod of a Deployment, and an agent.
struct Scene {
    agent: Agent,
    node: BareNode,
    pod: BarePod,
    api: ApiModel,
}

impl Scene {
    /// From now on the watch of pods shows nothing.
    fn stall_the_watch(&self) {
        self.api.fault(Fault {
            verb: "watch",
            resource: "pods",
            times: Some(0),
            effect: Effect::Stalls,
        });
    }

    /// The pod gets a version that the watch does not show.
    fn stall_the_watch_and_touch_the_pod(&self) {
        self.stall_the_watch();
        let touch = |pod: &mut Value| pod["metadata"]["annotations"]["example.com/touched"] = json!("yes");
        self.api.change("pods", NAME, touch);
    }

    /// The agent does not run yet.
    async fn new() -> Self {
        Self::of(APP).await
    }

    /// Like [`Self::new`], with a container that has these amounts and a VPA that recommends them.
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

    /// Starts the agent, which knows the pod and does not change it.
    async fn started() -> Self {
        let mut scene = Self::new().await;
        scene.start().await;
        scene
    }

    async fn start(&mut self) {
        self.agent.start().await;
        self.agent.reaches(NAME, "NotManaged").await;
    }

    /// Waits until the agent has resized the pod once and the kubelet has followed.
    async fn managed() -> Self {
        let scene = Self::started().await;
        scene.recommend(&SMALLER);
        scene.settles(&SMALLER).await;
        scene.confirmed(&SMALLER).await;
        scene
    }

    /// Waits until the kubelet has deferred a larger resize for lack of capacity, and the agent reports that.
    async fn deferred() -> Self {
        let scene = Self::managed().await;
        scene.set_resize_result(ResizeResult::Deferred(FULL));
        scene.recommend(&LARGER);
        scene.reaches_with_detail("Deferred", FULL).await;
        scene
    }

    /// Makes the kubelet write the same cgroups, as a real kubelet does.
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

    /// Like [`Self::recommend`], with upper bounds far above the targets. Waits until the agent has received it,
    /// because pods arrive on a separate watch.
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

    /// Waits until the agent knows the node's capacity, which its refusal of a larger request contains. Nodes arrive
    /// on a separate watch.
    async fn knows_capacity(&self, size: &str) {
        let request = || ResizeRequest {
            dry_run: true,
            ..host_others::limits(&self.pod, Some("640"), None)
        };
        let refused = async || self.agent.resize(request()).await.err().map(|error| error.to_string());
        let heard = async || refused().await.filter(|why| why.contains(size)).map(drop);
        self.agent.until("the node's size to be heard of", heard).await;
    }

    fn set_resize_result(&self, result: ResizeResult) {
        self.api.kubelet(|kubelet| kubelet.result = result);
    }

    fn holds(&self, containers: &[(&str, Amounts)]) -> bool {
        self.node.holds_as_specified(&self.pod, containers)
    }

    async fn holds_soon(&self, containers: &[(&str, Amounts)]) {
        let wanted = format!("every level to hold {containers:?}");
        self.agent.wait_for(&wanted, || self.holds(containers)).await;
    }

    /// Waits until every level holds these values and the agent reports InSync.
    async fn settles(&self, containers: &[(&str, Amounts)]) {
        self.holds_soon(containers).await;
        self.agent.reaches(NAME, "InSync").await;
    }

    /// Waits until the kubelet reports these amounts in the pod's status.
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

    /// The agent's Events. Other processes on the machine may be killed too, of which it tells about the node.
    fn events(&self) -> Vec<Value> {
        let mut events = self.api.all("events");
        events.retain(|event| event["reason"] != "OOMKilled" || event["involvedObject"]["kind"] != "Node");
        events
    }

    fn spec(&self) -> Value {
        self.object()["spec"]["containers"][0]["resources"].clone()
    }

    /// Waits until the pod is in a state whose detail contains these words.
    async fn reaches_with_detail(&self, state: &str, words: &str) -> Pod {
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
