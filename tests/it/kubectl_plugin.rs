//! Promise: `kubectl vscale` runs vscalectl on the node of a pod, with the given arguments, and says what to do when
//! it cannot.
//!
//! A script stands in for kubectl and writes down its calls: the tests check which calls are made, not what a cluster
//! answers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The script's answers, in the format that the plugin requests.
#[derive(Clone, Copy)]
struct Cluster {
    /// Namespace/name and node of the requested pod.
    pod: Option<&'static str>,
    /// The UID of vscaled's DaemonSet; empty if there is none.
    daemon_set: &'static str,
    /// Name, node and phase of each pod with vscaled's label, and API version, kind, UID and name of its controller.
    agents: &'static [&'static str],
    /// The exit code of a command in the agent's pod.
    ends_with: u8,
}

const ONE_NODE: Cluster = Cluster {
    pod: Some("shop/web node-1"),
    daemon_set: "u-1",
    agents: &["vscaled-x2x node-1 Running apps/v1 DaemonSet u-1 vscaled"],
    ends_with: 0,
};

/// Writes one line for each call, with every argument in brackets.
const KUBECTL: &str = r#"#!/bin/sh
{ for argument; do printf '[%s]' "$argument"; done; printf '\n'; } >>"$CALLS"
case " $* " in
  *' exec '*) exit "$ENDS_WITH" ;;
  *' get pods '*) printf '%s' "$AGENTS" ;;
  *' get daemonset '*)
    if [ -z "$DAEMON_SET" ]; then echo 'Error from server (NotFound): daemonsets.apps "vscaled" not found' >&2; exit 1; fi
    printf '%s' "$DAEMON_SET" ;;
  *' get pod '*)
    if [ -z "$POD" ]; then echo 'Error from server (NotFound): pods "web" not found' >&2; exit 1; fi
    printf '%s' "$POD" ;;
esac
"#;

struct Ran {
    output: Output,
    calls: Vec<String>,
}

impl Ran {
    fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    fn complaint(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }
}

impl Cluster {
    fn run(self, arguments: &[&str]) -> Ran {
        let directory = TempDir::new().unwrap();
        let kubectl = directory.path().join("kubectl");
        fs::write(&kubectl, KUBECTL).unwrap();
        fs::set_permissions(&kubectl, Permissions::from_mode(0o755)).unwrap();
        let calls = directory.path().join("calls");
        let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
        let agents: String = self.agents.iter().map(|agent| format!("{agent}\n")).collect();
        let output = Command::new("sh")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubectl-vscale"))
            .args(arguments)
            .env("PATH", path)
            .env("CALLS", &calls)
            .env("POD", self.pod.unwrap_or_default())
            .env("DAEMON_SET", self.daemon_set)
            .env("AGENTS", agents)
            .env_remove("VSCALE_AGENT_NAMESPACE")
            .env_remove("VSCALE_AGENT_DAEMONSET")
            .env("ENDS_WITH", self.ends_with.to_string())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let calls = fs::read_to_string(calls).unwrap_or_default();
        Ran {
            output,
            calls: calls.lines().map(str::to_owned).collect(),
        }
    }
}

#[test]
fn a_command_runs_in_the_agents_pod_on_the_pods_node() {
    let ran = ONE_NODE.run(&[
        "resize",
        "shop/web",
        "-c",
        "app",
        "--reason",
        "a load test; $HOME",
        "--dry-run",
    ]);
    assert_eq!(ran.code(), Some(0), "{}", ran.complaint());
    let [pod, daemon_set, agents, exec] = ran.calls.as_slice() else {
        panic!("{:?}", ran.calls);
    };
    assert!(pod.starts_with("[get][pod][--namespace][shop][web][--output]"), "{pod}");
    assert!(
        daemon_set.starts_with("[get][daemonset][vscaled][--namespace][vscaled]"),
        "{daemon_set}"
    );
    assert!(agents.starts_with("[get][pods][--namespace][vscaled]"), "{agents}");
    assert!(
        agents.contains("[spec.nodeName=node-1,status.phase=Running]"),
        "{agents}"
    );
    assert_eq!(
        exec,
        "[exec][--namespace][vscaled][vscaled-x2x][--][vscalectl][resize][shop/web][-c][app][--reason]\
         [a load test; $HOME][--dry-run]"
    );
}

#[test]
fn a_bare_name_is_completed_as_by_kubectl() {
    let ran = ONE_NODE.run(&["explain", "web"]);
    assert!(ran.calls[0].starts_with("[get][pod][web][--output]"), "{:?}", ran.calls);
    assert!(
        ran.calls[3].ends_with("[vscalectl][explain][shop/web]"),
        "{:?}",
        ran.calls
    );
    for words in [
        &["-n", "shop", "explain", "web"][..],
        &["-nshop", "explain", "web"],
        &["explain", "web", "-n=shop"],
    ] {
        let ran = ONE_NODE.run(words);
        let pod = "[get][pod][--namespace][shop][web]";
        assert!(ran.calls[0].starts_with(pod), "{words:?}: {:?}", ran.calls);
    }
}

