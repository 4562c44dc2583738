//! A container that is throttled for long enough gets a temporary cpu limit, and loses it again. A burst goes with the limit.

use vscaled::control::proto;
use vscaled::model::{CpuQuota, Setting};

use super::{Scene, vpa};
use crate::support::amounts::Amounts;
use crate::support::skipped;

/// A limit of 100m, which the VPA lets grow to 180m.
fn scene(annotations: &str) -> Scene {
    let scene = Scene::of(Amounts::doubled(50, 64));
    // The recommendation equals the current values, so no resize is due.
    let recommended = vpa("web", "4Gi", 64).replace("cpu: 1000m", "cpu: 50m");
    let allowed = recommended.replace("maxAllowed: {memory: 4Gi}", "maxAllowed: {memory: 4Gi, cpu: 180m}");
    let annotated = allowed.replace(
        "namespace: test}",
        &format!("namespace: test, annotations: {{{annotations}}}}}"),
    );
    scene.agent.write("vpa.yaml", &annotated);
    scene
}

/// A scene with a burst of the whole quota; None if the kernel has none.
fn with_a_burst() -> Option<Scene> {
    let scene = scene("vscaled.io/cpu-burst: 100%");
    if bursts(&scene) == [None; 2] {
        skipped("guard_bursts", "this kernel has none (Linux 5.14 and later)");
        return None;
    }
    Some(scene)
}

/// The container's quota in millicores.
fn quota(scene: &Scene) -> u64 {
    let max = scene.node.held(&scene.pod)["app"].cpu_max().expect("a quota is there");
    match max.quota {
        CpuQuota::Micros(micros) => micros * 1000 / max.period_us,
        CpuQuota::Max => u64::MAX,
    }
}

/// The bursts and the quotas of the pod and of its container, in microseconds.
fn bursts(scene: &Scene) -> [Option<(u64, u64)>; 2] {
    let held = scene.node.held(&scene.pod);
    ["pod", "app"].map(|level| match held[level].cpu_max()?.quota {
        CpuQuota::Micros(quota) => Some((held[level].burst().and_then(Setting::burst_us)?, quota)),
        CpuQuota::Max => None,
    })
}

/// Waits until the pod and its container have this quota, and a burst of as much.
async fn burst_by_all_of(scene: &Scene, quota_us: u64) {
    let all = || bursts(scene) == [Some((quota_us, quota_us)); 2];
    scene.agent.wait_for(&format!("bursts of {quota_us}"), all).await;
    scene.agent.reaches("web", "InSync").await;
}

fn on_cpu(pod: proto::Pod) -> Option<proto::Lease> {
    pod.leases.into_iter().find(|lease| lease.resource == "cpu")
}

#[tokio::test]
async fn a_throttled_container_gets_cpu_for_a_while() {
    let mut scene = scene("");
    scene.agent.set("--guard-quiet-period", "4s");
    scene.agent.start().await;
    scene.guards("web").await;
    assert_eq!(quota(&scene), 100);
    let cgroup = scene.pod.containers["app"].cgroup.clone();
    let began = std::time::Instant::now();
    scene.node.spawn(&cgroup, "while :; do :; done");

    let lent = async || on_cpu(scene.agent.pod("web").await?);
    let lease = scene.agent.until("cpu to be lent", lent).await;
    assert_eq!(
        (lease.from.as_str(), lease.to.as_str()),
        ("100m", "180m"),
        "no further than maxAllowed"
    );
    assert!(lease.reason.contains("throttled"), "{}", lease.reason);
    scene.agent.wait_for("the quota", || quota(&scene) == 180).await;
    scene.agent.reaches("web", "InSync").await;

    scene.node.end_last_process();
    scene
        .agent
        .wait_for("the quota to go back", || quota(&scene) == 100)
        .await;
    let ended = async || scene.agent.pod("web").await.filter(|pod| pod.leases.is_empty());
    scene.agent.until("the loan to end", ended).await;
    let report = scene.agent.client().await.report(None).await.unwrap();
    let avoided = report.total.unwrap().avoided_throttled_seconds;
    assert!(
        (2.0..began.elapsed().as_secs_f64() / 2.0).contains(&avoided),
        "{avoided}"
    );
}

#[tokio::test]
async fn a_burst_grows_with_its_limit_and_goes_back() {
    let Some(mut scene) = with_a_burst() else { return };
    scene.agent.set("--guard-quiet-period", "4s");
    let mut scene = scene.started().await;
    burst_by_all_of(&scene, 10_000).await;
    let cgroup = scene.pod.containers["app"].cgroup.clone();
    scene.node.spawn(&cgroup, "while :; do :; done");
    let lent = async || on_cpu(scene.agent.pod("web").await?);
    scene.agent.until("cpu to be lent", lent).await;
    burst_by_all_of(&scene, 18_000).await;
    scene.node.end_last_process();
    burst_by_all_of(&scene, 10_000).await;

    // The container's burst is never above the pod's quota: the quota rises before it, and comes down after it.
    let changes = scene.agent.history().await;
    assert!(changes.iter().all(|change| change.outcome == "Applied"), "{changes:#?}");
    let (mut pods_quota, mut burst) = (10_000, 0);
    for step in changes.iter().flat_map(|change| &change.steps) {
        let to = || step.to.split(' ').next().unwrap().parse::<u64>().unwrap();
        match (step.level.as_str(), step.file.as_str()) {
            ("pod", "cpu.max" | "cpu.cfs_quota_us") => pods_quota = to(),
            ("container", "cpu.max.burst" | "cpu.cfs_burst_us") => burst = to(),
            _ => continue,
        }
        assert!(burst <= pods_quota, "{step:#?}\n{changes:#?}");
    }
    assert_eq!((pods_quota, burst), (10_000, 10_000));
}

#[tokio::test]
async fn a_failed_growth_leaves_quotas_and_bursts() {
    let Some(mut scene) = with_a_burst() else { return };
    let cgroup = scene.pod.containers["app"].cgroup.clone();
    let directories = scene.node.cgroups().directories(&cgroup).into_iter();
    let mut files = directories.flat_map(|directory| ["cpu.cfs_quota_us", "cpu.max"].map(|name| directory.join(name)));
    let file = files.find(|file| file.exists()).unwrap();
    let file = file.display();
    // The agent may write every file but the container's quota.
    let script = format!("mount --bind {file} {file} && mount -o remount,bind,ro {file} && exec \"$@\"");
    scene.agent = scene.agent.wrapped(&["unshare", "--mount"], &script);
    let mut scene = scene.started().await;
    burst_by_all_of(&scene, 10_000).await;
    scene.node.spawn(&cgroup, "while :; do :; done");
    let failed = async || {
        let changes = scene.by_the_guard().await;
        changes.into_iter().find(|change| change.reason.contains("EROFS"))
    };
    let failed = scene.agent.until("the growth to fail", failed).await;
    assert!(failed.steps.iter().any(|step| step.rollback), "{failed:#?}");
    assert_eq!(bursts(&scene), [Some((10_000, 10_000)); 2], "{failed:#?}");
}
