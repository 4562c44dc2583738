//! A container that is killed although it left evidence.

use vscaled::control::proto::OomKill;

use super::{Scene, VARIABLE, shell};
use crate::kernel_agent_containerd::UID;

/// Allocates 80 MB and then 10 MB per second after /go exists. The container ends after the kill.
const DIES: &str = "while [ ! -e /go ]; do sleep 0.05; done; \
     (head -c 80000000 /dev/zero; while head -c 1000000 /dev/zero; do sleep 0.1; done) | tail -c 900000000 >/dev/null; exit 7";

impl Scene {
    async fn killed(&self) -> OomKill {
        let told = async || {
            let reply = self.agent.client().await.oom_list(UID.to_owned()).await.unwrap();
            let tree = self.pod.cgroup.to_string();
            let ours = |kill: &OomKill| kill.cgroup.as_ref().is_some_and(|cgroup| cgroup.starts_with(&tree));
            reply.kills.into_iter().find(ours)
        };
        self.agent.until("a kill", told).await
    }
}

#[tokio::test]
async fn a_kill_names_the_evidence_before_it() {
    let hook = shell("echo /dumps/heap.1; exit 3");
    let scene = Scene::pressed(
        DIES,
        &[(VARIABLE, &hook), ("VSCALED_ON_MEMORY_PRESSURE_MEMORY", "32Mi")],
    )
    .await;
    scene.go();
    let told = scene.evidence().await;
    assert!(
        told.outcome == "HookFailed" && told.reason.starts_with("ended with 3 and named /dumps/heap.1"),
        "{told:#?}"
    );
    let evidence = scene.killed().await.evidence.expect("evidence");
    assert_eq!(
        (evidence.path.as_deref(), evidence.exit_code),
        (Some("/dumps/heap.1"), Some(3))
    );
    assert_eq!(scene.hooks(1).await.len(), 1, "once an hour");
}

#[tokio::test]
async fn a_kill_during_a_hook_says_so() {
    let hook = shell("touch /told; sleep 1009; true");
    let hooks = [
        (VARIABLE, hook.as_str()),
        ("VSCALED_ON_MEMORY_PRESSURE_MEMORY", "16Mi"),
        ("VSCALED_ON_MEMORY_PRESSURE_WAIT", "30s"),
    ];
    let scene = Scene::pressed(DIES, &hooks).await;
    let before = jiff::Timestamp::now();
    scene.go();
    let kill = scene.killed().await;
    let evidence = kill.evidence.as_ref().expect("evidence");
    assert_eq!(
        (evidence.path.as_deref(), evidence.exit_code, evidence.unfinished),
        (None, None, Some(true)),
        "{kill:#?}"
    );
    let asked: jiff::Timestamp = evidence.time.parse().unwrap();
    let killed: jiff::Timestamp = kill.time.parse().unwrap();
    assert!(before < asked && asked < killed, "{before} {asked} {killed}");
    // The start of a hook is not a change, so the history has only its end.
    let told = scene.evidence().await;
    assert_eq!(
        (told.outcome.as_str(), scene.hooks(1).await.len()),
        ("HookFailed", 1),
        "{told:#?}"
    );
}
