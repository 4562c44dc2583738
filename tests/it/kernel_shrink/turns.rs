//! Shrinks of a workload's pods run a few at a time, and stop after one has failed.

use std::time::{Duration, Instant};

use super::{UID, roomy};
use crate::support::agent::Agent;
use crate::support::allocator::{Allocation, Allocator};
use crate::support::amounts::{Amounts, vpa_manifest};
use crate::support::bare::{BareNode, BarePod};

const NAMES: [&str; 5] = ["web-0", "web-1", "web-2", "web-3", "web-4"];
/// The number of shrinks at the same time.
const AT_ONCE: usize = 3;
/// In MiB.
const BEFORE: u64 = 200;
const AFTER: u64 = 100;

/// Five pods of one StatefulSet.
struct Replicas {
    agent: Agent,
    node: BareNode,
    pods: Vec<BarePod>,
}

impl Replicas {
    async fn started() -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let mut agent = Agent::new(&kubepods);
        let mut pods = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            let uid = format!("{}{index}", &UID[..UID.len() - 1]).leak();
            let pod = node.run(name, uid, &[("app", roomy(BEFORE))]);
            let of_web = pod
                .manifest()
                .replace(&format!("StatefulSet, name: {name}"), "StatefulSet, name: web");
            let of_web = of_web.replace(&format!("{{app: {name}}}"), "{app: web}");
            let (pod_alone, _) = of_web.split_once("---").unwrap();
            agent.write(&format!("{name}.yaml"), pod_alone);
            pods.push(pod);
        }
        let set = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web, namespace: test}\n\
            spec: {replicas: 5, selector: {matchLabels: {app: web}}}\n";
        agent.write("set.yaml", set);
        agent.start().await;
        for name in NAMES {
            agent.reaches(name, "NotManaged").await;
        }
        Self { agent, node, pods }
    }

    /// Recommends half of the memory, so that limits are halved too.
    async fn halved(&self) {
        let half = Amounts {
            memory: 4,
            ..roomy(AFTER)
        };
        self.agent
            .write("vpa.yaml", &vpa_manifest("web", "web", &[("app", half)]));
        self.agent
            .wait_for("the first to come down", || self.lowered() == AT_ONCE)
            .await;
    }

    fn is_lowered(&self, pod: &BarePod) -> bool {
        self.node.holds(
            pod,
            &[(
                "app",
                Amounts {
                    memory: 4,
                    ..roomy(AFTER)
                },
            )],
        )
    }

    fn lowered(&self) -> usize {
        self.pods.iter().filter(|pod| self.is_lowered(pod)).count()
    }

    /// The next action for a pod that still has its limit.
    async fn next_of_another(&self) -> String {
        let waiting = self.pods.iter().find(|pod| !self.is_lowered(pod)).unwrap();
        let reply = self.agent.client().await.explain(waiting.full_name()).await.unwrap();
        reply.next
    }
}

#[tokio::test]
async fn shrinks_go_on_when_the_first_are_content() {
    let replicas = Replicas::started().await;
    let begun = Instant::now();
    replicas.halved().await;
    while begun.elapsed() < Duration::from_secs(20) {
        assert_eq!(replicas.lowered(), AT_ONCE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let next = replicas.next_of_another().await;
    assert!(next.contains("once it is this pod's turn"), "{next}");
    let all = || replicas.lowered() == NAMES.len();
    replicas.agent.wait_for("all to come down", all).await;
    assert!(begun.elapsed() > Duration::from_secs(55), "{:?}", begun.elapsed());
    for pod in &replicas.pods {
        assert!(replicas.node.all_run(pod));
    }
}

#[tokio::test]
async fn the_first_that_suffers_stops_those_that_wait() {
    let replicas = Replicas::started().await;
    replicas.halved().await;
    let suffers = replicas.pods.iter().position(|pod| replicas.is_lowered(pod)).unwrap();
    let cgroup = replicas.pods[suffers].containers["app"].cgroup.clone();
    let allocation = Allocation { rate: 20, until: 130 };
    let _grows = Allocator::start_careful(replicas.node.cgroups(), &cgroup, allocation);
    let name = replicas.pods[suffers].name;
    replicas.agent.reaches(name, "Refused").await;
    // The agent reports this before its pass writes the limit.
    replicas
        .agent
        .wait_for("its limit to be back", || !replicas.is_lowered(&replicas.pods[suffers]))
        .await;
    // Longer than the watch after a shrink.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(75) {
        assert!(replicas.lowered() < AT_ONCE);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let waiting = replicas.pods.iter().filter(|pod| !replicas.is_lowered(pod)).count();
    assert_eq!(waiting, 3, "the one that suffered and the two that waited");
}
