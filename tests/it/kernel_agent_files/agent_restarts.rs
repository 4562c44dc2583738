//! The agent may end at any moment, and the next agent completes its work.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use vscaled::model::{CgroupVersion, MemoryLimit, Setting, Settings};

use super::{AT_FIRST, Amounts, SIDE, Scene, memory};
use crate::support::agent::Agent;

const FIRST: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

/// Whether no cgroup has a value above that of the pod that contains it, at any moment.
fn ordered(scene: &Scene) -> bool {
    let held = scene.node.held(&scene.pod);
    let pod = &held["pod"];
    ["app", "side"].into_iter().all(|name| {
        held[name].memory_limit() <= pod.memory_limit() && pod.cpu_max().unwrap().allows(held[name].cpu_max().unwrap())
    })
}

/// The state file, which exists and is complete.
fn state(scene: &Scene) -> Value {
    let text = fs::read(scene.agent.state_file()).unwrap();
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text)))
}

#[tokio::test]
async fn the_next_agent_completes_a_killed_ones_work() {
    let mut scene = Scene::managed(&FIRST).await;
    scene.saves("\"web\"").await;
    let mut random = u64::from(
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .subsec_nanos(),
    );
    println!("seed {random}");
    for round in 0..15 {
        for step in 0..4 {
            let app = Amounts::doubled(100 + 90 * ((round + step) % 5), 40 + 24 * ((round + step) % 4));
            let side = Amounts::doubled(500 - 90 * ((round + step) % 5), 120 - 24 * ((round + step) % 4));
            scene.recommend(&[("app", app), ("side", side)]);
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            tokio::time::sleep(Duration::from_micros((random >> 33) % 15_000)).await;
        }
        scene.agent.kill();
        assert!(ordered(&scene), "round {round}: {:#?}", scene.node.held(&scene.pod));
        assert_eq!(state(&scene)["version"], 1, "round {round}");
        scene.agent.launch();
    }
    let last = [("app", Amounts::doubled(321, 77)), ("side", Amounts::doubled(123, 55))];
    scene.recommend(&last);
    scene
        .agent
        .wait_for("every level to hold the last values", || scene.holds(&last))
        .await;
    scene.agent.reaches("web", "InSync").await;
    assert!(scene.node.all_run(&scene.pod));
    assert!(scene.agent.get().await.agent.unwrap().problems.is_empty());
}

#[tokio::test]
async fn an_override_survives_a_kill_after_the_answer() {
    let mut scene = Scene::managed(&FIRST).await;
    for mebibytes in [300, 400, 500] {
        let limit = format!("{mebibytes}Mi");
        scene.agent.resize(scene.by_hand(memory(&limit))).await.unwrap();
        scene.agent.kill();
        scene.agent.start().await;
        scene.agent.reaches("web", "InSync").await;
        let held = scene.node.held(&scene.pod);
        assert_eq!(held["app"].memory_limit(), Some(MemoryLimit::Bytes(mebibytes << 20)));
    }
}

#[tokio::test]
async fn an_unreadable_state_file_is_set_aside() {
    let mut scene = Scene::managed(&FIRST).await;
    scene.agent.stop();
    let whole = fs::read(scene.agent.state_file()).unwrap();
    fs::write(scene.agent.state_file(), &whole[..whole.len() / 2]).unwrap();
    scene.agent.start().await;
    // The record survives the next save of the file.
    scene.settles(&FIRST).await;
    scene.saves("\"web\"").await;
    let problem = scene.agent.reports(&["state file", "not understood"]).await;
    let aside = scene.agent.state_file().with_extension("json.set-aside");
    assert!(problem.contains(&aside.display().to_string()), "{problem}");
    assert_eq!(fs::read(aside).unwrap(), &whole[..whole.len() / 2]);
}

#[tokio::test]
async fn values_without_a_state_file_go_back() {
    let mut scene = Scene::started().await;
    let uid = "0a1b2c3d-0000-4000-8000-000000000019";
    let untouched = scene.node.run("beside", uid, &[("app", FIRST[0].1)]);
    // Values of a foreign writer, which the agent has never written.
    let theirs = Settings::from_iter([match scene.node.cgroups().version() {
        CgroupVersion::V1 => Setting::MemoryLimit(MemoryLimit::Bytes(700 << 20)),
        CgroupVersion::V2 => Setting::MemoryMax(MemoryLimit::Bytes(700 << 20)),
    }]);
    scene.node.put(&untouched.cgroup, &theirs);
    scene.agent.write("beside.yaml", &untouched.manifest());
    scene.agent.reaches("beside", "NotManaged").await;
    scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    scene.agent.kill();
    fs::write(scene.agent.state_file(), r#"{"version": 0}"#).unwrap();
    scene.agent.start().await;
    let back = || scene.holds(&AT_FIRST);
    scene.agent.wait_for("the spec's values to be back", back).await;
    scene
        .agent
        .reports(&["state file", "go back to what their specs"])
        .await;
    assert_eq!(
        scene.node.held(&untouched)["pod"].memory_limit(),
        Some(MemoryLimit::Bytes(700 << 20))
    );
}

#[tokio::test]
async fn a_stopped_agent_leaves_limits_but_no_socket() {
    let mut scene = Scene::managed(&FIRST).await;
    scene.agent.stop();
    assert!(scene.holds(&FIRST));
    assert!(!scene.agent.path().join("vscaled.sock").exists());
    assert_eq!(state(&scene)["version"], 1);
}

#[tokio::test]
async fn a_second_agent_names_the_first_and_ends() {
    let scene = Scene::managed(&FIRST).await;
    let socket = format!("--socket={}", scene.agent.path().join("other.sock").display());
    let arguments = scene.agent.arguments().iter();
    let others = arguments.filter(|argument| !argument.as_encoded_bytes().starts_with(b"--socket="));
    let mut second = Command::new(env!("CARGO_BIN_EXE_vscaled"));
    let ended = second.arg("run").args(others).arg(socket).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    let holder = format!("another vscaled is running: vscaled run, pid {} on ", scene.agent.pid());
    assert!(said.contains(&holder) && said.contains("vscaled.lock"), "{said}");
    assert!(scene.holds(&FIRST));
}

#[tokio::test]
async fn a_new_agent_waits_for_the_earlier_one() {
    let mut scene = Scene::managed(&FIRST).await;
    let mut next = Agent::new(&scene.node.kubepods())
        .with("--state-dir", scene.agent.state_directory())
        .with("--manifests", scene.agent.path().join("manifests"));
    next.launch();
    let waits = || next.log().contains("another vscaled still runs");
    next.wait_for("the new agent to wait", waits).await;
    scene.agent.stop();
    next.answers().await;
    next.reaches("web", "InSync").await;
    assert!(scene.holds(&FIRST));
}
