//! Freezers of other programs.

use std::fs;
use std::path::PathBuf;

use vscaled::model::CgroupVersion;

use super::{ROOMY, Scene};
use crate::support::skipped;

/// The freezer of a container; prints the reason and returns `None` where the agent cannot share one.
fn freezer(scene: &Scene, name: &str) -> Option<PathBuf> {
    if scene.node.cgroups().version() == CgroupVersion::V1 {
        skipped(name, "on cgroup v1 nothing is frozen for a shrink");
        return None;
    }
    Some(scene.node.cgroups().directories(&scene.app())[0].join("cgroup.freeze"))
}

#[tokio::test]
async fn a_foreign_freeze_is_left_alone() {
    let scene = Scene::started().await;
    let Some(freezer) = freezer(&scene, "a_foreign_freeze_is_left_alone") else {
        return;
    };
    fs::write(&freezer, "1").unwrap();
    scene
        .agent
        .wait_for("the container to stand still", || scene.is_frozen())
        .await;
    let change = scene.resize(100).await;
    assert_eq!(change.outcome, "RolledBack", "{change:#?}");
    assert!(
        change.reason.contains("another process has frozen the cgroup"),
        "{change:#?}"
    );
    assert_eq!(scene.limits(), [ROOMY, ROOMY]);
    assert_eq!(fs::read_to_string(&freezer).unwrap().trim(), "1", "still theirs");
    fs::write(&freezer, "0").unwrap();
    scene
        .agent
        .wait_for("the container to go on", || !scene.is_frozen())
        .await;
    assert_eq!(scene.resize(100).await.outcome, "Applied");
    assert_eq!(scene.limits(), [100, 100]);
}

#[tokio::test]
async fn the_agent_never_freezes_itself() {
    let mut scene = Scene::started().await;
    if freezer(&scene, "the_agent_never_freezes_itself").is_none() {
        return;
    }
    let enter = scene.node.cgroups().directories(&scene.app())[0].join("cgroup.procs");
    scene.agent.stop();
    let script = format!("echo $$ >{} && exec \"$@\"", enter.display());
    scene.agent = scene.agent.wrapped(&["env"], &script);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    let change = scene.resize(100).await;
    assert_eq!(change.outcome, "RolledBack", "{change:#?}");
    assert!(
        change.reason.contains("the agent itself runs in the cgroup"),
        "{change:#?}"
    );
    assert_eq!(scene.limits(), [ROOMY, ROOMY]);
    scene.agent.stop();
}
