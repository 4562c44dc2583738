//! Promise: the agent reports every kill once, for the right container, with the limit that was hit and the killed
//! process as far as they are certain, also a kill during a restart of the agent.
//!
//! The real agent runs with bare cgroups, in which the kernel kills real processes, on cgroup v1 or v2. Other
//! processes on the machine may be killed too, and may use up the kernel's log limit of five seconds. Then the report
//! has fewer facts, and never a wrong one.

mod after_resize;
mod bursts;
mod by_syslog;
mod delivered;
mod groups;
mod levels;
mod on_trouble;
mod restarts;
mod told;
mod unseen;
mod whose_limit;

use std::process::Child;
use std::time::Duration;

use vscaled::control::proto::OomKill;
use vscaled::model::{CgroupPath, MemoryLimit};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};
use crate::support::victims::{TOO_MUCH, victim, was_killed};

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000051";
/// The containers' amounts: 16 MiB at most.
const SMALL: Amounts = Amounts::doubled(1000, 8);
/// The kernel logs ten kills in five seconds for the whole machine, where other processes may be killed too.
const ATTEMPTS: usize = 16;

/// A pod, and an agent that does not run yet.
struct Scene {
    agent: Agent,
    node: BareNode,
    pod: BarePod,
}

impl Scene {
    fn of(containers: &[(&'static str, Amounts)]) -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = node.run("web", UID, containers);
        let agent = Agent::new(&kubepods);
        agent.write("pod.yaml", &pod.manifest());
        let scene = Self { agent, node, pod };
        // The pod's limit must not be reached: memory of the pod's own cgroup counts too.
        scene.limit_pod(4096);
        scene
    }

    /// Starts the agent, which watches for kills.
    async fn started(containers: &[(&'static str, Amounts)]) -> Self {
        let mut scene = Self::of(containers);
        scene.start().await;
        scene
    }

    async fn start(&mut self) {
        self.agent.start().await;
        self.agent.reaches("web", "NotManaged").await;
        self.agent
            .wait_for("the agent to watch", || self.agent.watches_kills())
            .await;
    }

    fn cgroup(&self, container: &str) -> CgroupPath {
        self.pod.containers[container].cgroup.clone()
    }

    fn limit_pod(&self, mebibytes: u64) {
        let limit = MemoryLimit::Bytes(mebibytes << 20);
        self.node.cgroups().limit_memory(&self.pod.cgroup, limit);
    }

    /// Starts a shell command that the kernel will kill, in a cgroup.
    fn victim(&self, cgroup: &CgroupPath, command: &str) -> Child {
        victim(self.node.cgroups(), cgroup, command)
    }

    /// Makes the kernel kill a process in a container, and returns its pid.
    fn kill_one(&self, container: &str) -> u32 {
        let child = self.victim(&self.cgroup(container), TOO_MUCH);
        let pid = child.id();
        was_killed(child);
        pid
    }

    /// The reported kills in pods of this tree, oldest first.
    async fn reported_kills(&self) -> Vec<OomKill> {
        let reply = self.agent.client().await.oom_list(String::new()).await.unwrap();
        // Other tests have their own trees.
        let ours = |kill: &OomKill| {
            let tree = self.node.kubepods();
            let path = |text: &Option<String>| text.as_deref().and_then(|text| CgroupPath::new(text).ok());
            path(&kill.cgroup).is_some_and(|path| path.below(&tree).is_some())
        };
        reply.kills.into_iter().filter(ours).collect()
    }

    /// Waits until the agent has reported this many kills.
    async fn wait_for_kills(&self, count: usize) -> Vec<OomKill> {
        let told = async || Some(self.reported_kills().await).filter(|told| told.len() >= count);
        let told = self.agent.until(&format!("{count} kills to be told"), told).await;
        let lines = || told.iter().map(line).collect::<Vec<_>>().join("\n");
        assert_eq!(told.len(), count, "told were:\n{}", lines());
        told
    }

    /// The kills that the kernel has counted in the containers as they are.
    fn counted_kills(&self) -> usize {
        let containers = self.pod.containers.values();
        let counted = containers.map(|container| self.node.cgroups().oom_kills(&container.cgroup));
        usize::try_from(counted.sum::<u64>()).unwrap()
    }

    /// Repeats a kill until the kernel logs it. Each attempt kills one process.
    async fn explained(&self, kill: impl FnMut() -> u32) -> OomKill {
        self.explained_of(1, kill).await
    }

    /// Like [`Self::explained`], where one call of `kill` makes the kernel kill up to `most` processes; the pid is
    /// that of the first.
    async fn explained_of(&self, most: usize, mut kill: impl FnMut() -> u32) -> OomKill {
        for _ in 0..ATTEMPTS {
            let before = self.reported_kills().await.len();
            let pid = kill();
            let told = self.agent.until("the kill to be told", async || {
                let reply = self.agent.client().await.oom_list(String::new()).await.unwrap();
                // If the cgroup is gone and the kernel logged nothing, the container is unknown.
                let by_pid = |kill: &OomKill| kill.victim.as_ref().is_some_and(|victim| victim.pid == pid);
                let told = reply.kills.iter().rfind(|kill| by_pid(kill)).cloned();
                let unexplained = |kill: &OomKill| kill.victim.is_none();
                told.or(self.reported_kills().await.into_iter().skip(before).find(unexplained))
            });
            let told = told.await;
            if told.level != "unknown" {
                assert_eq!(told.victim.as_ref().unwrap().pid, pid, "{told:#?}");
                let kills = self.reported_kills().await.len() - before;
                assert!((1..=most).contains(&kills), "{kills} kills");
                return told;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            if most > 1 {
                // A second victim of this attempt shall not count as one of the next.
                let counted = self.counted_kills();
                let told = async || (self.reported_kills().await.len() >= counted).then_some(());
                self.agent.until("all kills to be told", told).await;
            }
        }
        panic!("the kernel explained none of {ATTEMPTS} kills");
    }
}

/// A kill as one line, which is easy to compare.
fn line(kill: &OomKill) -> String {
    let victim = kill
        .victim
        .as_ref()
        .map(|victim| (victim.pid, &victim.comm, &victim.role));
    let container = container(kill);
    let OomKill {
        time, confidence, id, ..
    } = kill;
    format!("{time} {container} {confidence} {victim:?} {id}")
}

fn container(kill: &OomKill) -> &str {
    kill.container.as_ref().map_or("", |container| &container.name)
}
