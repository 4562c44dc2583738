//! A container that is throttled for long enough gets a temporary cpu limit, and loses it again.

use vscaled::control::proto;
use vscaled::model::CpuQuota;

use super::{Scene, vpa};

/// The container's quota in millicores.
fn quota(scene: &Scene) -> u64 {
    let max = scene.node.held(&scene.pod)["app"].cpu_max().expect("a quota is there");
    match max.quota {
        CpuQuota::Micros(micros) => micros * 1000 / max.period_us,
        CpuQuota::Max => u64::MAX,
    }
}

fn on_cpu(pod: proto::Pod) -> Option<proto::Lease> {
    pod.leases.into_iter().find(|lease| lease.resource == "cpu")
}

#[tokio::test]
async fn a_throttled_container_gets_cpu_for_a_while() {
    let mut scene = Scene::of(crate::support::amounts::Amounts::doubled(50, 64));
    // The recommendation equals the current values, so no resize is due.
    let recommended = vpa("web", "4Gi", 64).replace("cpu: 1000m", "cpu: 50m");
    let allowed = recommended.replace("maxAllowed: {memory: 4Gi}", "maxAllowed: {memory: 4Gi, cpu: 180m}");
    scene.agent.write("vpa.yaml", &allowed);
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
