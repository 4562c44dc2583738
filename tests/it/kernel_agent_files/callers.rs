//! Who may call a live agent, and what it writes down of those who may not.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use super::{AT_FIRST, Amounts, SIDE, Scene};

const NOBODY: u32 = 65534;
const OPERATORS: &str = "54321";
const READERS: &str = "54322";

/// Runs `vscalectl` as the user nobody with one group besides its own; returns how it ended and what it said.
fn as_nobody(scene: &Scene, group: &str, line: &str) -> (Option<i32>, String) {
    let directory = scene.agent.path();
    let program = directory.join("vscalectl");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_vscalectl"), &program).unwrap();
        for path in [&program, directory] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
    }
    let output = Command::new("setpriv")
        .args([
            format!("--reuid={NOBODY}"),
            format!("--regid={NOBODY}"),
            format!("--groups={group}"),
        ])
        .arg("--")
        .arg(program)
        .args(line.split(' '))
        .arg("--socket")
        .arg(directory.join("vscaled.sock"))
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn groups_may_do_what_the_configuration_says_and_refusals_are_written_down() {
    let mut scene = Scene::new();
    scene.agent.set("--operator-group", OPERATORS);
    scene.agent.set("--reader-group", READERS);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    let resize = "resize test/web -c app --cpu-limit 1";

    let (code, error) = as_nobody(&scene, READERS, "explain test/web");
    assert_eq!(code, Some(0), "{error}");
    let (code, error) = as_nobody(&scene, READERS, resize);
    assert!(code == Some(1) && error.contains("may only read"), "{error}");
    let (code, error) = as_nobody(&scene, "7", "get");
    assert!(code == Some(1) && error.contains("may not call vscaled"), "{error}");
    assert!(scene.holds(&AT_FIRST));

    let (code, error) = as_nobody(&scene, OPERATORS, resize);
    assert_eq!(code, Some(0), "{error}");
    let app = Amounts {
        cpu_limit: Some(1000),
        ..super::APP
    };
    assert!(scene.holds(&[("app", app), ("side", SIDE)]));
    assert_eq!(scene.agent.pod("web").await.unwrap().r#override.unwrap().uid, NOBODY);

    scene.agent.stop();
    let audit = fs::read_to_string(scene.agent.path().join("state/audit.jsonl")).unwrap();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refused: Vec<_> = lines
        .iter()
        .filter(|line| line["event"] == "refusal")
        .map(|line| (line["uid"].as_u64().unwrap(), line["call"].as_str().unwrap()))
        .collect();
    assert_eq!(refused, [(NOBODY.into(), "resize"), (NOBODY.into(), "get")]);
    assert!(
        lines
            .iter()
            .any(|line| line["event"] == "change" && line["who"]["uid"] == NOBODY)
    );
}

#[tokio::test]
async fn a_group_that_does_not_exist_is_refused_at_the_start() {
    let scene = Scene::new();
    let output = Command::new(env!("CARGO_BIN_EXE_vscaled"))
        .arg("run")
        .args(scene.agent.arguments())
        .arg("--operator-group=no-such-group")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("operatorGroup: \"no-such-group\" is no group of this machine"),
        "{error}"
    );
}
