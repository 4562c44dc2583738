//! Limits that the guard does not raise, and its messages about them.

use std::fs;

use vscaled::model::{CgroupVersion, MemoryLimit};

use super::{APP, Scene, memory_directory, takes, vpa};
use crate::support::allocator::{Allocation, Allocator, End};

#[tokio::test]
async fn a_leak_ends_at_max_allowed() {
    let scene = Scene::guarded("256Mi").await;
    let end = scene.takes_carefully(40, 1 << 20).wait();
    assert!(matches!(end, End::Killed(taken) if taken > 128), "{end:?}");
    assert!(scene.kills() > 0);
    assert_eq!(scene.limit(), 256);
    let refused = async || {
        let changes = scene.by_the_guard().await;
        let refused: Vec<_> = changes
            .into_iter()
            .filter(|change| change.outcome == "Refused")
            .collect();
        (!refused.is_empty()).then_some(refused)
    };
    let refused = scene.agent.until("the refusal", refused).await;
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert!(
        refused[0].reason.contains("the highest that its VPA allows (256Mi)"),
        "{}",
        refused[0].reason
    );
    assert_eq!(scene.agent.log().matches("is not raised although").count(), 1);
    let pod = scene.agent.pod("web").await.unwrap();
    assert!(
        pod.detail.contains("was not raised") && pod.not_grown.len() == 1,
        "{pod:#?}"
    );
}

/// The kernel counts whole pages.
#[tokio::test]
async fn an_odd_ceiling_is_reached_and_explained_once() {
    let scene = Scene::guarded("200M").await;
    let end = scene.takes_carefully(40, 1 << 20).wait();
    assert!(matches!(end, End::Killed(taken) if taken > 128), "{end:?}");
    assert_eq!(scene.limit(), 190);
    let refused = async || {
        let changes = scene.by_the_guard().await;
        changes.into_iter().find(|change| change.outcome == "Refused")
    };
    let refused = scene.agent.until("the refusal", refused).await;
    assert!(
        refused.reason.contains("the highest that its VPA allows"),
        "{}",
        refused.reason
    );
    let changes = scene.by_the_guard().await;
    let vain = changes.iter().filter(|change| change.outcome == "Unchanged").count();
    assert_eq!(vain, 0, "{changes:#?}");
}

/// `spec.resources` limits all containers together. Another container uses 60 MiB of the 256.
#[tokio::test]
async fn no_growth_lifts_a_pod_above_its_own_limit() {
    let (mut scene, side) = Scene::of_two(|manifest| {
        manifest.replace(
            "spec:\n  containers:",
            "spec:\n  resources: {requests: {cpu: 2, memory: 128Mi}, limits: {memory: 256Mi}}\n  containers:",
        )
    });
    scene.lift_pod(256);
    scene.agent.start().await;
    scene.guards("web").await;
    let mut beside = Allocator::start(scene.node.cgroups(), &side, Allocation { rate: 100, until: 60 });
    assert!(matches!(beside.wait(), End::Satisfied(_)));
    let end = scene.takes_carefully(100, 1 << 20).wait();
    assert!(matches!(end, End::Killed(taken) if taken > 128), "{end:?}");
    assert_eq!(scene.pod_limit(), 256);
    let limit = scene.limit();
    assert!(limit > 150 && limit <= 196, "{limit} MiB");
    let refused = async || {
        let changes = scene.by_the_guard().await;
        changes.into_iter().find(|change| change.outcome == "Refused")
    };
    let refused = scene.agent.until("the refusal", refused).await;
    assert!(
        refused.reason.contains("its pod's limit of 256Mi cannot be raised"),
        "{}",
        refused.reason
    );
    scene.was_never_lowered().await;
}

/// Together the containers use up the pod's 160 MiB while each is far from its own 128.
#[tokio::test]
async fn a_pod_at_its_own_limit_is_reported() {
    let (mut scene, side) = Scene::of_two(|manifest| {
        manifest.replace(
            "spec:\n  containers:",
            "spec:\n  resources: {requests: {cpu: 2, memory: 128Mi}, limits: {memory: 160Mi}}\n  containers:",
        )
    });
    scene.lift_pod(160);
    scene.agent.start().await;
    scene.guards("web").await;
    let mut beside = Allocator::start(scene.node.cgroups(), &side, Allocation { rate: 100, until: 60 });
    assert!(matches!(beside.wait(), End::Satisfied(_)));
    let end = scene.takes_carefully(20, 1 << 20).wait();
    assert!(matches!(end, End::Killed(taken) if taken < 110), "{end:?}");
    assert_eq!((scene.limit(), scene.pod_limit()), (128, 160));
    let refused = async || {
        let changes = scene.by_the_guard().await;
        changes.into_iter().find(|change| change.outcome == "Refused")
    };
    let refused = scene.agent.until("the refusal", refused).await;
    for part in ["its pod's limit of 160Mi cannot be raised", "it is in a pod that used"] {
        assert!(refused.reason.contains(part), "{}", refused.reason);
    }
}

/// An init container that needs more than all others determines the pod's limit.
#[tokio::test]
async fn a_large_pod_limit_is_not_raised() {
    let (mut scene, _) = Scene::of_two(|manifest| {
        let init = "{name: init, resources: {requests: {cpu: 10m, memory: 1Gi}, limits: {cpu: 20m, memory: 1Gi}}}";
        manifest.replace(
            "spec:\n  containers:",
            &format!("spec:\n  initContainers: [{init}]\n  containers:"),
        )
    });
    scene.lift_pod(1024);
    scene.agent.start().await;
    scene.guards("web").await;
    let end = scene.takes_carefully(100, 300).wait();
    assert!(matches!(end, End::Satisfied(_)), "{end:?}");
    assert!(scene.limit() >= 300);
    scene.agent.reaches("web", "InSync").await;
    assert_eq!(scene.pod_limit(), 1024);
    scene.was_never_lowered().await;
}