#[test]
fn options_of_kubectl_are_given_to_every_call() {
    let ran = ONE_NODE.run(&[
        "--context=east",
        "--kubeconfig",
        "/tmp/my config",
        "--as=admin",
        "--as-group",
        "system:masters",
        "--as-group=ops",
        "--user=u",
        "--cluster",
        "c",
        "--request-timeout=5s",
        "-s",
        "https://x",
        "release",
        "shop/web",
    ]);
    assert_eq!(ran.calls.len(), 4, "{:?}", ran.calls);
    let given = "[--context=east][--kubeconfig=/tmp/my config][--as=admin][--as-group=system:masters][--as-group=ops][--user=u]\
                 [--cluster=c][--request-timeout=5s][--server=https://x]";
    for call in &ran.calls {
        assert!(call.starts_with(given), "{call}");
    }
    let broken = ONE_NODE.run(&["--context", "a\nb", "get"]);
    assert_eq!((broken.code(), broken.calls.len()), (Some(2), 0));
}

#[test]
fn options_may_follow_the_command_up_to_two_dashes() {
    let words = [
        "resize",
        "web",
        "-n",
        "shop",
        "--ttl=1h",
        "--context",
        "east",
        "--",
        "--user=u",
    ];
    let ran = ONE_NODE.run(&words);
    assert_eq!(ran.code(), Some(0), "{}", ran.complaint());
    assert!(
        ran.calls[0].starts_with("[--context=east][get][pod][--namespace][shop][web]"),
        "{:?}",
        ran.calls
    );
    assert!(
        ran.calls[3].ends_with("[vscalectl][resize][shop/web][--ttl=1h][--user=u]"),
        "{:?}",
        ran.calls
    );
    let ran = ONE_NODE.run(&["release", "-l", "app=web", "--namespace=shop", "--node", "node-1"]);
    let exec = "[vscalectl][release][-l][app=web][--namespace][shop]";
    assert!(ran.calls[2].ends_with(exec), "{:?}", ran.calls);
    let ran = ONE_NODE.run(&["explain", "web", "-n", "shop", "--node=node-1"]);
    assert!(
        ran.calls[2].ends_with("[vscalectl][explain][shop/web]"),
        "{:?}",
        ran.calls
    );
    let ran = ONE_NODE.run(&["get", "-n", "shop"]);
    assert_eq!((ran.code(), ran.calls.len()), (Some(2), 0), "{}", ran.complaint());
}

#[test]
fn with_a_node_the_arguments_are_left_as_they_are() {
    let ran = ONE_NODE.run(&["--node", "node-1", "explain", "containerd-id-prefix", "-o", "json"]);
    assert_eq!(ran.calls.len(), 3, "{:?}", ran.calls);
    assert!(
        ran.calls[2].ends_with("[vscalectl][explain][containerd-id-prefix][-o][json]"),
        "{:?}",
        ran.calls
    );
}

#[test]
fn another_namespace_and_daemon_set_are_used_when_they_are_named() {
    let renamed = Cluster {
        agents: &["scaler-x2x node-1 Running apps/v1 DaemonSet u-1 scaler"],
        ..ONE_NODE
    };
    let ran = renamed.run(&[
        "--agent-namespace",
        "vscaled-system",
        "--agent-daemonset=scaler",
        "--node",
        "node-1",
        "get",
    ]);
    assert_eq!(ran.code(), Some(0), "{}", ran.complaint());
    let [daemon_set, agents, exec] = ran.calls.as_slice() else {
        panic!("{:?}", ran.calls);
    };
    assert!(
        daemon_set.starts_with("[get][daemonset][scaler][--namespace][vscaled-system]"),
        "{daemon_set}"
    );
    assert!(
        agents.starts_with("[get][pods][--namespace][vscaled-system]"),
        "{agents}"
    );
    assert!(
        exec.starts_with("[exec][--namespace][vscaled-system][scaler-x2x]"),
        "{exec}"
    );
}

