//! Promise: `kubectl vscale` asks all nodes at once, waits for none beyond its deadline, makes one answer of the answers, and names
//! the nodes without one.
//!
//! A script stands in for kubectl, so that nodes hang, fail and are of other versions at will. `vscalectl` is the real one.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::terminal::Terminal;

/// Of a hundred nodes, two hang, one has no agent, one cannot be reached, one prints no JSON, and one is of another version.
const KUBECTL: &str = r#"#!/bin/sh
case " $* " in
  *' exec '*) ;;
  *' config view '*) printf shop; exit ;;
  *' get daemonset '*) printf u-1; exit ;;
  *' get pods '*)
    number=1
    while [ "$number" -le 100 ]; do
      phase=Running
      if [ "$number" -eq 21 ]; then phase=Pending; fi
      echo "agent-$number node-$number $phase apps/v1 DaemonSet u-1 vscaled"
      number=$((number + 1))
    done
    exit ;;
esac
while [ "$1" != -- ]; do
  case $1 in agent-*) number=${1#agent-} ;; esac
  shift
done
shift 2
if [ "$1" = fleet ]; then
  if [ "$number" -le 2 ]; then echo "error: unrecognized subcommand 'fleet'" >&2; exit 2; fi
  exec "$VSCALECTL" "$@"
fi
printf '%s\n' "$*" >>"$CALLS"
case $number in
  7 | 17) exec sleep 600 ;;
  3) echo 'error: unable to upgrade connection: no such host' >&2; exit 1 ;;
  9) printf 'not JSON \033[2J'; exit ;;
  5) printf '{"pods": [{"namespace": "shop", "name": "web-5", "state": "New", "novel": {"x": [1]}}], "more": true}'; exit ;;
esac
printf '{"agent": {"version": "1", "problems": []}, "pods": [{"namespace": "shop", "name": "web-%s", "state": "InSync"}]}' "$number"
"#;

struct Ran {
    output: Output,
    /// The commands that the nodes were given.
    calls: Vec<String>,
}

