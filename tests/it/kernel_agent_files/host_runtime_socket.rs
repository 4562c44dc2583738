//! No usable runtime is at the socket: the agent writes the files all the same, and a runtime sync stays pending.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::{Amounts, SIDE, Scene, cpu};

const TARGET: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

/// Makes a change with this file at the socket's path, and returns the agent's problem.
async fn change_with(scene: &mut Scene, socket: &Path) -> String {
    scene.agent.set("--runtime-socket", socket);
    scene.agent.set("--runtime-timeout", "1s");
    scene.agent.start().await;
    scene.recommend(&TARGET);
    scene
        .agent
        .wait_for("the files to hold the values", || scene.holds(&TARGET))
        .await;
    let pod = scene.agent.reaches("web", "Owed").await;
    let name = socket.display().to_string();
    assert!(pod.detail.contains(&name), "{}", pod.detail);
    assert!(scene.node.all_run(&scene.pod));
    scene.agent.reports(&[&name]).await
}

#[tokio::test]
async fn a_silent_runtime_delays_no_file() {
    let mut scene = Scene::new();
    let socket = scene.agent.path().join("hangs.sock");
    let _silent = UnixListener::bind(&socket).unwrap();
    let problem = change_with(&mut scene, &socket).await;
    assert!(problem.contains("no answer within"), "{problem}");
    let change = scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    assert_eq!(change.outcome, "RuntimeOwed", "{change:#?}");
    scene.agent.stop();
}

#[tokio::test]
async fn a_socket_that_is_none_is_named() {
    let mut scene = Scene::new();
    let socket = scene.agent.path().join("file.sock");
    fs::write(&socket, "").unwrap();
    change_with(&mut scene, &socket).await;
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_named() {
    let mut scene = Scene::new();
    let socket = scene.agent.path().join("absent.sock");
    change_with(&mut scene, &socket).await;
}

#[tokio::test]
async fn the_agents_own_socket_is_no_runtime() {
    let mut scene = Scene::new();
    let socket = scene.agent.path().join("vscaled.sock");
    change_with(&mut scene, &socket).await;
}
