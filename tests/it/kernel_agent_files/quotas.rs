//! The kubelet decides whether cpu quotas are enforced: the agent writes no quota where the kubelet has none, and
//! keeps the period.

use vscaled::model::{CgroupVersion, CpuMax, CpuQuota, MemoryLimit, Setting, Settings};

use super::{Amounts, SIDE, Scene};
use crate::support::amounts::vpa_manifest;

const TARGET: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

/// The files of a quota.
fn files(version: CgroupVersion, max: CpuMax) -> Settings {
    match version {
        CgroupVersion::V1 => Settings::from_iter([Setting::CfsQuota(max.quota), Setting::CfsPeriod(max.period_us)]),
        CgroupVersion::V2 => Settings::from_iter([Setting::CpuMax(max)]),
    }
}

const fn max(quota: CpuQuota) -> CpuMax {
    CpuMax {
        quota,
        period_us: 100_000,
    }
}

/// The quotas of the pod, `app` and `side`.
fn held(scene: &Scene) -> [CpuMax; 3] {
    let held = scene.node.held(&scene.pod);
    ["pod", "app", "side"].map(|name| held[name].cpu_max().unwrap())
}

/// Removes every quota, like a kubelet with `cpuCFSQuota: false`.
fn without_quotas(scene: &Scene) {
    let unbounded = files(scene.node.cgroups().version(), max(CpuQuota::Max));
    for container in scene.pod.containers.values() {
        scene.node.put(&container.cgroup, &unbounded);
    }
    scene.node.put(&scene.pod.cgroup, &unbounded);
}

async fn has_memory(scene: &Scene, mebibytes: u64) {
    let holds = || scene.node.held(&scene.pod)["app"].memory_limit() == Some(MemoryLimit::Bytes(mebibytes << 20));
    scene.agent.wait_for(&format!("{mebibytes} MiB"), holds).await;
    scene.agent.reaches("web", "InSync").await;
}

#[tokio::test]
async fn a_kubelet_without_quotas_gets_none() {
    let mut scene = Scene::new();
    without_quotas(&scene);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    scene.recommend(&TARGET);
    has_memory(&scene, 192).await;
    assert_eq!(held(&scene), [max(CpuQuota::Max); 3]);
    // The next agent knows that the kubelet enforces no quotas, and applies the recommended cpu weights.
    scene.agent.stop();
    scene.agent.start().await;
    scene.recommend(&[("app", Amounts::doubled(300, 128)), ("side", SIDE)]);
    has_memory(&scene, 256).await;
    assert_eq!(held(&scene), [max(CpuQuota::Max); 3]);
    let steps = scene.agent.history().await.into_iter().flat_map(|change| change.steps);
    let of_shares = steps.filter(|step| step.file.contains("shares") || step.file.contains("weight"));
    assert!(of_shares.count() > 0);
}

/// A container with exclusive processors has no quota, and its pod has none either; other containers of the pod have
/// one.
#[tokio::test]
async fn a_bounded_container_is_resized_beside_others() {
    let mut scene = Scene::new();
    let unbounded = files(scene.node.cgroups().version(), max(CpuQuota::Max));
    scene.node.put(&scene.pod.containers["side"].cgroup, &unbounded);
    scene.node.put(&scene.pod.cgroup, &unbounded);
    scene.agent.start().await;
    scene.recommend(&TARGET);
    has_memory(&scene, 192).await;
    let quotas = held(&scene).map(|max| max.quota);
    assert_eq!(quotas, [CpuQuota::Max, CpuQuota::Micros(40_000), CpuQuota::Max]);
}

#[tokio::test]
async fn the_next_agent_puts_a_removed_quota_back() {
    let mut scene = Scene::managed(&TARGET).await;
    without_quotas(&scene);
    scene.settles(&TARGET).await;
    scene.agent.stop();
    without_quotas(&scene);
    scene.agent.start().await;
    scene.settles(&TARGET).await;
}

#[tokio::test]
async fn another_period_is_kept() {
    let mut scene = Scene::new();
    let version = scene.node.cgroups().version();
    let halved = |quota| CpuMax {
        quota,
        period_us: 50_000,
    };
    let half = |micros| halved(CpuQuota::Micros(micros));
    let cgroups = || {
        let containers = ["app", "side"].map(|name| scene.pod.containers[name].cgroup.clone());
        containers.into_iter().chain([scene.pod.cgroup.clone()])
    };
    // Removes all quotas first, so that none is above its pod's in between.
    for cgroup in cgroups() {
        scene.node.put(&cgroup, &files(version, halved(CpuQuota::Max)));
    }
    let quotas: Vec<_> = cgroups().zip([10_000, 5_000, 15_000]).collect();
    for (cgroup, micros) in quotas.iter().rev() {
        scene.node.put(cgroup, &files(version, half(*micros)));
    }
    scene.agent.start().await;
    scene.recommend(&TARGET);
    has_memory(&scene, 192).await;
    // 400m and 100m.
    assert_eq!(held(&scene), [25_000, 20_000, 5_000].map(half));
    // A foreign writer changes a quota and leaves the period.
    scene
        .node
        .put(&scene.pod.containers["app"].cgroup, &files(version, half(15_000)));
    let repaired = || held(&scene)[1] == half(20_000);
    scene.agent.wait_for("the quota to be repaired", repaired).await;
}

#[tokio::test]
async fn a_vpa_of_memory_changes_no_cpu_file() {
    let mut scene = Scene::new();
    // Another agent has given the container more than its spec has.
    let foreign = Amounts::doubled(90, 64).settings(scene.node.cgroups().version());
    scene.node.put(&scene.pod.containers["app"].cgroup, &foreign);
    let cpu = |scene: &Scene| {
        let held = scene.node.held(&scene.pod);
        ["pod", "app", "side"].map(|name| {
            let settings = held[name].iter().filter(|setting| setting.memory().is_none());
            settings.collect::<Settings>()
        })
    };
    let before = cpu(&scene);
    scene.agent.start().await;
    let vpa = vpa_manifest("web", "web", &TARGET);
    let vpa = vpa.replace(
        "spec:\n",
        "spec:\n  resourcePolicy: {containerPolicies: [{containerName: '*', controlledResources: [memory]}]}\n",
    );
    scene.agent.write("vpa.yaml", &vpa);
    has_memory(&scene, 192).await;
    assert_eq!(cpu(&scene), before);
    assert!(scene.node.all_run(&scene.pod));
}
