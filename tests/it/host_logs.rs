//! Promise: the log says which pod was changed, how and why. The format is readable on a terminal and JSON otherwise.
//! An idle agent logs nothing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::agent::Agent;
use crate::support::amounts::{Amounts, vpa_manifest};
use crate::support::bare::BareNode;

const AT_FIRST: [(&str, Amounts); 1] = [("app", Amounts::doubled(100, 64))];
const LARGER: [(&str, Amounts); 1] = [("app", Amounts::doubled(200, 96))];
const UID: &str = "0a1b2c3d-0000-4000-8000-000000000071";

#[tokio::test]
async fn every_write_is_a_json_line_that_names_pod_and_cause() {
    let mut node = BareNode::new();
    let pod = node.run("web", UID, &AT_FIRST);
    let mut agent = Agent::new(&node.kubepods()).with("--log-format", "auto");
    agent.write("pod.yaml", &pod.manifest());
    agent.start().await;
    agent.write("vpa.yaml", &vpa_manifest("web", "web", &LARGER));
    agent
        .wait_for("the recommended values", || node.holds(&pod, &LARGER))
        .await;
    agent.reaches("web", "InSync").await;
    let log = agent.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let steps: Vec<&Value> = lines.iter().filter(|line| line["message"] == "step").collect();
    assert!(!steps.is_empty(), "{log}");
    for step in steps {
        // A field with the name of a standard field would replace it.
        assert_eq!(
            (&step["level"], &step["span"]["pod"]),
            (&"INFO".into(), &"test/web".into()),
            "{step}"
        );
        let cause = step["span"]["cause"].as_str().unwrap();
        assert!(cause.contains("recommendation") && cause.contains("web"), "{step}");
        assert!(
            step["from"] != step["to"] && step["file"] != "" && step["took_us"].is_u64(),
            "{step}"
        );
    }
}

#[tokio::test]
async fn nothing_is_logged_while_nothing_happens() {
    let mut node = BareNode::new();
    let pod = node.run("web", UID, &AT_FIRST);
    let mut agent = Agent::new(&node.kubepods())
        .with("--sweep-interval", "1s")
        .with("--http-address", "127.0.0.1:0");
    agent.write("pod.yaml", &pod.manifest());
    agent.write("vpa.yaml", &vpa_manifest("web", "web", &LARGER));
    agent.start().await;
    agent
        .wait_for("the recommended values", || node.holds(&pod, &LARGER))
        .await;
    agent.reaches("web", "InSync").await;
    // The whole machine shares the kernel's log, so other processes may be killed meanwhile.
    let lines = || -> Vec<String> {
        let log = agent.log();
        let ours = log
            .lines()
            .filter(|line| !line.contains("the kernel's OOM killer ended a process"));
        ours.map(str::to_owned).collect()
    };
    let settled = lines();
    // Periodic passes, heartbeats and calls at the socket happen all the time, so the agent does not log them.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(agent.pod("web").await.is_some());
    }
    assert_eq!(lines(), settled);
}

#[test]
fn at_a_terminal_lines_are_text() {
    let node = BareNode::new();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::create_dir(path("manifests")).unwrap();
    let agent = format!(
        "echo $$ >{}; exec {} run --manifests {} --state-dir {} --socket {} --http-address '' --runtime-socket none --kubepods {}",
        path("pid"),
        env!("CARGO_BIN_EXE_vscaled"),
        path("manifests"),
        path("state"),
        path("socket"),
        node.kubepods(),
    );
    // script(1) of util-linux provides the terminal.
    let mut terminal = Command::new("script")
        .args(["--quiet", "--command", &agent, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs (Debian: apt-get install bsdutils)");
    let mut lines = BufReader::new(terminal.stdout.take().unwrap()).lines();
    let line = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("vscaled runs"));
    let pid = fs::read_to_string(path("pid")).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    terminal.wait().unwrap();
    let line = line.expect("the agent says that it runs");
    assert!(line.contains(" INFO ") && !line.contains(['{', '\u{1b}']), "{line:?}");
    assert!(
        rest.iter().any(|line| line.contains("limits stay as they are")),
        "{rest:?}"
    );
}
