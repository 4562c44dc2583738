//! A burst of cpu beside a kubelet that resizes: lower quotas of the agent and of other clients get through.

use serde_json::json;
use vscaled::model::{CpuQuota, Setting};

use super::{APP, LARGER, Levels, Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;
use crate::support::skipped;

const SMALLER: Amounts = Amounts::doubled(40, 64);

/// The burst and the quota of the pod and of its containers, in microseconds.
fn bursts(levels: &Levels) -> Vec<Option<(u64, u64)>> {
    let of = levels.values().map(|held| {
        let burst = held.burst().and_then(Setting::burst_us)?;
        match held.cpu_max()?.quota {
            CpuQuota::Micros(quota) => Some((burst, quota)),
            CpuQuota::Max => None,
        }
    });
    of.collect()
}

#[tokio::test]
async fn a_burst_lets_every_lower_quota_through() {
    const NAME: &str = "cluster_today::bursts::a_burst";
    let Some(mut scene) = Scene::new(NAME).await else {
        return;
    };
    let before = scene.follows_app().await;
    if bursts(&scene.levels(&before)).contains(&None) {
        return skipped(NAME, "this kernel has no bursts (Linux 5.14 and later)");
    }
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let annotations = json!({"annotations": {"vscaled.io/cpu-burst": "100%"}});
    let spec = json!({"spec": {"targetRef": target, "updatePolicy": {"updateMode": "InPlaceOrRecreate"}}});
    scene.apply(
        "autoscaling.k8s.io/v1",
        "VerticalPodAutoscaler",
        "web",
        annotations,
        &spec,
    );
    let has_burst = |amounts: Amounts| {
        let quota = amounts.cpu_limit.unwrap() * 100;
        let held = bursts(&scene.levels(&before));
        held.iter().all(|burst| *burst == Some((quota, quota)))
    };
    scene.agent.wait_for("the burst", || has_burst(APP)).await;

    // Another client requests a quota below the burst, which the kernel refuses as long as the burst stays.
    let wanted = objects::resources(SMALLER);
    scene.resize(WEB, &json!({"containers": [{"name": "app", "resources": wanted}]}));
    scene.is_resized(WEB, "app", &wanted).await;
    scene.agent.wait_for("the lower burst", || has_burst(SMALLER)).await;

    for amounts in [LARGER, APP] {
        scene.recommend(&[("app", amounts)]);
        scene.app_reaches(amounts).await;
        scene.agent.wait_for("the burst to follow", || has_burst(amounts)).await;
    }
    nothing_restarted(&before, &scene.object(WEB));
    // The kubelet's first attempt at the other client's quota may come before the lower burst, and a kubelet that resizes memory
    // writes the earlier quota again with it, so that the kernel refuses a higher burst once.
    let ends_well = |outcome: &str| ["Applied", "ResizeError", "RolledBack"].contains(&outcome);
    let is_over = async || {
        let history = scene.agent.history().await;
        history.iter().all(|change| ends_well(&change.outcome)).then_some(())
    };
    scene.agent.until("every change to end well", is_over).await;
}
