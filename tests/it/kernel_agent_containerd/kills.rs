//! Kills in containers of a real runtime, with their own pid namespaces and the runtime's cgroups.

use std::fs;
use std::time::Duration;

use vscaled::control::proto::OomKill;

use super::{Scene, UID};

/// Waits for /go, then starts a child that allocates more than the limit, and continues after the kill.
const CHILD_TAKES_TOO_MUCH: &str = "while true; do \
     while ! [ -e /go ]; do sleep 0.05; done; rm /go; \
     (x=x; while :; do x=$x$x; done); \
     done";
/// Waits for /go, then allocates more than the limit itself.
const TAKES_TOO_MUCH: &str = "while ! [ -e /go ]; do sleep 0.05; done; x=x; while :; do x=$x$x; done";
/// The kernel logs ten kills in five seconds for the whole machine, where other processes may be killed too.
const ATTEMPTS: u32 = 16;
const LIMIT: u64 = 128 << 20;

impl Scene {
    /// Starts the agent, which watches for kills.
    async fn watching(script: &'static str) -> Self {
        let scene = Self::started(script).await;
        let watches = || scene.agent.watches_kills();
        scene.agent.wait_for("the agent to watch", watches).await;
        scene
    }

    /// Starts the allocation in `app`.
    pub(super) fn go(&self) {
        let app = &self.pod.containers[0];
        self.containerd.cgroups().free_cpu([&self.pod.cgroup, &app.cgroup]);
        fs::write(format!("/proc/{}/root/go", app.pid), "").unwrap();
    }

    /// Starts the allocation in `app`, and waits until the agent reports one more kill of the pod.
    async fn next_kill(&self) -> OomKill {
        let before = self.kills().await.len();
        self.go();
        let told = async || Some(self.kills().await).filter(|kills| kills.len() > before);
        let mut kills = self.agent.until("a kill to be told", told).await;
        assert_eq!(kills.len(), before + 1, "{kills:#?}");
        kills.pop().unwrap()
    }

    /// The reported kills of the pod, oldest first. Another test may use the same UID at the same time, in its own
    /// tree.
    async fn kills(&self) -> Vec<OomKill> {
        let reply = self.agent.client().await.oom_list(UID.to_owned()).await.unwrap();
        let tree = self.pod.cgroup.to_string();
        let ours = |kill: &OomKill| kill.cgroup.as_ref().is_some_and(|cgroup| cgroup.starts_with(&tree));
        reply.kills.into_iter().filter(ours).collect()
    }

    /// Checks all certain facts about a kill in `app`. Returns whether the kernel logged it.
    fn is_of_app(&self, kill: &OomKill, role: &str) -> bool {
        let app = &self.pod.containers[0];
        let (pod, container) = (kill.pod.as_ref().unwrap(), kill.container.as_ref().unwrap());
        assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("test", "web", UID));
        assert_eq!((&*container.name, &*container.id), ("app", &*app.id));
        assert_eq!(kill.cgroup, Some(app.cgroup.to_string()));
        assert!(kill.own_write.is_none() && !kill.while_down, "{kill:#?}");
        if kill.level == "unknown" {
            return false;
        }
        assert_eq!((&*kill.level, &*kill.confidence), ("container", "exact"));
        let limit = kill.limit.as_ref().unwrap();
        assert_eq!((&limit.cgroup, limit.limit_bytes), (&kill.cgroup, Some(LIMIT)));
        let victim = kill.victim.as_ref().unwrap();
        assert_eq!((&*victim.comm, &*victim.role), ("sh", role));
        assert_eq!(role == "main", victim.pid == app.pid.unsigned_abs());
        assert!(victim.memory.as_ref().unwrap().anon_rss_bytes > LIMIT / 4);
        true
    }
}

#[tokio::test]
async fn a_killed_child_is_reported_for_its_container() {
    let scene = Scene::watching(CHILD_TAKES_TOO_MUCH).await;
    let before = scene.life(0).await;
    for _ in 0..ATTEMPTS {
        let kill = scene.next_kill().await;
        let after = scene.life(0).await;
        assert_eq!(after, before, "the container ended");
        if scene.is_of_app(&kill, "child") {
            return;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    panic!("the kernel explained none of {ATTEMPTS} kills");
}

#[tokio::test]
async fn a_crash_loop_is_reported_at_each_start() {
    let mut scene = Scene::watching(TAKES_TOO_MUCH).await;
    for attempt in 1..=ATTEMPTS {
        let kill = scene.next_kill().await;
        if scene.is_of_app(&kill, "main") && attempt > 1 {
            return;
        }
        scene.containerd.restart(&mut scene.pod, &scene.spec, 0, attempt).await;
        scene.knows_all().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    panic!("the kernel explained none of {ATTEMPTS} kills but the first");
}

#[tokio::test]
async fn a_kill_without_an_agent_is_reported_later() {
    let mut scene = Scene::watching(CHILD_TAKES_TOO_MUCH).await;
    scene.agent.kill();
    let counted = |scene: &Scene| scene.containerd.cgroups().oom_kills(&scene.pod.containers[0].cgroup);
    scene.go();
    scene
        .agent
        .wait_for("the kernel to kill", || counted(&scene) == 1)
        .await;
    scene.agent.start().await;
    let told = async || scene.kills().await.pop();
    let kill = scene.agent.until("the kill to be told", told).await;
    assert_eq!(kill.container.as_ref().unwrap().id, scene.pod.containers[0].id);
    assert_eq!(kill.pod.as_ref().unwrap().name, "web");
    assert!(kill.while_down, "{kill:#?}");
    let kill = scene.next_kill().await;
    assert!(!kill.while_down, "{kill:#?}");
}
