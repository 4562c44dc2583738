//! Access rights at a running agent, and the audit records of refused callers.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde_json::Value;

use super::{AT_FIRST, Amounts, SIDE, Scene};

const NOBODY: u32 = 65534;
const OPERATORS: &str = "54321";
const READERS: &str = "54322";

/// `vscalectl` as the user nobody with one supplementary group.
fn command_of_nobody(scene: &Scene, group: &str, line: &str) -> Command {
    let directory = scene.agent.path();
    let program = directory.join("vscalectl");
    if !program.exists() {
        // A separate process makes the copy: a file that a fork of this process holds open for writing cannot be
        // executed.
        let mut install = Command::new("install");
        install
            .args(["-m", "755", env!("CARGO_BIN_EXE_vscalectl")])
            .arg(&program);
        assert!(install.status().unwrap().success());
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command
        .args([
            format!("--reuid={NOBODY}"),
            format!("--regid={NOBODY}"),
            format!("--groups={group}"),
        ])
        .arg("--")
        .arg(program)
        .args(line.split(' '))
        .arg("--socket")
        .arg(scene.agent.socket());
    command
}

/// `vscalectl` as root.
fn command_of_root(scene: &Scene, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
    command.args(line.split(' ')).arg("--socket").arg(scene.agent.socket());
    command
}

/// The exit code and standard error.
fn run(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn as_nobody(scene: &Scene, group: &str, line: &str) -> (Option<i32>, String) {
    run(command_of_nobody(scene, group, line))
}

#[tokio::test]
async fn groups_have_configured_rights() {
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

const READS: [&str; 11] = [
    "get",
    "get overrides -o json",
    "get decisions -o yaml",
    "explain test/web",
    "explain test/web -o json",
    "history",
    "history test/web -o yaml",
    "oom list",
    "report",
    "doctor",
    "resize test/web -c app --cpu-limit 1 --dry-run",
];
const CHANGES: [&str; 2] = ["resize test/web -c app --cpu-limit 1", "release test/web"];

#[tokio::test]
async fn commands_are_answered_by_rights() {
    let mut scene = Scene::new();
    scene.agent.set("--operator-group", OPERATORS);
    scene.agent.set("--reader-group", READERS);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    for line in READS {
        let callers = [
            run(command_of_root(&scene, line)),
            as_nobody(&scene, OPERATORS, line),
            as_nobody(&scene, READERS, line),
        ];
        for (code, error) in callers {
            assert_eq!(code, Some(0), "{line}: {error}");
        }
    }
    for line in CHANGES {
        let (code, error) = as_nobody(&scene, READERS, line);
        assert!(code == Some(1) && error.contains("may only read"), "{line}: {error}");
    }
    for line in READS.iter().chain(&CHANGES).chain(&["watch"]) {
        let (code, error) = as_nobody(&scene, "7", line);
        // Doctor runs its own checks where no agent answers, so a refused call counts as a failed check.
        assert!(
            code == Some(1) && error.contains("may not call vscaled"),
            "{line}: {code:?} {error}"
        );
    }
    for line in CHANGES {
        let (code, error) = run(command_of_root(&scene, line));
        assert_eq!(code, Some(0), "{line}: {error}");
    }

    for watch in [
        command_of_root(&scene, "watch -o json"),
        command_of_nobody(&scene, OPERATORS, "watch -o json"),
        command_of_nobody(&scene, READERS, "watch -o json"),
    ] {
        let seen = first_line_of(watch, || {
            for line in CHANGES {
                assert_eq!(as_nobody(&scene, OPERATORS, line).0, Some(0));
            }
        });
        let seen: Value = serde_json::from_str(&seen).unwrap();
        assert_eq!((&seen["name"], &seen["who"]["uid"]), (&"web".into(), &NOBODY.into()));
    }
}

/// The first line about the pod of a command that does not end, while `happen` runs again and again. Other processes on
/// the machine may be killed meanwhile, and the command shows that too.
fn first_line_of(mut command: Command, happen: impl Fn()) -> String {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (send, receive) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        while !line.contains("\"web\"") {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended");
        }
        send.send(line).unwrap();
    });
    let line = loop {
        happen();
        if let Ok(line) = receive.try_recv() {
            break line;
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    line
}

#[tokio::test]
async fn an_unknown_group_is_refused_at_the_start() {
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
