//! Promise: `vscalectl top` shows the use and the limits of pods as they change, and restores the terminal.
//!
//! The real agent runs with bare cgroups whose processes use resources, on a pseudo-terminal. Needs root; the same on
//! cgroup v1 and v2.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use vscaled::model::CgroupVersion;

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};
use crate::support::terminal::Terminal;
use crate::support::victims::{TOO_MUCH, holding, victim, was_killed};

/// Limits of a fifth of a processor and of 128 MiB.
const APP: Amounts = Amounts::doubled(100, 64);

/// Two pods, one of them with a VPA, and an agent that knows them.
struct Scene {
    agent: Agent,
    pod: BarePod,
    node: BareNode,
    _accounting: Vec<Accounting>,
}

/// A cgroup of v1's cpuacct controller, where that is mounted apart from the cpu controller, unlike on a kubelet's
/// node.
struct Accounting(PathBuf);

impl Drop for Accounting {
    fn drop(&mut self) {
        // The processes have ended, and the kernel takes a moment to remove them from the cgroup.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Scene {
    async fn new() -> Self {
        let mut node = BareNode::new();
        let kubepods = node.kubepods();
        let pod = node.run(
            "web",
            "0a1b2c3d-0000-4000-8000-000000000041",
            &[("app", APP), ("side", APP)],
        );
        let other = node.run("db", "0a1b2c3d-0000-4000-8000-000000000042", &[("main", APP)]);
        let mut agent = Agent::new(&kubepods);
        agent.write("pod.yaml", &pod.manifest());
        agent.write("other.yaml", &other.manifest());
        agent.write("vpa.yaml", VPA);
        agent.start().await;
        agent.reaches("web", "InSync").await;
        Self {
            agent,
            pod,
            node,
            _accounting: Vec::new(),
        }
    }

    /// `vscalectl top` with these arguments.
    fn top(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
        command.arg("--socket").arg(self.agent.socket());
        command.args(["top", "--interval", "300ms"]).args(arguments);
        command
    }

    fn on_a_terminal(&self) -> Terminal {
        Terminal::run(&self.top(&[]), 30, 150)
    }

    /// Keeps a processor busy in the container `app`.
    fn is_busy(&mut self) {
        let cgroup = self.pod.containers["app"].cgroup.clone();
        let mut command = "while :; do :; done".to_owned();
        let cpu = &self.node.cgroups().directories(&cgroup)[0];
        if self.node.cgroups().version() == CgroupVersion::V1 && !cpu.join("cpuacct.usage").exists() {
            let mount = PathBuf::from("/sys/fs/cgroup/cpuacct");
            let apart = cgroup.under(&mount);
            fs::create_dir_all(&apart).unwrap();
            command = format!("echo $$ >{}/cgroup.procs; {command}", apart.display());
            let parents = apart.ancestors().take_while(|path| **path != mount);
            self._accounting = parents.map(|path| Accounting(path.to_owned())).collect();
        }
        self.node.spawn(&cgroup, &command);
    }
}

/// Whether a line of the screen begins with a text.
fn has_line(text: &str, begin: &str) -> bool {
    text.lines().any(|line| line.starts_with(begin))
}

const VPA: &str = "apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: web, namespace: test}
spec:
  targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web}
  updatePolicy: {updateMode: InPlaceOrRecreate}
status:
  recommendation:
    containerRecommendations:
    - containerName: app
      target: {cpu: 150m, memory: 96Mi}
      lowerBound: {cpu: 120m, memory: 80Mi}
      upperBound: {cpu: 600m, memory: 1Gi}
