//! Tenants' objects do not fill the agent's memory: thousands of them, and large ones, at once.

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

/// A VPA of another workload of which the agent keeps 8 KiB.
fn fat(number: usize) -> Value {
    let mut vpa = another(number, "");
    vpa["spec"]["resourcePolicy"] = json!({"containerPolicies": [{"containerName": "x".repeat(8000)}]});
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
async fn fat_vpas_take_little_memory() {
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
async fn fat_vpas_leave_honest_namespaces_undisturbed() {
    let scene = Scene::started().await;
    let before = peak_kib(&scene);
    for tenant in 0..64 {
        let namespace = json!(format!("tenant-{tenant}"));
        let mut pod = scene.api.get("pods", super::NAME).unwrap();
        pod["metadata"]["namespace"] = namespace.clone();
        pod["metadata"]["name"] = json!(format!("small-{tenant}"));
        pod["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-0000000000{tenant:02}"));
        let small = json!({"requests": {"cpu": "1m", "memory": "1Mi"}});
        pod["status"]["containerStatuses"][0]["allocatedResources"] = small["requests"].clone();
        pod["status"]["containerStatuses"][0]["resources"] = small.clone();
        pod["spec"]["containers"][0]["resources"] = small;
        scene.api.put("pods", pod);
        for number in 0..100 {
            let mut vpa = fat(number);
            vpa["metadata"]["namespace"] = namespace.clone();
            scene.api.put("verticalpodautoscalers", vpa);
        }
    }
    scene
        .agent
        .reports(&["tenant-9: verticalpodautoscalers", "more are left out"])
        .await;
    scene.recommend(&SMALLER);
    scene.settles(&SMALLER).await;
    let peak = peak_kib(&scene);
    // A debug build takes more at rest than a release.
    assert!(peak < before + 2 * SOME_KIB, "{before} KiB before, {peak} KiB now");
}

#[tokio::test]
async fn objects_beyond_their_share_are_named() {
    let mut scene = Scene::new().await;
    for number in 0..1500 {
        scene.api.put("verticalpodautoscalers", fat(number));
    }
    scene.api.change("pods", super::NAME, |pod| {
        pod["metadata"]["annotations"]["vscaled.io/ignore"] = json!("true".repeat(4000));
    });
    scene.agent.start().await;
    let problem = scene.agent.reports(&["more are left out"]).await;
    assert!(problem.starts_with("test: verticalpodautoscalers: other-"), "{problem}");
    let checks = scene.agent.client().await.doctor().await.unwrap().checks;
    assert!(
        checks.iter().any(|check| check.found.contains("are left out")),
        "{checks:#?}"
    );
    scene
        .agent
        .reports(&["metadata.annotations[vscaled.io/ignore]", "so it is ignored"])
        .await;
}
