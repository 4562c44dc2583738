//! Taking vscaled off a node: every value goes back to what the pods' specs say.

use std::process::{Command, Output};

use super::{AT_FIRST, Amounts, SIDE, Scene, memory};

const RECOMMENDED: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

fn restore(scene: &Scene, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vscaled"));
    let Output { status, stdout, stderr } = command
        .arg("restore")
        .args(scene.agent.arguments())
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn values_go_back_to_the_spec_after_they_were_shown() {
    let mut scene = Scene::managed(&RECOMMENDED).await;
    scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    let (code, _, error) = restore(&scene, &["--yes"]);
    assert!(
        code == Some(1) && error.contains("another vscaled is running"),
        "{error}"
    );
    scene.agent.stop();
    let held = scene.node.held(&scene.pod);

    let (code, shown, error) = restore(&scene, &[]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{shown}");
    assert!(
        shown.contains("test/web: Planned") && shown.contains("add --yes to do it"),
        "{shown}"
    );
    assert_eq!(scene.node.held(&scene.pod), held, "a rehearsal wrote something");

    let (code, shown, error) = restore(&scene, &["--yes"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert!(scene.holds(&AT_FIRST), "{shown}");
    assert!(scene.node.all_run(&scene.pod));
    let audit = std::fs::read_to_string(scene.agent.path().join("state/audit.jsonl")).unwrap();
    assert!(audit.contains("\"reason\":\"vscaled restore\""), "{audit}");

    let (code, shown, _) = restore(&scene, &["--yes"]);
    assert!(
        code == Some(0) && shown.contains("test/web: as its spec says"),
        "{shown}"
    );

    // The override is forgotten, too: an agent that comes back begins from nothing.
    scene.agent.remove("vpa.yaml");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    assert!(scene.holds(&AT_FIRST));
}

#[tokio::test]
async fn limits_that_were_added_go_and_memory_in_use_is_not_taken_away() {
    let bare = [("app", Amounts::unlimited(100, 64)), ("side", SIDE)];
    let mut scene = Scene::of(&bare);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    let before = scene.node.held(&scene.pod);
    scene.agent.resize(scene.by_hand(memory("256Mi"))).await.unwrap();
    scene.agent.stop();
    assert_ne!(scene.node.held(&scene.pod), before);
    let (code, shown, error) = restore(&scene, &["--yes", "-o", "json"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert_eq!(scene.node.held(&scene.pod), before);
}

#[tokio::test]
async fn a_pod_that_uses_more_than_its_spec_allows_stays_as_it_is_and_is_named() {
    let mut scene = Scene::started().await;
    scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    let bytes = 200_u64 << 20;
    let cgroup = scene.pod.containers["app"].cgroup.clone();
    let command = format!("head -c {bytes} /dev/zero | tail -c {bytes} | sleep 1000");
    scene.node.spawn(&cgroup, &command);
    scene
        .agent
        .wait_for("the memory to be in use", || {
            scene.node.cgroups().memory_usage(&cgroup) >= bytes
        })
        .await;
    scene.agent.stop();
    let held = scene.node.held(&scene.pod);
    for arguments in [&[][..], &["--yes"]] {
        let (code, shown, error) = restore(&scene, arguments);
        assert_eq!(code, Some(1), "{shown}{error}");
        assert!(
            error.contains("1 of 1 pods cannot be put back now: test/web"),
            "{error}"
        );
        assert_eq!(scene.node.held(&scene.pod), held);
    }
    assert!(scene.node.all_run(&scene.pod));
}