";

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_use_limits_throttling_changes_and_kills_as_they_happen() {
    let mut scene = Scene::new().await;
    let mut top = scene.on_a_terminal();
    top.shows(&[
        "test/web",
        "  app",
        "  side",
        "test/db",
        "InSync",
        "2 pods",
        "sorted by name",
        "q quit",
    ]);
    scene
        .node
        .spawn(&scene.pod.containers["app"].cgroup, &holding(50 << 20));
    scene.is_busy();
    // The limit is three tenths of a processor at first, which a busy loop uses up.
    top.until("use and throttling", |text| {
        let line = text.lines().find(|line| line.starts_with("  app"));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        let used = |part: &str| words.iter().any(|word| word.contains(part) && !word.starts_with('-'));
        let throttled = words
            .iter()
            .filter_map(|word| word.strip_suffix('%')?.parse::<u64>().ok());
        used("m/") && used("Mi/192Mi") && throttled.max() > Some(10)
    });
    // Moves down to the container in the fourth row; its numbers are shown below.
    top.press("jjj");
    top.shows(&[
        "test/web app",
        "request 100m  target 150m  bounds 120m..600m  limit",
        "bounds 80Mi..1024Mi",
    ]);
    // The guard gives a temporary limit.
    top.shows(&["(temporary) until 2", "1 temporary limits"]);
    let change = scene
        .agent
        .resize(scene.pod.limits_by_hand(vscaled::control::proto::Amounts {
            cpu: Some("400m".to_owned()),
            memory: None,
        }));
    assert_eq!(change.await.unwrap().outcome, "Applied");
    top.shows(&["m/400m", "changed 2", "Applied"]);
    was_killed(victim(
        scene.node.cgroups(),
        &scene.pod.containers["side"].cgroup,
        TOO_MUCH,
    ));
    top.shows(&["test/web  OOM kill  side: "]);
    top.press("q");
    assert_eq!(top.ends().code(), Some(0));
    top.is_restored();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_sort_filter_and_help() {
    let scene = Scene::new().await;
    let mut top = scene.on_a_terminal();
    top.shows(&["test/web", "test/db"]);
    top.press("s");
    top.shows(&["sorted by cpu"]);
    top.press("/b/d");
    top.shows(&["filter: b/d█"]);
    top.until("nothing to fit", |text| !has_line(text, "test/"));
    top.press("\u{7f}\u{7f}\u{7f}t/db\r");
    top.until("the filter", |text| {
        has_line(text, "test/db") && !has_line(text, "test/web")
    });
    // A terminal treats a character right after an Escape as part of one key.
    top.press("\u{1b}");
    top.until("all pods", |text| {
        has_line(text, "test/db") && has_line(text, "test/web")
    });
    top.press("c");
    top.until("pods alone", |text| {
        has_line(text, "test/web") && !has_line(text, "  side")
    });
    top.press("?");
    top.shows(&["It changes nothing", "temporary limit"]);
    top.press("qq");
    assert_eq!(top.ends().code(), Some(0));
    top.is_restored();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_after_signals_and_when_the_agent_goes() {
    let mut scene = Scene::new().await;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut top = scene.on_a_terminal();
        top.shows(&["test/web"]);
        assert!(top.is_taken());
        top.signal(signal);
        assert_eq!(top.ends().code(), Some(0), "{signal}");
        top.is_restored();
    }
    let mut top = scene.on_a_terminal();
    top.shows(&["test/web"]);
    scene.agent.stop();
    assert_eq!(top.ends().code(), Some(3));
    top.is_restored();
    top.shows(&["vscalectl: "]);
    let mut top = scene.on_a_terminal();
    assert_eq!(top.ends().code(), Some(3));
    top.is_restored();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_terminal_shows_what_fits() {
    let scene = Scene::new().await;
    let mut top = Terminal::run(&scene.top(&[]), 5, 20);
    let text = top.shows(&["POD", "test/db"]);
    assert!(text.lines().count() <= 5, "{text}");
    top.press("\u{3}");
    assert_eq!(top.ends().code(), Some(0));
    top.is_restored();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_it_is_a_table_or_json() {
    let scene = Scene::new().await;
    let output = scene.top(&["web"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("POD  ") && text.contains("test/web") && !text.contains("test/db"),
        "{text}"
    );
    assert!(text.contains("120m..600m") && !text.contains('\u{1b}'), "{text}");
    let output = scene.top(&["-o", "json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let usage = json["usage"].as_array().unwrap();
    let app = usage.iter().find(|line| line["container"] == "app").unwrap();
    assert_eq!(app["cpu"]["limit"], "300m", "{app}");
    assert_eq!(app["memory"]["upperBound"], "1Gi", "{app}");
    assert!(app["memory"]["used"].is_string(), "{app}");
}
