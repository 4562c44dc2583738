//! Tenants' objects do not fill the agent's memory.

use procfs::process::Process;
use serde_json::{Value, json};

use super::{AT_FIRST, SMALLER, Scene, vpa};

/// More than 300 small VPAs take, and less than a tenth of what large ones would take.
const SOME_KIB: u64 = 24 << 10;

/// A VPA of another workload.
fn another(number: usize, notes: &str) -> Value {
    let mut vpa = vpa(&AT_FIRST);
    vpa["metadata"]["name"] = json!(format!("other-{number}"));
    vpa["metadata"]["annotations"] = json!({"example.com/notes": notes});
    vpa["spec"]["targetRef"]["name"] = json!(format!("other-{number}"));
    vpa
}

/// The highest resident memory of the agent.
fn peak_kib(scene: &Scene) -> u64 {
    Process::new(scene.agent.pid())
        .unwrap()
        .status()
        .unwrap()
        .vmhwm
        .unwrap()
}

#[tokio::test]
async fn three_hundred_fat_vpas_are_listed_and_watched_in_little_memory() {
    let mut scene = Scene::started().await;
    let before = peak_kib(&scene);
    let fat = "x\\\" ".repeat(50_000);
    for number in 0..300 {
        scene.api.put("verticalpodautoscalers", another(number, &fat));
    }
    scene.recommend(&SMALLER);
    scene.settles(&SMALLER).await;
    let watching = peak_kib(&scene);
    assert!(
        watching < before + SOME_KIB,
        "{before} KiB before, {watching} KiB watching"
    );

    scene.agent.kill();
    scene.agent.start().await;
    scene.settles(&SMALLER).await;
    let listing = peak_kib(&scene);
    assert!(
        listing < before + SOME_KIB,
        "{before} KiB before, {listing} KiB listing"
    );
}

#[tokio::test]
async fn vpas_beyond_a_namespaces_share_and_values_beyond_their_length_are_left_out_and_named() {
    let mut scene = Scene::new().await;
    for number in 0..3000 {
        scene.api.put("verticalpodautoscalers", another(number, ""));
    }
    for number in 3000..3100 {
        let mut vpa = another(number, "");
        vpa["metadata"]["namespace"] = json!("elsewhere");
        scene.api.put("verticalpodautoscalers", vpa);
    }
    scene.api.change("pods", super::NAME, |pod| {
        pod["metadata"]["annotations"]["vscaled.io/ignore"] = json!("true".repeat(4000));
    });
    scene.agent.start().await;
    let problem = scene.agent.reports(&["verticalpodautoscalers are left out"]).await;
    assert!(problem.starts_with("test: 20"), "{problem}");
    let checks = scene.agent.client().await.doctor().await.unwrap().checks;
    assert!(
        checks.iter().any(|check| check.found.contains("are left out")),
        "{checks:#?}"
    );
    scene
        .agent
        .reports(&["metadata.annotations[vscaled.io/ignore]", "counts as absent"])
        .await;
}