#[test]
fn a_pod_that_the_daemon_set_does_not_control_is_never_used() {
    let forged: [&'static str; 6] = [
        "decoy node-1 Running",
        "decoy node-1 Running apps/v1 ReplicaSet u-1 vscaled",
        "decoy node-1 Running apps/v1 DaemonSet u-2 vscaled",
        "decoy node-1 Running apps/v1 DaemonSet u-1 another",
        "decoy node-1 Running example.com/v1 DaemonSet u-1 vscaled",
        "decoy node-1 Running apps/v1 DaemonSet u-2 x apps/v1 DaemonSet u-1 vscaled",
    ];
    for decoy in forged {
        let alone = Cluster {
            agents: Vec::leak(vec![decoy]),
            ..ONE_NODE
        };
        let ran = alone.run(&["explain", "shop/web"]);
        assert_eq!(ran.code(), Some(3), "{decoy}: {}", ran.complaint());
        assert!(!ran.calls.iter().any(|call| call.contains("[exec]")), "{:?}", ran.calls);
        let beside = Cluster {
            agents: Vec::leak(vec![decoy, ONE_NODE.agents[0]]),
            ..ONE_NODE
        };
        let ran = beside.run(&["explain", "shop/web"]);
        assert_eq!(ran.code(), Some(0), "{decoy}: {}", ran.complaint());
        assert!(
            ran.calls[3].starts_with("[exec][--namespace][vscaled][vscaled-x2x]"),
            "{:?}",
            ran.calls
        );
    }
}

#[test]
fn two_agents_on_one_node_are_an_error() {
    let two = Cluster {
        agents: &[
            "vscaled-a node-1 Running apps/v1 DaemonSet u-1 vscaled",
            "vscaled-b node-1 Running apps/v1 DaemonSet u-1 vscaled",
        ],
        ..ONE_NODE
    };
    let ran = two.run(&["explain", "shop/web"]);
    assert_eq!(ran.code(), Some(1));
    assert!(ran.complaint().contains("vscaled-a vscaled-b"), "{}", ran.complaint());
    assert!(!ran.calls.iter().any(|call| call.contains("[exec]")), "{:?}", ran.calls);
}

#[test]
fn a_node_need_not_be_named_where_there_is_only_one() {
    let ran = ONE_NODE.run(&["watch"]);
    assert!(ran.calls[2].ends_with("[--][vscalectl][watch]"), "{:?}", ran.calls);
    let two = Cluster {
        agents: &[
            "vscaled-a node-1 Running apps/v1 DaemonSet u-1 vscaled",
            "vscaled-b node-2 Running apps/v1 DaemonSet u-1 vscaled",
        ],
        ..ONE_NODE
    };
    let ran = two.run(&["watch"]);
    assert_eq!(ran.code(), Some(2));
    assert!(
        ran.complaint().contains("--node NODE") && ran.complaint().contains("node-1 node-2"),
        "{}",
        ran.complaint()
    );
}

#[test]
fn it_ends_as_the_command_on_the_node_did() {
    for code in [0, 1, 3] {
        let cluster = Cluster {
            ends_with: code,
            ..ONE_NODE
        };
        assert_eq!(cluster.run(&["explain", "shop/web"]).code(), Some(code.into()));
    }
}

#[test]
fn what_cannot_be_done_is_said_with_what_to_do() {
    let (gone, alone, pending) = (
        Cluster { pod: None, ..ONE_NODE },
        Cluster {
            agents: &[],
            ..ONE_NODE
        },
        Cluster {
            pod: Some("shop/web "),
            ..ONE_NODE
        },
    );
    let nowhere = Cluster {
        daemon_set: "",
        ..ONE_NODE
    };
    let cases: [(Cluster, &[&str], i32, &str); 13] = [
        (nowhere, &["explain", "shop/web"], 1, "--agent-namespace NAME"),
        (gone, &["history", "web"], 1, "one that has ended"),
        (alone, &["explain", "shop/web"], 3, "taints"),
        (pending, &["explain", "shop/web"], 1, "on no node yet"),
        (
            ONE_NODE,
            &["resize", "-c", "app", "shop/web"],
            2,
            "resize NAMESPACE/NAME",
        ),
        (
            ONE_NODE,
            &["decide", "-f", "pods.yaml"],
            2,
            "run vscalectl decide on this machine",
        ),
        (
            ONE_NODE,
            &["oom", "parse", "kernel.log"],
            2,
            "run vscalectl oom parse on this machine",
        ),
        (
            ONE_NODE,
            &["lint", "-f", "pods.yaml"],
            2,
            "run vscalectl lint on this machine",
        ),
        (ONE_NODE, &["top", "--node=n", "--sort=cpu"], 2, "leave it out"),
        (ONE_NODE, &["get", "--sort=cpu"], 2, "leave it out"),
        (ONE_NODE, &["--frobnicate", "get"], 2, "--frobnicate"),
        (ONE_NODE, &["--node"], 2, "needs a value"),
        (ONE_NODE, &[], 2, "--help"),
    ];
    for (cluster, arguments, code, words) in cases {
        let ran = cluster.run(arguments);
        let complaint = ran.complaint();
        assert_eq!(ran.code(), Some(code), "{arguments:?}: {complaint}");
        assert!(
            complaint.starts_with("kubectl vscale: ") || complaint.starts_with("Error from server"),
            "{complaint}"
        );
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
        assert!(!ran.calls.iter().any(|call| call.contains("[exec]")), "{:?}", ran.calls);
    }
}

