//! The agent names every error in manifests, and the last valid manifest stays in force.

use super::{AT_FIRST, Amounts, SIDE, Scene, UID, cpu, vpa_manifest};

const TARGET: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];
const NEXT: [(&str, Amounts); 2] = [("app", Amounts::doubled(250, 120)), ("side", SIDE)];

#[tokio::test]
async fn a_broken_manifest_changes_nothing() {
    let scene = Scene::managed(&TARGET).await;
    let broken = vpa_manifest("web", "web", &NEXT);
    for (from, to, words) in [
        ("target: {cpu: 250m", "target: {cpu: 12Qx", ["vpa.yaml", "target.cpu"]),
        ("target: {cpu: 250m", "target: {cpu: -1", ["vpa.yaml", "negative"]),
        ("spec:", "spec: [", ["vpa.yaml", "not readable as YAML"]),
        ("name: web, namespace", "namespace", ["vpa.yaml", "metadata.name"]),
    ] {
        assert!(broken.contains(from));
        scene.agent.write("vpa.yaml", &broken.replacen(from, to, 1));
        scene.agent.reports(&words).await;
        assert!(scene.holds(&TARGET), "{to}");
    }
    scene.recommend(&NEXT);
    scene.settles(&NEXT).await;
    scene
        .agent
        .until("no problem to be left", async || {
            scene.agent.get().await.agent?.problems.is_empty().then_some(())
        })
        .await;
}

#[tokio::test]
async fn an_impossible_pod_is_named_and_unchanged() {
    let scene = Scene::managed(&TARGET).await;
    let good = scene.pod.manifest();
    for (from, to, words) in [
        ("name: side", "name: app", ["pod.yaml", "\"app\" is taken"]),
        ("cpu: 100m", "cpu: 300m", ["pod.yaml", "is above the limit"]),
        ("memory: 64Mi", "memory: -64Mi", ["pod.yaml", "negative"]),
        ("kind: Pod", "type: Pod", ["pod.yaml", "kind"]),
    ] {
        assert!(good.contains(from));
        scene.agent.write("pod.yaml", &good.replacen(from, to, 1));
        scene.agent.reports(&words).await;
        assert!(scene.holds(&TARGET), "{to}");
    }
    // The last valid recommendation stays in force.
    scene.recommend(&NEXT);
    scene.agent.wait_for("the values", || scene.holds(&NEXT)).await;
    scene.agent.write("pod.yaml", &good);
    scene.settles(&NEXT).await;
}

#[tokio::test]
async fn an_earlier_manifest_takes_nothing_from_a_pod() {
    let mut scene = Scene::managed(&TARGET).await;
    scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    let earlier = scene.pod.manifest().replace(UID, &UID.replace("0a1b", "0a1c"));
    let app = |target: Amounts| Amounts {
        cpu_limit: Some(1000),
        ..target
    };
    for (file, target) in [("a.yaml", NEXT), ("z.yaml", TARGET)] {
        scene.agent.write(file, &earlier);
        scene.recommend(&target);
        scene.settles(&[("app", app(target[0].1)), target[1]]).await;
    }
    // The same where both are known before the first discovery.
    scene.agent.stop();
    scene.agent.start().await;
    scene.settles(&[("app", app(TARGET[0].1)), TARGET[1]]).await;
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_some());
}

#[tokio::test]
async fn a_missing_container_does_not_hold_up_others() {
    let scene = Scene::started().await;
    let named = [TARGET[0], TARGET[1], ("nginx", Amounts::doubled(900, 900))];
    scene.recommend(&named);
    scene.settles(&TARGET).await;
    let explained = scene.agent.client().await.explain("test/web".to_owned()).await.unwrap();
    assert!(
        explained.notes.iter().any(|note| note.contains("nginx")),
        "{:?}",
        explained.notes
    );
}

#[tokio::test]
async fn one_of_two_vpas_is_followed() {
    let scene = Scene::started().await;
    scene.agent.write(
        "vpas.yaml",
        &format!(
            "{}---\n{}",
            vpa_manifest("b-second", "web", &NEXT),
            vpa_manifest("a-first", "web", &TARGET)
        ),
    );
    scene.settles(&TARGET).await;
    let explained = scene.agent.client().await.explain("test/web".to_owned()).await.unwrap();
    assert_eq!(explained.pod.unwrap().vpa.as_deref(), Some("a-first"));
    assert!(
        explained.notes.iter().any(|note| note.contains("b-second")),
        "{:?}",
        explained.notes
    );
    assert_eq!(scene.agent.history().await.len(), 1);
}

#[tokio::test]
async fn a_vpa_of_no_workload_changes_nothing() {
    let scene = Scene::started().await;
    scene.agent.write("vpa.yaml", &vpa_manifest("web", "nobody", &TARGET));
    scene.agent.write("later.yaml", &vpa_manifest("later", "web", &NEXT));
    scene.settles(&NEXT).await;
    assert_eq!(scene.agent.history().await.len(), 1);
}

#[tokio::test]
async fn a_lost_recommendation_leaves_the_values() {
    let scene = Scene::managed(&TARGET).await;
    scene.agent.remove("vpa.yaml");
    scene.agent.reaches("web", "NotManaged").await;
    assert!(scene.holds(&TARGET));
    scene.recommend(&NEXT);
    scene.settles(&NEXT).await;
}

#[tokio::test]
async fn a_pod_that_asks_to_be_ignored_is() {
    let scene = Scene::started().await;
    let ignored = scene.pod.manifest().replacen(
        "  labels:",
        "  annotations: {vscaled.io/ignore: \"true\"}\n  labels:",
        1,
    );
    scene.agent.write("pod.yaml", &ignored);
    scene.recommend(&TARGET);
    let decided = async || scene.agent.pod("web").await.filter(|pod| pod.reason == "Ignored");
    scene.agent.until("the annotation to be read", decided).await;
    assert!(scene.holds(&AT_FIRST));
    assert!(scene.agent.history().await.is_empty());
}
