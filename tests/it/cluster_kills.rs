//! Promise: every kill for want of memory becomes an Event on its pod at a real API server, also of those that happen while
//! the API server is away or the agent is killed, in a bounded number of Events however many there are; and if asked for, an
//! unmodified VPA recommender is told of those that it would not learn of.

mod again;
mod outages;
mod pods;
mod recommender;

use serde_json::Value;
use vscaled::model::MemoryLimit;

use crate::cluster_api::Scene as Cluster;
use crate::support::bare::BarePod;
use crate::support::cluster::objects;
use crate::support::victims::{TOO_MUCH, victim, was_killed};

/// A pod at an API server and on a node that watches for kills.
struct Scene {
    cluster: Cluster,
}

impl Scene {
    /// None where there is no API server to test with.
    fn new(test: &str) -> Option<Self> {
        let scene = Self {
            cluster: Cluster::new(test)?,
        };
        scene.free(&scene.cluster.pod);
        Some(scene)
    }

    /// With the agent running and watching.
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

    /// Has only the container's memory limit count: what is in the pod's own cgroup counts, too.
    fn free(&self, pod: &BarePod) {
        let cgroups = self.cluster.node.cgroups();
        cgroups.limit_memory(&pod.cgroup, MemoryLimit::Bytes(4 << 30));
        cgroups.free_cpu([&pod.cgroup, &pod.containers["app"].cgroup]);
    }

    /// Has so many processes of a pod's container killed.
    fn kill(&self, pod: &BarePod, count: usize) {
        let cgroup = &pod.containers["app"].cgroup;
        let start = |_| victim(self.cluster.node.cgroups(), cgroup, TOO_MUCH);
        let victims: Vec<_> = (0..count).map(start).collect();
        victims.into_iter().for_each(was_killed);
    }

    /// The Events about a pod with this reason that there are now.
    fn events(&self, pod: &BarePod, reason: &str) -> Vec<Value> {
        let mut list = self.cluster.cluster.get(objects::EVENTS);
        let Value::Array(events) = list["items"].take() else {
            panic!("no list: {list}")
        };
        let ours = |event: &Value| event["involvedObject"]["uid"] == pod.uid && event["reason"] == reason;
        events.into_iter().filter(ours).collect()
    }

    /// The Events about the kills in a pod, once they tell of so many, and of no more.
    async fn tells(&self, pod: &BarePod, kills: u64) -> Vec<Value> {
        let told = |events: &[Value]| events.iter().filter_map(|event| event["count"].as_u64()).sum::<u64>();
        let enough = async || Some(self.events(pod, "OOMKilled")).filter(|events| told(events) >= kills);
        let what = format!("Events of {kills} kills");
        let events = self.cluster.agent.until(&what, enough).await;
        assert_eq!(told(&events), kills, "{events:#?}");
        events
    }

    /// Waits until nothing waits to be told any more.
    async fn is_content(&self) {
        let agent = &self.cluster.agent;
        let content = async || agent.get().await.agent.filter(|agent| agent.problems.is_empty());
        agent.until("no problem to be left", content).await;
    }
}