impl Ran {
    fn text(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    fn complaint(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }
}

/// The plugin. `installed`: whether vscalectl is in PATH, or only in the agents' pods.
fn command(directory: &Path, installed: bool, arguments: &[&str]) -> Command {
    let kubectl = directory.join("kubectl");
    fs::write(&kubectl, KUBECTL).unwrap();
    fs::set_permissions(&kubectl, Permissions::from_mode(0o755)).unwrap();
    if installed {
        symlink(env!("CARGO_BIN_EXE_vscalectl"), directory.join("vscalectl")).unwrap();
    }
    let directory = directory.display();
    let mut command = Command::new("env");
    command
        .arg(format!("PATH={directory}:/usr/bin:/bin"))
        .arg(format!("VSCALECTL={}", env!("CARGO_BIN_EXE_vscalectl")))
        .arg(format!("CALLS={directory}/calls"))
        .arg(format!("TMPDIR={directory}"))
        .args(["sh", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubectl-vscale")])
        .args(["--deadline", "4"])
        .args(arguments);
    command
}

/// Runs the plugin to its end.
fn plugin(installed: bool, arguments: &[&str]) -> Ran {
    let directory = TempDir::new().unwrap();
    let output = command(directory.path(), installed, arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let left = fs::read_dir(directory.path()).unwrap();
    let left = left.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("kubectl-vscale")
    });
    assert_eq!(left.count(), 0, "files stay behind");
    let calls = fs::read_to_string(directory.path().join("calls")).unwrap_or_default();
    Ran {
        output,
        calls: calls.lines().map(str::to_owned).collect(),
    }
}

const UNANSWERED: [&str; 5] = [
    "no answer from node-3: error: unable to upgrade connection: no such host",
    "no answer from node-9: its answer is not readable: ",
    "no answer from node-17, node-7: nothing came within 4 s",
    "no answer from node-21: the agent's pod agent-21 is Pending",
    "5 of 100 nodes did not answer",
];

#[test]
fn a_hundred_nodes_make_one_table_though_some_hang() {
    for installed in [true, false] {
        let ran = plugin(installed, &["get"]);
        let (text, complaint) = (ran.text(), ran.complaint());
        assert_eq!(ran.output.status.code(), Some(4), "{complaint}");
        assert_eq!(text.lines().count(), 1 + 95, "{text}");
        assert!(text.starts_with("NODE      POD"), "{text}");
        assert!(text.contains("\nnode-5    shop/web-5    -    New"), "{text}");
        for line in UNANSWERED {
            assert!(complaint.contains(line), "{complaint}");
        }
        assert!(!complaint.contains('\u{1b}') && !text.contains('\u{1b}'), "{complaint}");
        assert_eq!(ran.calls, vec!["get -o json"; 99]);
    }
}

#[test]
fn a_terminal_counts_the_answers() {
    let directory = TempDir::new().unwrap();
    // On a busy machine others are slow, too.
    let get = command(directory.path(), true, &["--deadline", "20", "get"]);
    let mut terminal = Terminal::run(&get, 120, 150);
    // Two nodes hang.
    terminal.shows(&["98 of 100 nodes answered"]);
    assert_eq!(terminal.ends().code(), Some(4));
    let text = terminal.shows(&["5 of 100 nodes did not answer"]);
    assert!(
        text.contains("shop/web-100") && !text.contains("nodes answered"),
        "{text}"
    );
}

#[test]
fn top_fits_a_terminal_that_becomes_narrow() {
    let directory = TempDir::new().unwrap();
    let mut terminal = Terminal::run(&command(directory.path(), true, &["top"]), 30, 150);
    terminal.shows(&["WORKLOAD", "THROTTLED"]);
    terminal.set_columns(60);
    terminal.until("shorter titles", |text| text.contains('…'));
    terminal.signal(Signal::SIGTERM);
    assert_eq!(terminal.ends().code(), Some(130));
}

#[test]
fn json_of_all_nodes_is_one_document() {
    let ran = plugin(true, &["--parallel=50", "get", "pods", "-ojson"]);
    assert_eq!(ran.calls, vec!["get pods -o json"; 99]);
    let document: Value = serde_json::from_str(&ran.text()).unwrap();
    let pods = document["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 95);
    let newer = pods.iter().find(|pod| pod["node"] == "node-5").unwrap();
    assert_eq!(newer["novel"], json!({"x": [1]}), "unknown fields stay");
    let nodes = document["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 100);
    let of = |name: &str| nodes.iter().find(|node| node["node"] == name).unwrap();
    assert_eq!(of("node-1")["agent"]["version"], "1");
    assert_eq!(of("node-5")["more"], true);
    assert_eq!(of("node-7")["error"], "nothing came within 4 s");
}

#[test]
fn every_form_of_the_output_option_stays_here() {
    for (arguments, asked) in [
        (&["history", "-o", "yaml"][..], "history -o json"),
        (&["oom", "list", "--output=table"], "oom list -o json"),
        (
            &[
                "--sort",
                "memory",
                "top",
                "--output",
                "json",
                "shop",
                "--interval",
                "1s",
            ],
            "top shop --interval 1s -o json",
        ),
        (&["export", "--format", "vpa", "web"], "export web --format json"),
        (&["explain", "deploy/web", "-oyaml"], "explain shop/deploy/web -o json"),
        (&["-n", "bank", "history", "sts/db"], "history bank/sts/db -o json"),
    ] {
        let ran = plugin(true, &[&["--parallel", "99"], arguments].concat());
        assert_eq!(ran.calls, vec![asked; 99], "{}", ran.complaint());
    }
}

#[test]
fn options_out_of_range_ask_nobody() {
    for arguments in [
        &["--deadline", "0"][..],
        &["--parallel", "x"],
        &["--deadline=100000"],
        &["--sort", "age"],
    ] {
        let ran = plugin(true, &[arguments, &["get"]].concat());
        assert_eq!(
            (ran.output.status.code(), ran.calls.len()),
            (Some(2), 0),
            "{arguments:?}: {}",
            ran.complaint()
        );
    }
}

/// What `vscalectl fleet` makes of the answers of these nodes: each with its exit code, its document and its complaint.
fn merged(command: &[&str], answers: &[(&str, u8, &str, &str)]) -> (Option<i32>, String, String) {
    let input: String = answers
        .iter()
        .map(|(node, code, output, errors)| {
            format!("{node} {code} {} {}\n{output}{errors}", output.len(), errors.len())
        })
        .collect();
    merge(command, input.as_bytes())
}

fn merge(command: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .args(["fleet", "--"])
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command line that is refused is refused before any answer is read.
    child.stdin.take().unwrap().write_all(input).unwrap_or_default();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn changes_and_kills_stand_in_order_of_time() {
    let change =
        |at: &str, name: &str| format!(r#"{{"at":"{at}","namespace":"shop","name":"{name}","outcome":"Applied"}}"#);
    let answer = |one: String, two: String| format!(r#"{{"changes":[{one},{two}]}}"#);
    let first = answer(
        change("2026-01-01T00:00:00Z", "web-1"),
        change("2026-01-01T00:00:02.5Z", "web-2"),
    );
    let second = answer(
        change("2026-01-01T00:00:01.25Z", "db-1"),
        change("2026-01-01T00:00:03Z", "db-2"),
    );
    let (code, text, _) = merged(&["history"], &[("a", 0, &first, ""), ("b", 0, &second, "")]);
    let order: Vec<&str> = text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(2).unwrap())
        .collect();
    assert_eq!(
        (code, order),
        (Some(0), vec!["shop/web-1", "shop/db-1", "shop/web-2", "shop/db-2"]),
        "{text}"
    );
    let kill = r#"{"kills":[{"time":"2026-01-01T00:00:00Z","pod":{"namespace":"shop","name":"web","uid":"u"},
        "container":{"name":"app","id":"c"},"level":"container","limit":{"limitBytes":67108864},
        "victim":{"pid":7,"comm":"a\u001b[2J","role":"main","memory":{"anonRssBytes":1024}},"confidence":"exact"}]}"#;
    let (code, text, _) = merged(&["oom", "list"], &[("a", 0, kill, ""), ("b", 0, r#"{"kills":[]}"#, "")]);
    assert!(
        code == Some(0) && text.contains("a     2026-01-01T00:00:00Z  shop/web  app"),
        "{text}"
    );
    assert!(text.contains("64Mi") && text.contains(r"a\u{1b}[2J (main)"), "{text}");
}

#[test]
fn findings_of_many_nodes_are_shown_once() {
    let checks = |status: &str, name: &str| {
        format!(
            r#"{{"checks":[{{"name":"kernel","status":"ok","found":"6.18"}},{{"name":"{name}","status":"{status}","found":"it is not there","mend":"mount it"}}]}}"#
        )
    };
    let (warned, failed) = (checks("warn", "log"), checks("fail", "cgroups"));
    let answers = [
        ("a", 0, &*warned, ""),
        ("b", 0, &*warned, ""),
        ("c", 1, &*failed, "vscalectl: failing: cgroups\n"),
    ];
    let (code, text, complaint) = merged(&["doctor"], &answers);
    assert_eq!(code, Some(1), "{complaint}");
    insta::assert_snapshot!(text, @r"
    c
    fail  cgroups  it is not there
                   → mount it
    a, b
    warn  log  it is not there
               → mount it
    ");
    let (code, text, _) = merged(
        &["doctor"],
        &[("a", 0, r#"{"checks":[{"name":"kernel","status":"ok"}]}"#, "")],
    );
    assert_eq!((code, &*text), (Some(0), "all is well on every node that answered\n"));
    let (code, text, _) = merged(&["doctor", "-ojson"], &answers);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, document["checks"].as_array().unwrap().len()), (Some(1), 6));
}

#[test]
fn reports_add_up_by_workload() {
    let answer = |since: &str, pods: u64, cpu: &str, seconds: f64| {
        let one = json!({"namespace": "shop", "workload": {"kind": "Deployment", "name": "web"}, "pods": pods,
            "requestedBefore": {"cpu": "1"}, "requested": {"cpu": cpu, "memory": "1Gi"}, "avoidedKills": 2,
            "avoidedThrottledSeconds": seconds, "throttledWithBurst": seconds, "remarks": [format!("{pods} pods")]});
        json!({"since": since, "workloads": [one], "total": one}).to_string()
    };
    let (first, second) = (
        answer("2026-01-02T00:00:00Z", 2, "500m", 1.5),
        answer("2026-01-01T00:00:00Z", 1, "250m", 1.0),
    );
    let third = r#"{"workloads":[{"namespace":"bank","workload":{"kind":"Deployment","name":"web"},"pods":5},
        {"namespace":"shop","workload":{"kind":"StatefulSet","name":"web"},"pods":7}],"future":1}"#;
    let answers = [("a", 0, &*first, ""), ("b", 0, &*second, ""), ("c", 0, third, "")];
    let (code, text, _) = merged(&["report", "-ojson"], &answers);
    let document: Value = serde_json::from_str(&text).unwrap();
    let pods = |one: &Value| format!("{} {} {}", one["namespace"], one["workload"]["kind"], one["pods"]);
    let pods: Vec<String> = document["workloads"].as_array().unwrap().iter().map(pods).collect();
    assert_eq!(
        pods,
        [
            r#""bank" "Deployment" 5"#,
            r#""shop" "Deployment" 3"#,
            r#""shop" "StatefulSet" 7"#
        ]
    );
    let workload = &document["workloads"][1];
    assert_eq!(
        (code, workload),
        (
            Some(0),
            &json!({"namespace": "shop", "workload": {"kind": "Deployment", "name": "web"}, "pods": 3,
        "requestedBefore": {"cpu": "2"}, "requested": {"cpu": "750m", "memory": "2Gi"}, "avoidedKills": 4, "avoidedEvictions": 0,
        "avoidedRestarts": 0, "avoidedThrottledSeconds": 2.5, "throttledBeforeBurst": null, "throttledWithBurst": 2.5,
        "remarks": ["2 pods", "1 pods"]})
        )
    );
    assert_eq!(
        (&document["total"]["pods"], &document["since"]),
        (&json!(15), &json!("2026-01-01T00:00:00Z"))
    );
    assert_eq!(document["total"]["remarks"], json!([]), "as in an agent's own answer");
}

#[test]
fn an_export_has_the_largest_amounts_of_all_nodes() {
    let answer = |memory: &str| {
        json!({"pods": [{"namespace": "shop", "name": "web-1", "state": "InSync", "workload": {"kind": "Deployment", "name": "web"},
            "containers": [{"name": "app", "wanted": {"limits": {"memory": memory}}}]}]})
        .to_string()
    };
    let (first, second) = (answer("1Gi"), answer("2Gi"));
    let answers = [("a", 0, &*first, ""), ("b", 0, &*second, "")];
    let (code, text, _) = merged(&["export"], &answers);
    assert!(
        code == Some(0) && text.contains("memory: 2Gi") && text.contains("pods here: 2"),
        "{text}"
    );
    let left_out =
        "node: noise\nvscalectl: warning: the answer leaves out 3 pods of namespace shop\nvscalectl: other\n";
    let (code, _, complaint) = merged(&["export"], &[("a", 0, &*first, left_out)]);
    assert_eq!(
        (code, &*complaint),
        (
            Some(0),
            "vscalectl: warning: a: the answer leaves out 3 pods of namespace shop\n"
        )
    );
    let (code, _, complaint) = merged(&["export", "gone"], &answers);
    assert!(
        code == Some(1) && complaint.contains("no pod of a workload gone"),
        "{complaint}"
    );
    let silent = ("b", 1, "", "error: no such host\n");
    let (code, _, complaint) = merged(&["export", "gone"], &[("a", 0, &*first, ""), silent]);
    assert_eq!(
        (code, &*complaint),
        (
            Some(4),
            "vscalectl: warning: no answer from b: error: no such host\n\
             vscalectl: 1 of 2 nodes did not answer: no pod of a workload gone is known here\n"
        )
    );
    assert_eq!(merged(&["export"], &[silent]).0, Some(3));
    let (_, text, _) = merged(&["export", "--format", "json", "web"], &answers);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["pods"].as_array().unwrap().len(), 2, "{text}");
}

#[test]
fn an_answer_that_cannot_be_written_is_no_silent_node() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .args(["fleet", "--", "get"])
        .stdin(Stdio::piped())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = b"a 0 12 0\n{\"pods\": []}b 1 0 6\nsilent";
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(
        complaint.contains("no answer from b: silent") && complaint.contains("cannot write the result"),
        "{complaint}"
    );
}

#[test]
fn one_custom_resource_alone_is_exported() {
    let answer = |kind: &str| {
        let target = json!({"targetRef": {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web"}});
        json!({"pods": [{"namespace": "shop", "name": "web-1", "state": "InSync", "workload": {"kind": kind, "name": "web"},
            "vpaSpec": target.to_string(), "containers": [{"name": "app", "wanted": {"limits": {"memory": "1Gi"}}}]}]})
        .to_string()
    };
    for format in ["patch", "kustomize"] {
        let command = ["export", "--format", format];
        let (code, text, warnings) = merged(&command, &[("a", 0, answer("Rollout").as_str(), "")]);
        assert!(code == Some(0) && text.contains("memory: 1Gi"), "{text}{warnings}");
        assert!(warnings.contains("custom resource"), "{warnings}");
        let (code, text, complaint) = merged(&command, &[("a", 0, answer("Job").as_str(), "")]);
        assert!(code == Some(1) && text.is_empty(), "{text}");
        assert!(complaint.contains("nothing to export"), "{complaint}");
    }
}

#[test]
fn a_list_of_another_form_is_no_answer() {
    for list in [r#"{"changes": {}}"#, r#"{"changes": [7]}"#] {
        let answers = [("a", 0, r#"{"changes": []}"#, ""), ("b", 0, list, "")];
        for format in ["table", "json"] {
            let (code, text, complaint) = merged(&["history", "-o", format], &answers);
            assert_eq!(code, Some(4), "{list} as {format}: {text}");
            assert!(
                complaint.contains("no answer from b: its answer is not readable: "),
                "{complaint}"
            );
            assert_eq!(
                text.contains("its answer is not readable: "),
                format == "json",
                "{text}"
            );
        }
    }
}

#[test]
fn top_sums_nodes_and_workloads() {
    let line = |name: &str, cpu: &str, memory: &str| {
        json!({"namespace": "shop", "name": name, "workload": "Deployment/web", "cpu": {"used": cpu, "request": "1"},
            "memory": {"used": memory}, "throttledPercent": null})
    };
    let container = json!({"namespace": "shop", "name": "x", "container": "app", "workload": "Deployment/web",
        "cpu": {"used": "9"}, "memory": {}, "throttledPercent": 40});
    let first = json!({"usage": [line("web-1", "300m", "1Gi"), container, line("web-2", "100m", "1Gi")]}).to_string();
    // An agent that does not name workloads yet.
    let second =
        json!({"usage": [{"namespace": "shop", "name": "old", "cpu": {"used": "2"}, "memory": {"used": "1Mi"}}]})
            .to_string();
    let answers = [("a", 0, &*first, ""), ("b", 0, &*second, "")];
    let (code, text, _) = merged(&["top"], &answers);
    assert_eq!(code, Some(0));
    insta::assert_snapshot!(text, @r"
    NODE  PODS  CPU    REQUEST  LIMIT  MEMORY  REQUEST  LIMIT  THROTTLED
    b     1     2000m  -        -      1Mi     -        -      -
    a     2     400m   2000m    -      2048Mi  -        -      40%

    WORKLOAD             PODS  CPU    REQUEST  LIMIT  MEMORY  REQUEST  LIMIT  THROTTLED
    shop/Pod/old         1     2000m  -        -      1Mi     -        -      -
    shop/Deployment/web  2     400m   2000m    -      2048Mi  -        -      40%
    ");
}

#[test]
fn one_node_cannot_hide_or_forge_others_answers() {
    let hostile = r#"{"pods":[{"namespace":"shop","name":"web\u001b[2J\nnode-2","state":"InSync"}]}"#;
    let shape = r#"{"pods":[{"namespace":7}]}"#;
    let answers = [
        ("a", 0, hostile, ""),
        ("b", 0, shape, ""),
        ("c", 0, r#"{"pods":{}}"#, ""),
        ("d", 0, "", ""),
    ];
    let (code, text, complaint) = merged(&["get"], &answers);
    assert_eq!((code, text.lines().count()), (Some(4), 2), "{text}");
    assert!(text.contains(r"web\u{1b}[2J\nnode-2"), "{text}");
    assert!(
        complaint.contains("3 of 4 nodes did not answer")
            && complaint.contains("d: it ended with exit code 0 and said nothing"),
        "{complaint}"
    );
    // Nobody at all: nothing is known, neither that all is well nor that there is no kill.
    for command in [&["get"][..], &["doctor"], &["report"], &["oom", "list"]] {
        let (code, text, complaint) = merged(command, &[("a", 1, "", "error: no such host\n")]);
        assert_eq!((code, &*text), (Some(3), ""), "{command:?}");
        assert!(complaint.contains("error: no such host"), "{complaint}");
    }
}

#[test]
fn problems_of_nodes_are_warnings() {
    let answer = |problem: &str| json!({"agent": {"problems": [problem]}, "pods": []}).to_string();
    let (degraded, observing) = (
        answer("no runtime answers"),
        answer("observing only: nothing is written"),
    );
    let answers = [("a", 0, &*degraded, ""), ("b", 0, &*observing, "")];
    let (code, text, complaint) = merged(&["get"], &answers);
    assert_eq!(
        (code, &*text, &*complaint),
        (
            Some(0),
            "no pods are known\n",
            "vscalectl: warning: a: degraded: no runtime answers\n"
        )
    );
}

#[test]
fn each_explanation_names_its_node() {
    let reply = json!({"pods": [{"pod": {"namespace": "shop", "name": "web"}, "next": "nothing"}]}).to_string();
    let (code, text, complaint) = merged(
        &["explain", "shop/web"],
        &[("a", 0, &*reply, ""), ("b", 0, &*reply, "")],
    );
    assert_eq!(code, Some(0), "{complaint}");
    for node in ["node a\npod       shop/web\n", "\n\nnode b\npod       shop/web\n"] {
        assert!(text.contains(node), "{text}");
    }
}

#[test]
fn an_answer_that_is_too_long_is_named() {
    const LONGEST: usize = 64 << 20;
    for length in [LONGEST, LONGEST + 1] {
        let flood = format!("a 1 {length} 0\n{}", "[".repeat(length));
        let input = flood + "b 0 12 0\n{\"pods\": []}";
        let (code, _, complaint) = merge(&["get"], input.as_bytes());
        assert_eq!(code, Some(4), "{complaint}");
        assert!(
            complaint.contains("no answer from a: its answer has more than 64 MiB"),
            "{complaint}"
        );
    }
}

#[test]
fn what_is_no_answer_is_wrong_usage() {
    for input in [
        "a 0 10 0\n{}",
        "a 0 99999999999 0\n",
        "a 0 x 0\n",
        "a\n",
        &"a".repeat(5000),
    ] {
        let (code, text, complaint) = merge(&["get"], input.as_bytes());
        assert_eq!((code, &*text), (Some(2), ""), "{complaint}");
        assert!(
            complaint.contains("not the first line of a node's answer"),
            "{complaint}"
        );
    }
    let (code, _, complaint) = merged(&["release", "shop/web"], &[]);
    assert!(code == Some(2) && complaint.contains("--node NODE"), "{complaint}");
    assert_eq!(merged(&["get", "nonsense"], &[]).0, Some(2));
}
