//! Failed shrinks.

use std::time::{Duration, Instant};

use vscaled::control::proto;

use super::{ROOMY, Scene, roomy};
use crate::support::allocator::{Allocation, Allocator};

/// Makes the container grow to 60 MiB and stay there.
fn grow(scene: &Scene) -> Allocator {
    let allocation = Allocation { rate: 20, until: 60 };
    Allocator::start_careful(scene.node.cgroups(), &scene.app(), allocation)
}

/// The agent's explanation of the container's memory limit.
async fn explained(scene: &Scene) -> (proto::ExplainReply, proto::Value) {
    let reply = scene.agent.client().await.explain(scene.pod.full_name()).await.unwrap();
    let files = ["memory.max", "memory.limit_in_bytes"];
    let limit = |value: &&proto::Value| value.name == "app" && files.contains(&value.file.as_str());
    let value = reply.values.iter().find(limit).unwrap().clone();
    (reply, value)
}

#[tokio::test]
async fn a_harmful_shrink_is_undone_and_remembered() {
    let mut scene = Scene::started().await;
    assert_eq!(scene.resize(40).await.outcome, "Applied");
    assert_eq!(scene.limits(), [40, 40]);
    let _grows = grow(&scene);
    let raised = || scene.limits() == [ROOMY, ROOMY];
    scene.agent.wait_for("the limits to go up again", raised).await;
    let grown = || scene.usage() > 60 << 20;
    scene.agent.wait_for("the container to grow on", grown).await;
    assert_eq!(scene.kills(), 0);

    let pod = scene.agent.reaches("web", "Refused").await;
    assert!(
        pod.detail.contains("a lower memory limit was undone (attempt 1)"),
        "{}",
        pod.detail
    );
    assert!(
        pod.detail
            .contains("bytes that cannot be reclaimed nearly fill the limit"),
        "{}",
        pod.detail
    );
    let history = scene.agent.history().await;
    let last = history.last().unwrap();
    assert!(last.cause.starts_with("undoing a shrink: "), "{last:#?}");
    assert_eq!(last.outcome, "Applied");
    let (reply, limit) = explained(&scene).await;
    assert!(reply.next.contains("is tried again at"), "{}", reply.next);
    assert_eq!(
        limit.difference,
        "kept for now, because lowering it was undone; the next step says when it is tried again"
    );

    // The next agent knows as well.
    scene.agent.kill();
    scene.agent.start().await;
    scene.agent.reaches("web", "Refused").await;
    assert_eq!(scene.limits(), [ROOMY, ROOMY]);

    // An operator's request ends the waiting time, and the current use decides about it.
    let change = scene.resize(50).await;
    assert_eq!(change.outcome, "Refused", "{change:#?}");
    assert!(change.reason.contains("not shrinkable now"), "{change:#?}");
    assert_eq!(scene.resize(100).await.outcome, "Applied");
    assert_eq!((scene.limits(), scene.kills()), ([100, 100], 0));
}

#[tokio::test]
async fn a_failed_return_to_the_spec_ends_there() {
    let mut scene = Scene::with(40).await;
    assert_eq!(scene.resize(ROOMY).await.outcome, "Applied");
    assert_eq!(scene.agent.release("test/web").await.unwrap().outcome, "Applied");
    assert_eq!(scene.limits(), [40, 40]);
    let _grows = grow(&scene);
    let raised = || scene.limits() == [ROOMY, ROOMY];
    scene.agent.wait_for("the limits to go up again", raised).await;
    assert_eq!(scene.kills(), 0);
    let pod = scene.agent.reaches("web", "Refused").await;
    assert!(pod.detail.contains("a lower memory limit was undone"), "{}", pod.detail);

    // The next agent knows as well.
    scene.agent.kill();
    scene.agent.start().await;
    scene.agent.reaches("web", "Refused").await;
    assert_eq!(scene.limits(), [ROOMY, ROOMY]);
}

#[tokio::test]
async fn a_watched_shrink_outlives_other_restarts() {
    let mut scene = Scene::started().await;
    scene.starts("side").await;
    assert_eq!(scene.resize(40).await.outcome, "Applied");
    assert_eq!(scene.limits(), [40, 90]);
    let side = scene.pod.containers["side"].cgroup.clone();
    scene.node.cgroups().remove(&side);
    scene.starts("side").await;
    let _grows = grow(&scene);
    let raised = || scene.limits()[0] == ROOMY;
    scene.agent.wait_for("the limit to go up again", raised).await;
    let grown = || scene.usage() > 60 << 20;
    scene.agent.wait_for("the container to grow on", grown).await;
    assert_eq!(scene.kills(), 0);
}

/// The number of kills until the kernel logs one: it logs ten kills in five seconds for the whole machine, where
/// other processes may be killed too.
const ATTEMPTS: usize = 16;
/// The longest wait for each log entry.
const EXPLAINED: Duration = Duration::from_secs(10);

impl Scene {
    /// Starts a container of the pod, and waits until the agent knows it.
    async fn starts(&mut self, name: &'static str) {
        self.node.run_container(&mut self.pod, name, roomy(50));
        self.agent.write("pod.yaml", &self.pod.manifest());
        let id = &self.pod.containers[name].id;
        let known = async || {
            let pod = self.agent.pod("web").await?;
            let mut ids = pod.containers.iter().filter_map(|container| container.id.as_ref());
            ids.any(|known| known == id).then_some(())
        };
        self.agent.until("the container to be known", known).await;
    }

    async fn has_undone(&self) -> bool {
        let pod = self.agent.pod("web").await;
        pod.is_some_and(|pod| pod.detail.contains("a lower memory limit was undone"))
    }

    /// Waits until the agent attributes the kill and undoes the shrink. Returns whether that happened.
    async fn explains(&self) -> bool {
        let died = Instant::now();
        while !self.has_undone().await {
            if died.elapsed() >= EXPLAINED {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }

    /// Ends the container with the killed process and removes its cgroup before the agent can read the reason there.
    /// A new container follows, with the limit of its spec at first.
    async fn dies_as_a_whole(&mut self) {
        self.spawn("exec perl -e '$x = \"a\" x (100 << 20); sleep 1000'");
        while self.kills() == 0 && !self.has_undone().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.node.cgroups().remove(&self.app());
        self.node.run_container(&mut self.pod, "app", roomy(ROOMY));
        self.agent.write("pod.yaml", &self.pod.manifest());
    }
}

#[tokio::test]
async fn a_fatal_shrink_is_undone_for_the_next() {
    let mut scene = Scene::started().await;
    assert_eq!(scene.resize(40).await.outcome, "Applied");
    for attempt in 1.. {
        assert!(attempt <= ATTEMPTS, "killed {ATTEMPTS} times, and nothing was undone");
        // The kill before may be attributed only now.
        let low = async || (scene.limits() == [40, 40] || scene.has_undone().await).then_some(());
        scene.agent.until("the container to have the low limit", low).await;
        // By now the agent reads the cgroup ten times a second.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        scene.dies_as_a_whole().await;
        if scene.explains().await {
            break;
        }
    }
    let raised = || scene.limits() == [ROOMY, ROOMY];
    scene.agent.wait_for("the limits to go up again", raised).await;
}