#[test]
fn help_names_every_option_the_plugin_takes() {
    let ran = ONE_NODE.run(&["--help"]);
    let help = String::from_utf8(ran.output.stdout.clone()).unwrap();
    for option in [
        "--node",
        "--agent-namespace",
        "--agent-daemonset",
        "--namespace",
        "--context",
        "--kubeconfig",
        "--as",
        "--as-group",
        "--user",
        "--cluster",
        "--request-timeout",
    ] {
        assert!(help.contains(option), "{help}");
    }
    assert!(!help.contains("set -eu") && ran.calls.is_empty(), "{help}");
}

#[test]
fn a_commands_help_comes_from_any_agent() {
    let two = Cluster {
        agents: &[
            "vscaled-a node-1 Running apps/v1 DaemonSet u-1 vscaled",
            "vscaled-b node-2 Running apps/v1 DaemonSet u-1 vscaled",
        ],
        ..ONE_NODE
    };
    for (words, asked) in [
        (&["resize", "--help"][..], "[resize][--help]"),
        (&["get", "-h"], "[get][--help]"),
        (&["--help", "explain", "shop/web"], "[explain][shop/web][--help]"),
        (&["help", "oom", "list"], "[oom][list][--help]"),
    ] {
        let ran = two.run(words);
        assert_eq!(
            (ran.code(), ran.calls.len()),
            (Some(0), 3),
            "{words:?}: {}",
            ran.complaint()
        );
        let exec = format!("[exec][--namespace][vscaled][vscaled-a][--][vscalectl]{asked}");
        assert_eq!(ran.calls[2], exec);
    }
    let own = |word| ONE_NODE.run(&[word]).output.stdout;
    assert_eq!(own("help"), own("--help"));
    let none = Cluster {
        agents: &[],
        ..ONE_NODE
    };
    let ran = none.run(&["resize", "--help"]);
    assert_eq!(ran.code(), Some(3));
    assert!(
        ran.complaint().contains("vscalectl resize --help"),
        "{}",
        ran.complaint()
    );
}

/// The candidates for the last of these words, of `kubectl_complete-vscale`.
fn completed(words: &[&str]) -> Vec<String> {
    let directory = TempDir::new().unwrap();
    let kubectl = directory.path().join("kubectl");
    // Each kind has one object, named after the call.
    let answers = "#!/bin/sh\ncase \"$*\" in *=east*) echo \"east-$2\" ;; \
                   *'--namespace shop'*) echo shop-pod ;; *) echo \"$2-1\" ;; esac\n";
    fs::write(&kubectl, answers).unwrap();
    fs::set_permissions(&kubectl, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubectl_complete-vscale"))
        .args(words)
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.pop().as_deref(), Some(":4"), "no file names");
    lines
}

#[test]
fn command_lines_are_completed() {
    for (words, candidates) in [
        (&["ex"][..], &["explain", "export"][..]),
        (&["--nod"], &["--node"]),
        (&["--node", ""], &["nodes-1"]),
        (&["-n", ""], &["namespaces-1"]),
        (&["explain", ""], &["pods-1"]),
        (&["--context", "x", "explain", "shop/"], &["shop/shop-pod"]),
        (&["-n", "shop", "resize", ""], &["shop-pod"]),
        (&["-nshop", "resize", ""], &["shop-pod"]),
        (&["resize", "-n=shop", ""], &["shop-pod"]),
        (&["--namespace=shop", "release", "other"], &[]),
        (&["resize", "web", ""], &[]),
        (&["--context", ""], &[]),
        (&["explain", "-n", ""], &["namespaces-1"]),
        (&["explain", "-n", "shop", ""], &["shop-pod"]),
        (&["--context", "east", "explain", ""], &["east-pods"]),
        (&["explain", "--kubeconfig=east config", "--node", ""], &["east-nodes"]),
        (&["--as=a", "-s", "east", "history", "shop/"], &["shop/east-pods"]),
    ] {
        assert_eq!(completed(words), candidates, "{words:?}");
    }
}

#[test]
fn every_command_of_a_node_is_completed() {
    let help = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let names = listed.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| {
        line.strip_prefix("  ")?
            .split(' ')
            .next()
            .filter(|name| !name.is_empty())
    });
    // Those that the plugin refuses, because they need no node.
    let here = ["completions", "decide", "help", "lint", "plan"];
    let of_nodes: Vec<_> = names.filter(|name| !here.contains(name)).collect();
    assert!(of_nodes.len() > 8, "{of_nodes:?}");
    assert_eq!(completed(&[""]), of_nodes);
}
