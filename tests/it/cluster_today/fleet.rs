//! The fleet from one terminal: which pods were killed this week, and what did vscaled do? Asked of the agents of the deployed
//! DaemonSet, one of which is on a node that never came up.

use serde_json::{Value, json};

use super::first_day::{Day, name};
use super::{APP, GREEDY, LARGER, nothing_restarted};
use crate::support::cluster::{IMAGE, objects};

/// A node without a kubelet.
const ABSENT: &str = "node-2";

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_finds_kills_and_changes() {
    let Some(day) = Day::begin("cluster_today::fleet::kills_and_changes").await else {
        return;
    };
    let scene = &day.scene;
    day.type_all(&[
        // The guard would raise the limit before the kill.
        format!(
            "helm install vscaled deploy/helm --set image.repository={IMAGE} --set observeOnly=false --set config.guard=false"
        ),
        "kubectl -n vscaled rollout status daemonset/vscaled".to_owned(),
        "sudo install -m 755 deploy/kubectl-vscale /usr/local/bin/".to_owned(),
    ]);
    let web = day.runs_command("web", APP, GREEDY).await;
    let other = day.runs_command("other", APP, "while true; do sleep 1000; done").await;
    for pod in [&web, &other] {
        let resized = scene.is_resized(name(pod), "app", &objects::resources(LARGER)).await;
        nothing_restarted(pod, &resized);
        day.agent_says(name(pod), |pod| pod.state == "InSync").await;
    }
    scene.signal(&web, "app");
    let told = async || scene.events(name(&web), "OOMKilled").into_iter().next();
    scene.agent.until("an Event about the kill", told).await;
    let of_web = format!("shop/{}", name(&web));
    let of_other = format!("shop/{}", name(&other));

    // A guest on a busy machine needs more than ten seconds for an answer.
    let ask = |command: &str| day.type_in(&format!("kubectl vscale --deadline 120 {command}"));
    let kills = ask("oom list");
    let lines: Vec<_> = kills.lines().filter(|line| line.contains("shop/")).collect();
    assert_eq!(lines.len(), 1, "{kills}");
    for part in ["node-1", &of_web, "app", "192Mi"] {
        assert!(lines[0].contains(part), "{kills}");
    }
    assert_eq!(ask("oom list shop/deployment/web"), kills);
    assert!(!ask("oom list shop/deployment/other").contains("shop/"));

    let history = ask("history");
    for pod in [&of_web, &of_other] {
        for part in ["recommendation of VPA", "Applied"] {
            let says = |line: &str| line.contains(pod.as_str()) && line.contains(part);
            assert!(history.lines().any(says), "{history}");
        }
    }
    let history = ask("history shop/deployment/web");
    assert!(history.contains(&of_web) && !history.contains(&of_other), "{history}");
    let explained = ask("explain shop/deployment/web");
    assert!(
        explained.contains(&of_web) && explained.contains("192Mi"),
        "{explained}"
    );
    let report = ask("report --since 7d");
    for workload in ["shop/Deployment/web", "shop/Deployment/other"] {
        let row = report.lines().find(|line| line.starts_with(workload)).expect(workload);
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells[1..8], ["1", "100m", "→", "200m", "64Mi", "→", "96Mi"], "{report}");
    }
    let pods = ask("get");
    for pod in [&of_web, &of_other] {
        let row = |line: &str| ["node-1", pod, "InSync"].iter().all(|part| line.contains(part));
        assert!(pods.lines().any(row), "{pods}");
    }

    // Another node joins, whose agent never starts.
    let absent = Absent::join(&day);
    let waits = || {
        let pods = scene.today.api.get("/api/v1/namespaces/vscaled/pods");
        let mut pods = pods["items"].as_array().unwrap().iter();
        let bound = pods.find(|pod| pod["spec"]["nodeName"] == ABSENT)?;
        Some(name(bound).to_owned())
    };
    let agent = scene.agent.until("an agent for the other node", async || waits()).await;
    let (code, printed, complaint) = day.try_in("kubectl vscale --deadline 120 oom list -o json");
    assert_eq!(code, Some(4), "{complaint}");
    let why = format!("no answer from {ABSENT}: the agent's pod {agent} is Pending");
    assert!(complaint.contains(&why), "{complaint}");
    let answer: Value = serde_json::from_str(&printed).unwrap();
    let kill = &answer["kills"][0];
    assert_eq!(
        (&kill["node"], &kill["pod"]["name"]),
        (&json!("node-1"), &json!(name(&web))),
        "{answer:#}"
    );
    let mut nodes = answer["nodes"].as_array().unwrap().iter();
    assert!(
        nodes.any(|node| node["node"] == ABSENT && !node["error"].is_null()),
        "{answer:#}"
    );
    drop(absent);
}

/// A Node object. Dropping the value removes it, with the pods that it has.
struct Absent<'a>(&'a Day);

impl<'a> Absent<'a> {
    fn join(day: &'a Day) -> Self {
        let labels = json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": ABSENT});
        let metadata = json!({"name": ABSENT, "labels": labels});
        let api = &day.scene.today.api;
        api.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));
        let absent = Self(day);
        let has = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let status = json!({"status": {"capacity": has, "allocatable": has}});
        let node = api.answer(&format!("/api/v1/nodes/{ABSENT}/status"), &status);
        assert_eq!(node["status"]["allocatable"], has, "{node:#}");
        absent
    }
}

impl Drop for Absent<'_> {
    fn drop(&mut self) {
        for selected in [
            format!("/api/v1/nodes?fieldSelector=metadata.name%3D{ABSENT}"),
            format!("/api/v1/namespaces/vscaled/pods?fieldSelector=spec.nodeName%3D{ABSENT}"),
        ] {
            if let Err(error) = self.0.scene.today.api.remove_all(&selected) {
                eprintln!("{selected}: {error}");
            }
        }
    }
}
