//! The agent corrects changes of foreign writers, and gives up on a repeated one.

use vscaled::control::proto::Change;
use vscaled::model::{ControlFile, CpuShares, CpuWeight, Setting};

use super::{Amounts, SIDE, Scene};

const TARGET: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

/// The cpu weight file of the container `app`, which accepts any value at any time.
fn weight(scene: &Scene, foreign: u64) -> Setting {
    let file = Amounts::doubled(200, 96)
        .settings(scene.node.cgroups().version())
        .iter()
        .map(|setting| setting.file())
        .find(|file| matches!(file, ControlFile::CpuShares | ControlFile::CpuWeight));
    match file {
        Some(ControlFile::CpuShares) => Setting::CpuShares(CpuShares::new(foreign)),
        _ => Setting::CpuWeight(CpuWeight::new(foreign)),
    }
}

#[tokio::test]
async fn a_value_that_somebody_changed_is_repaired() {
    let scene = Scene::managed(&TARGET).await;
    let app = &scene.pod.containers["app"].cgroup;
    for (cgroup, foreign) in [
        (&scene.pod.cgroup, Amounts::doubled(900, 512)),
        (app, Amounts::doubled(70, 40)),
    ] {
        scene
            .node
            .put(cgroup, &foreign.settings(scene.node.cgroups().version()));
        let repaired = async || {
            let history = scene.agent.history().await;
            let level = if *cgroup == scene.pod.cgroup {
                "pod"
            } else {
                "container"
            };
            let repairs = |change: &Change| {
                change.cause.starts_with("drift") && change.steps.iter().any(|step| step.level == level)
            };
            history.iter().any(repairs).then_some(())
        };
        scene.agent.until("a repair", repaired).await;
        scene.settles(&TARGET).await;
    }
}

#[tokio::test]
async fn a_stubborn_writer_is_left_alone() {
    let scene = Scene::managed(&TARGET).await;
    let cgroup = &scene.pod.containers["app"].cgroup;
    let foreign = weight(&scene, 77);
    for _ in 0..2 {
        scene.node.cgroups().put(cgroup, foreign);
        scene.settles(&TARGET).await;
    }
    scene.node.cgroups().put(cgroup, foreign);
    let pod = scene.agent.reaches("web", "Foreign").await;
    let file = foreign.file().name();
    assert!(
        pod.detail.contains(file) && pod.detail.contains("container app"),
        "{}",
        pod.detail
    );

    // After many more writes, the agent neither corrects nor reports again.
    for value in 2..40 {
        scene.node.cgroups().put(cgroup, weight(&scene, value));
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let left = scene.node.cgroups().settings(cgroup).get(file_of(foreign));
    assert_eq!(left, Some(weight(&scene, 39)));
    scene.agent.reaches("web", "Foreign").await;
    assert_eq!(
        scene.agent.log().matches("keeps changing").count(),
        1,
        "said again and again"
    );

    // The agent still manages all other values, and the foreign value stays.
    let larger = Amounts::doubled(900, 512).settings(scene.node.cgroups().version());
    scene.node.put(&scene.pod.cgroup, &larger);
    let pod_amounts = Amounts::sum(TARGET.map(|(_, amounts)| amounts));
    scene
        .agent
        .wait_for("the pod's own values to be repaired", || {
            scene.node.cgroup_holds(&scene.pod.cgroup, pod_amounts)
        })
        .await;
    let left = scene.node.cgroups().settings(cgroup).get(file_of(foreign));
    assert_eq!(left, Some(weight(&scene, 39)));
}

fn file_of(setting: Setting) -> ControlFile {
    setting.file()
}

#[tokio::test]
async fn a_new_recommendation_ends_the_truce() {
    let scene = Scene::managed(&TARGET).await;
    let cgroup = &scene.pod.containers["app"].cgroup;
    for _ in 0..2 {
        scene.node.cgroups().put(cgroup, weight(&scene, 77));
        scene.settles(&TARGET).await;
    }
    scene.node.cgroups().put(cgroup, weight(&scene, 77));
    scene.agent.reaches("web", "Foreign").await;
    let next = [("app", Amounts::doubled(250, 100)), ("side", SIDE)];
    scene.recommend(&next);
    scene.settles(&next).await;
}

#[tokio::test]
async fn the_sweep_finds_silent_changes() {
    let mut scene = Scene::new();
    scene.agent.set("--sweep-interval", "1s");
    scene.agent.start().await;
    scene.recommend(&TARGET);
    scene.settles(&TARGET).await;
    // A container without an announcement: its cgroup appears after its name.
    let id = format!("{:064x}", 77);
    let node = &mut scene.node;
    let manifest = scene.pod.manifest();
    scene
        .agent
        .write("pod.yaml", &manifest.replace(&scene.pod.containers["app"].id, &id));
    node.run_container_as(&mut scene.pod, "app", &id, super::APP);
    scene.settles(&TARGET).await;
}

#[tokio::test]
async fn an_unmanaged_pods_values_are_left_alone() {
    let mut scene = Scene::started().await;
    let larger = Amounts::doubled(900, 512).settings(scene.node.cgroups().version());
    scene.node.put(&scene.pod.cgroup, &larger);
    let before = scene.node.held(&scene.pod);
    // A change with a later notification proves that the agent has handled this one.
    let uid = "0a1b2c3d-0000-4000-8000-000000000012";
    let later = scene.node.run("later", uid, &super::AT_FIRST);
    scene.agent.write("later.yaml", &later.manifest());
    scene
        .agent
        .write("vpa.yaml", &super::vpa_manifest("later", "later", &TARGET));
    scene.agent.reaches("later", "InSync").await;
    scene.agent.reaches("web", "NotManaged").await;
    assert_eq!(scene.node.held(&scene.pod), before);
    assert!(scene.agent.history().await.iter().all(|change| change.name == "later"));
}