/// Beside 300 MiB of the sandbox. The pod's limit would grow only with a container that is 144 MiB larger.
#[tokio::test]
async fn a_pod_out_of_reach_costs_no_growth() {
    let (mut scene, _) = Scene::of_two(|manifest| {
        let init = "{name: init, resources: {requests: {cpu: 10m, memory: 400Mi}, limits: {cpu: 20m, memory: 400Mi}}}";
        manifest.replace(
            "spec:\n  containers:",
            &format!("spec:\n  initContainers: [{init}]\n  containers:"),
        )
    });
    scene.lift_pod(400);
    scene.agent.set("--guard-pod-budget", "100Mi");
    let sandbox = scene.node.cgroups().make_child(&scene.pod.cgroup, &"f".repeat(64));
    let allocation = Allocation { rate: 200, until: 300 };
    let mut beside = Allocator::start(scene.node.cgroups(), &sandbox, allocation);
    assert!(matches!(beside.wait(), End::Satisfied(_)));
    scene.agent.start().await;
    scene.guards("web").await;
    let end = scene.takes_carefully(10, 92).wait();
    assert!(matches!(end, End::Satisfied(_)), "{end:?}");
    let refused = async || {
        let changes = scene.by_the_guard().await;
        changes.into_iter().find(|change| change.outcome == "Refused")
    };
    let refused = scene.agent.until("the refusal", refused).await;
    assert!(refused.reason.contains("guardPodBudget"), "{}", refused.reason);
    assert_eq!((scene.limit(), scene.pod_limit()), (128, 400));
}

#[tokio::test]
async fn a_runaway_ends_at_its_pods_budget() {
    let mut scene = Scene::new("4Gi");
    scene.agent.set("--guard-pod-budget", "100Mi");
    scene.agent.start().await;
    scene.guards("web").await;
    let end = scene.takes_carefully(40, 1 << 20).wait();
    assert!(matches!(end, End::Killed(taken) if taken > 128), "{end:?}");
    let limit = scene.limit();
    // The rest of the budget is smaller than the smallest growth, a 32nd of the limit, in whole MiB.
    assert!(limit <= 228 && 228 - limit <= limit / 32 + 1, "{limit} MiB");
    let refused = async || {
        let changes = scene.by_the_guard().await;
        changes.into_iter().find(|change| change.outcome == "Refused")
    };
    let refused = scene.agent.until("the refusal", refused).await;
    assert!(refused.reason.contains("guardPodBudget"), "{}", refused.reason);
}

/// All pods together may have 700 MiB. One pod holds 100 MiB and must not be affected while two others compete for
/// the rest.
#[tokio::test]
async fn a_race_for_the_last_memory_spares_the_node() {
    let mut scene = Scene::new("4Gi");
    let kubepods = scene.node.kubepods();
    scene
        .node
        .cgroups()
        .limit_memory(&kubepods, MemoryLimit::Bytes(700 << 20));
    let mut pods = Vec::new();
    for (name, uid) in [
        ("api", "0a1b2c3d-0000-4000-8000-000000000032"),
        ("still", "0a1b2c3d-0000-4000-8000-000000000033"),
    ] {
        let pod = scene.node.run(name, uid, &[("app", APP)]);
        scene.agent.write(&format!("{name}.yaml"), &pod.manifest());
        scene.agent.write(&format!("vpa-{name}.yaml"), &vpa(name, "4Gi", 64));
        pods.push(pod);
    }
    scene.agent.start().await;
    for name in ["web", "api", "still"] {
        scene.guards(name).await;
    }
    let mut still = takes(&scene.node, &pods[1], Allocation { rate: 100, until: 100 });
    assert!(matches!(still.wait(), End::Satisfied(_)));
    let allocation = Allocation { rate: 100, until: 1000 };
    let mut racers = [
        takes(&scene.node, &scene.pod, allocation),
        takes(&scene.node, &pods[0], allocation),
    ];
    let ends = racers.each_mut().map(Allocator::wait);
    println!("{ends:?}");
    assert!(
        ends.iter().any(|end| matches!(end, End::Killed(_))),
        "there is not enough for both: {ends:?}"
    );
    assert!(still.lives(), "a bystander died");
    // The limit of all pods was never hit: only the competing processes were killed.
    let root = memory_directory(&scene.node, &kubepods);
    let hit = match scene.node.cgroups().version() {
        CgroupVersion::V1 => fs::read_to_string(root.join("memory.failcnt"))
            .unwrap()
            .trim()
            .to_owned(),
        CgroupVersion::V2 => {
            let events = fs::read_to_string(root.join("memory.events.local")).unwrap();
            events
                .lines()
                .find_map(|line| line.strip_prefix("max "))
                .unwrap()
                .to_owned()
        }
    };
    assert_eq!(hit, "0");
    let log = scene.agent.log();
    assert!(log.contains("the node can give"), "nobody was told why: {log}");
}

#[tokio::test]
async fn what_an_operator_has_set_is_not_grown() {
    let scene = Scene::guarded("4Gi").await;
    scene.agent.resize(scene.by_hand("160Mi")).await.unwrap();
    let end = scene.takes(100, 400).wait();
    assert!(matches!(end, End::Killed(_)), "{end:?}");
    assert_eq!(scene.limit(), 160);
    assert!(scene.by_the_guard().await.is_empty());
}
