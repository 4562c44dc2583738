//! A native sidecar is resized like a regular container, also one that restarts during the resize.

use std::time::Duration;

use super::{AT_FIRST, Amounts, SIDE, Scene};
use crate::support::amounts::pod_manifest;
use crate::support::bare::BarePod;

const TARGET: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", Amounts::doubled(80, 64))];

/// The manifest of a pod whose `side` is an init container with restartPolicy Always.
fn manifest(pod: &BarePod) -> String {
    let [app, side] = ["app", "side"].map(|name| &pod.containers[name]);
    let regular = pod_manifest(pod.name, pod.uid, &[("app", app.amounts, Some(&app.id))]);
    let sidecar = format!(
        "  initContainers: [{{name: side, restartPolicy: Always, resources: {}}}]
status:
  initContainerStatuses: [{{name: side, containerID: \"containerd://{}\"}}]
",
        side.amounts.yaml(),
        side.id
    );
    regular.replacen("status:\n", &sidecar, 1)
}

/// The scene of the other tests, with `side` as a sidecar.
async fn started() -> Scene {
    let mut scene = Scene::new();
    scene.agent.write("pod.yaml", &manifest(&scene.pod));
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    scene
}

#[tokio::test]
async fn a_sidecar_gets_what_is_recommended_for_it() {
    let scene = started().await;
    for targets in [&TARGET, &AT_FIRST, &TARGET] {
        scene.recommend(targets);
        scene.settles(targets).await;
    }
    let pod = scene.agent.pod("web").await.unwrap();
    let names: Vec<_> = pod.containers.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["app", "side"]);
    assert!(scene.node.all_run(&scene.pod));
}

#[tokio::test]
async fn a_restarted_sidecar_gets_its_recommendation() {
    let mut scene = started().await;
    for round in 0..5 {
        // The restart happens before, during or after the pass.
        let targets = [
            ("app", Amounts::doubled(200 + round, 96)),
            ("side", Amounts::doubled(80 + round, 64)),
        ];
        scene.recommend(&targets);
        tokio::time::sleep(Duration::from_millis(round * 8)).await;
        let old = scene.pod.containers["side"].cgroup.clone();
        scene.node.cgroups().remove(&old);
        scene.node.run_container(&mut scene.pod, "side", SIDE);
        scene.agent.write("pod.yaml", &manifest(&scene.pod));
        scene.settles(&targets).await;
    }
    let log = scene.agent.log();
    assert!(
        !log.contains("another program"),
        "a new container's values are nobody's drift: {log}"
    );
}
