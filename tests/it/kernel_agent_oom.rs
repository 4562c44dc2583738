//! Promise: the agent tells of every kill for want of memory once, for the container it happened in, with whose limit was
//! hit and who was killed as far as that is certain; also of those that happen while it does not run.
//!
//! The real agent against bare cgroups in which real processes are killed by the kernel, v1 or v2, whichever the machine
//! has. Others on the machine may be killed meanwhile, and may use up what the kernel logs in five seconds: then less is
//! known of a kill, and never something wrong.

mod bursts;
mod by_syslog;
mod delivered;
mod groups;
mod levels;
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
/// What containers have: 16 MiB at most.
const SMALL: Amounts = Amounts::doubled(1000, 8);
/// The kernel explains ten kills in five seconds for the whole machine, where others may be killed, too.
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
        // Out of the way: what is in the pod's own cgroup counts, too.
        scene.limit_pod(4096);
        scene
    }

    /// With the agent running and watching.
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

    /// Starts a shell command in a cgroup that is going to be killed.
    fn victim(&self, cgroup: &CgroupPath, command: &str) -> Child {
        victim(self.node.cgroups(), cgroup, command)
    }

    /// Has a process killed in a container; returns its id.
    fn kill_one(&self, container: &str) -> u32 {
        let child = self.victim(&self.cgroup(container), TOO_MUCH);
        let pid = child.id();
        was_killed(child);
        pid
    }

    /// What was told of pods in this tree, oldest first.
    async fn told(&self) -> Vec<OomKill> {
        let reply = self.agent.client().await.oom_list(String::new()).await.unwrap();
        // Other tests have trees of their own.
        let ours = |kill: &OomKill| {
            let tree = self.node.kubepods();
            let path = |text: &Option<String>| text.as_deref().and_then(|text| CgroupPath::new(text).ok());
            path(&kill.cgroup).is_some_and(|path| path.below(&tree).is_some())
        };
        reply.kills.into_iter().filter(ours).collect()
    }

    /// Waits until so many kills were told.
    async fn tells(&self, count: usize) -> Vec<OomKill> {
        let told = async || Some(self.told().await).filter(|told| told.len() >= count);
        let told = self.agent.until(&format!("{count} kills to be told"), told).await;
        let lines = || told.iter().map(line).collect::<Vec<_>>().join("\n");
        assert_eq!(told.len(), count, "told were:\n{}", lines());
        told
    }

    /// Gets processes killed until the kernel explains one of the kills, which is the only one each time.
    async fn explained(&self, kill: impl FnMut() -> u32) -> OomKill {
        self.explained_of(1, kill).await
    }

    /// The same where one call of `kill` may have the kernel kill up to `most` processes; the pid is that of the first.
    async fn explained_of(&self, most: usize, mut kill: impl FnMut() -> u32) -> OomKill {
        for _ in 0..ATTEMPTS {
            let before = self.told().await.len();
            let pid = kill();
            let told = self.agent.until("the kill to be told", async || {
                let reply = self.agent.client().await.oom_list(String::new()).await.unwrap();
                // Whose it was nobody knows, if the cgroup is gone and the kernel explained nothing.
                let by_pid = |kill: &OomKill| kill.victim.as_ref().is_some_and(|victim| victim.pid == pid);
                let told = reply.kills.iter().rfind(|kill| by_pid(kill)).cloned();
                let unexplained = |kill: &OomKill| kill.victim.is_none();
                told.or(self.told().await.into_iter().skip(before).find(unexplained))
            });
            let told = told.await;
            if told.level != "unknown" {
                assert_eq!(told.victim.as_ref().unwrap().pid, pid, "{told:#?}");
                let kills = self.told().await.len() - before;
                assert!((1..=most).contains(&kills), "{kills} kills");
                return told;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        panic!("the kernel explained none of {ATTEMPTS} kills");
    }
}

/// A kill in a line: many of them are easier to compare.
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
