//! A cpu burst that a foreign writer sets keeps its proportion to the quota.

use vscaled::model::{CgroupVersion, CpuQuota, Setting};

use super::{AT_FIRST, Amounts, Scene, cpu};
use crate::support::skipped;

const SMALLER: [(&str, Amounts); 2] = [("app", Amounts::doubled(40, 64)), ("side", Amounts::doubled(20, 32))];
const LARGER: [(&str, Amounts); 2] = [("app", Amounts::doubled(400, 64)), ("side", Amounts::doubled(200, 32))];

/// Sets bursts of the pod, of `app` and of `side`, in microseconds. Returns whether the kernel supports bursts.
pub(super) fn give(scene: &Scene, bursts: [u64; 3]) -> bool {
    if held(scene).is_none() {
        skipped("bursts", "this kernel has none (Linux 5.14 and later)");
        return false;
    }
    let setting = match scene.node.cgroups().version() {
        CgroupVersion::V1 => Setting::CfsBurst,
        CgroupVersion::V2 => Setting::CpuMaxBurst,
    };
    let containers = &scene.pod.containers;
    let cgroups = [&scene.pod.cgroup, &containers["app"].cgroup, &containers["side"].cgroup];
    for (cgroup, burst) in cgroups.into_iter().zip(bursts) {
        scene.node.cgroups().put(cgroup, setting(burst));
    }
    true
}

/// The bursts of the pod, of `app` and of `side`, if the kernel supports them.
pub(super) fn held(scene: &Scene) -> Option<[u64; 3]> {
    let held = scene.node.held(&scene.pod);
    let burst = |name| held[name].burst()?.burst_us();
    Some([burst("pod")?, burst("app")?, burst("side")?])
}

/// The quotas of the pod, of `app` and of `side`, in microseconds.
pub(super) fn quotas(scene: &Scene) -> [u64; 3] {
    let held = scene.node.held(&scene.pod);
    ["pod", "app", "side"].map(|name| match held[name].cpu_max().unwrap().quota {
        CpuQuota::Micros(quota) => quota,
        CpuQuota::Max => panic!("every quota is bounded"),
    })
}

/// Bursts of half of the pod's quota, all of the app's and none of the side's, at these amounts.
fn in_proportion(scene: &Scene) -> [u64; 3] {
    let [pod, app, _] = quotas(scene);
    [pod / 2, app, 0]
}

#[tokio::test]
async fn a_burst_follows_its_quota_at_both_levels() {
    let scene = Scene::started().await;
    if !give(&scene, [15_000, 20_000, 0]) {
        return;
    }
    assert_eq!(held(&scene), Some(in_proportion(&scene)));
    // The target quota is below the current burst, which the kernel refuses.
    for targets in [&SMALLER, &LARGER, &AT_FIRST] {
        scene.recommend(targets);
        scene.settles(targets).await;
        assert_eq!(held(&scene), Some(in_proportion(&scene)), "{targets:?}");
    }
    let history = scene.agent.history().await;
    assert!(history.iter().all(|change| change.outcome == "Applied"), "{history:#?}");
}

#[tokio::test]
async fn no_burst_is_given_where_there_is_none() {
    let scene = Scene::started().await;
    if !give(&scene, [0, 0, 0]) {
        return;
    }
    for targets in [&SMALLER, &LARGER] {
        scene.recommend(targets);
        scene.settles(targets).await;
        assert_eq!(held(&scene), Some([0, 0, 0]));
    }
    let history = scene.agent.history().await;
    let mut steps = history.iter().flat_map(|change| &change.steps);
    assert!(steps.all(|step| !step.file.contains("burst")), "{history:#?}");
}

#[tokio::test]
async fn an_override_moves_the_burst_and_back() {
    let scene = Scene::started().await;
    if !give(&scene, [15_000, 20_000, 0]) {
        return;
    }
    let change = scene.agent.resize(scene.by_hand(cpu("100m"))).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert_eq!(held(&scene), Some([10_000, 10_000, 0]));
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    scene
        .agent
        .wait_for("the spec's limits", || scene.holds(&AT_FIRST))
        .await;
    assert_eq!(held(&scene), Some([15_000, 20_000, 0]));
}
