//! A kubelet that resizes a pod while a container does not run leaves the pod's cgroup below its containers
//! (kubernetes/kubernetes#138760). The agent reports this for every pod, and corrects it where the configuration says
//! so.

use vscaled::control::proto;
use vscaled::model::{CgroupVersion, MemoryLimit, Setting};

use super::{Amounts, SIDE, Scene};
use crate::support::allocator::{Allocation, Allocator, End};

/// The spec after a resize by a user.
const RESIZED: [(&str, Amounts); 2] = [("app", Amounts::doubled(100, 256)), ("side", SIDE)];
/// The old limit, which the pod's cgroup still has.
const OLD: MemoryLimit = MemoryLimit::Bytes(96 << 20);
/// More than the pod's cgroup permits, less than the container's does.
const ALLOCATION: Allocation = Allocation { rate: 0, until: 160 };

/// Restarts the container with its new limit, in a pod with the old one.
fn left_below(scene: &Scene) {
    scene.node.cgroups().put(
        &scene.pod.cgroup,
        match scene.node.cgroups().version() {
            CgroupVersion::V1 => Setting::MemoryLimit(OLD),
            CgroupVersion::V2 => Setting::MemoryMax(OLD),
        },
    );
}

/// The end of a process in the container that needs the container's whole limit.
fn grows(scene: &Scene) -> End {
    Allocator::start(scene.node.cgroups(), &scene.pod.containers["app"].cgroup, ALLOCATION).wait()
}

fn pod_limit(scene: &Scene) -> Option<MemoryLimit> {
    scene.node.held(&scene.pod)["pod"].memory_limit()
}

/// The only recorded change of the pod.
async fn only_change(scene: &Scene) -> proto::Change {
    scene
        .agent
        .until("the pod to be in the history", async || {
            let mut history = scene.agent.history().await;
            (history.len() == 1).then(|| history.remove(0))
        })
        .await
}

#[tokio::test]
async fn an_observer_names_a_pod_below_its_containers() {
    let mut scene = Scene::of(&RESIZED);
    left_below(&scene);
    assert!(
        matches!(grows(&scene), End::Killed(_)),
        "the kernel lets it have more than its pod"
    );
    scene.agent.start().await;
    let told = only_change(&scene).await;
    assert_eq!(told.outcome, "Refused", "{told:?}");
    let reason = "the pod's cgroup allows 96Mi of memory, its containers' cgroups 576Mi together; set repairPodLevel: true to have vscaled raise it";
    assert_eq!(told.reason, reason);
    let problems = scene.agent.get().await.agent.unwrap().problems;
    assert!(
        problems.iter().any(|problem| problem.contains("pod test/web: ")),
        "{problems:?}"
    );
    assert_eq!(pod_limit(&scene), Some(OLD));
}

#[tokio::test]
async fn a_stale_pod_limits_loop_of_kills_ends() {
    let mut scene = Scene::of(&RESIZED);
    scene.agent.set("--repair-pod-level", "true");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    left_below(&scene);
    assert!(
        matches!(grows(&scene), End::Killed(_)),
        "the kernel lets it have more than its pod"
    );
    // The kubelet restarts the container.
    scene.node.run_container(&mut scene.pod, "app", RESIZED[0].1);
    scene.agent.write("pod.yaml", &scene.pod.manifest());
    let raised = || pod_limit(&scene) == Some(MemoryLimit::Bytes(576 << 20));
    scene.agent.wait_for("the pod's limit to be raised", raised).await;
    assert!(
        matches!(grows(&scene), End::Satisfied(_)),
        "{:?}",
        scene.node.held(&scene.pod)
    );
    let told = only_change(&scene).await;
    assert_eq!(told.outcome, "Applied", "{told:?}");
    assert_eq!(told.steps.len(), 1, "nothing else is written: {told:?}");
    scene
        .agent
        .until("the problem to be over", async || {
            let problems = scene.agent.get().await.agent.unwrap().problems;
            problems.is_empty().then_some(())
        })
        .await;
}
