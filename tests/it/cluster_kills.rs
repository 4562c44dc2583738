//! Promise: every kill becomes an Event on its pod at a real API server, also a kill during an outage of the API
//! server or of the agent. The number of Events is bounded. If configured, the agent reports the kills that an
//! unmodified VPA recommender would otherwise miss.

pub(crate) mod again;
mod outages;
mod pods;
mod recommender;

use serde_json::Value;
use vscaled::model::MemoryLimit;

use crate::cluster_api::Scene as Cluster;
use crate::support::bare::BarePod;
use crate::support::cluster::objects;
use crate::support::victims::{TOO_MUCH, victim, was_killed};

/// A pod at an API server and on a node whose kills the agent watches.
struct Scene {
    cluster: Cluster,
}

impl Scene {
    /// Returns `None` without an API server to test with.
    fn new(test: &str) -> Option<Self> {
        let scene = Self {
            cluster: Cluster::new(test)?,
        };
        scene.free(&scene.cluster.pod);
        Some(scene)
    }

    /// Starts the agent, which watches for kills.
    async fn started(test: &str) -> Option<Self> {
        let mut scene = Self::new(test)?;
        scene.start().await;
        Some(scene)
    }

    async fn start(&mut self) {
        let agent = &mut self.cluster.agent;
        agent.start().await;
        agent.reaches(self.cluster.pod.name, "NotManaged").await;
        agent.wait_for("the agent to watch", || agent.watches_kills()).await;
    }

    /// Raises the pod's own memory limit, so that only the container's limit has an effect.
    fn free(&self, pod: &BarePod) {
        let cgroups = self.cluster.node.cgroups();
        cgroups.limit_memory(&pod.cgroup, MemoryLimit::Bytes(4 << 30));
        cgroups.free_cpu([&pod.cgroup, &pod.containers["app"].cgroup]);
    }

    /// Makes the kernel kill this many processes of the pod's container.
    fn kill(&self, pod: &BarePod, count: usize) {
        let cgroup = &pod.containers["app"].cgroup;
        let start = |_| victim(self.cluster.node.cgroups(), cgroup, TOO_MUCH);
        let victims: Vec<_> = (0..count).map(start).collect();
        victims.into_iter().for_each(was_killed);
    }

    /// The current Events about a pod with this reason.
    fn events(&self, pod: &BarePod, reason: &str) -> Vec<Value> {
        let mut list = self.cluster.cluster.get(objects::EVENTS);
        let Value::Array(events) = list["items"].take() else {
            panic!("no list: {list}")
        };
        let ours = |event: &Value| event["involvedObject"]["uid"] == pod.uid && event["reason"] == reason;
        events.into_iter().filter(ours).collect()
    }

    /// Waits until the Events about a pod report exactly this many kills, and returns them.
    async fn wait_for_kill_events(&self, pod: &BarePod, kills: u64) -> Vec<Value> {
        let told = |events: &[Value]| events.iter().filter_map(|event| event["count"].as_u64()).sum::<u64>();
        let enough = async || Some(self.events(pod, "OOMKilled")).filter(|events| told(events) >= kills);
        let what = format!("Events of {kills} kills");
        let events = self.cluster.agent.until(&what, enough).await;
        assert_eq!(told(&events), kills, "{events:#?}");
        events
    }

    /// Waits until no report is pending.
    async fn has_no_pending_report(&self) {
        let agent = &self.cluster.agent;
        let content = async || agent.get().await.agent.filter(|agent| agent.problems.is_empty());
        agent.until("no problem to be left", content).await;
    }
}
