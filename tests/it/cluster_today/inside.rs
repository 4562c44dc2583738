//! Live objects of a real cluster beside what works inside and around containers: hooks, canary, export, report and lint.

use serde_json::{Value, json};

use super::{APP, LARGER, Scene, WEB, nothing_restarted};
use crate::support::cluster::objects;
use crate::support::vscalectl;

const SECOND: &str = "web-5c4f-y";

impl Scene {
    /// Makes a VPA with this annotation. Returns the share of canaries that one of the two pods belongs to and the other does not,
    /// with their names in this order.
    fn divide(&self, pods: [&Value; 2]) -> (u64, [String; 2]) {
        loop {
            self.make_vpa("InPlaceOrRecreate");
            let vpa = self.today.api.uid(&format!("{}/web", self.vpas()));
            let mut order = pods.map(|pod| {
                let [uid, name] = ["uid", "name"].map(|field| pod["metadata"][field].as_str().unwrap());
                let hash = crc32fast::hash(format!("{vpa}{uid}").as_bytes());
                ((u64::from(hash) * 100) >> 32, name.to_owned())
            });
            order.sort();
            let [(first, one), (second, other)] = order;
            if first < second {
                return (first + 1, [one, other]);
            }
            self.delete(&self.vpas(), "web");
        }
    }

    /// Runs vscalectl at the agent's socket. Returns what it prints.
    fn says(&self, arguments: &[&str]) -> String {
        let socket = self.agent.socket();
        let output = vscalectl(&[arguments, &["--socket", socket.to_str().unwrap()]].concat(), "");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test]
async fn hooks_canary_export_and_lint_of_live_objects() {
    let Some(mut scene) = Scene::new("cluster_today::inside").await else {
        return;
    };
    let hook = r#"["/bin/sh", "-c", "echo {old} {new} >/dev/shm/told"]"#;
    let env = json!([{"name": "VSCALED_AFTER_GROW", "value": hook}, {"name": "JAVA_TOOL_OPTIONS", "value": "-Xmx48m"}]);
    let spec = json!({"containers": [{"name": "app", "resources": objects::resources(APP), "env": env}]});
    for name in [WEB, SECOND] {
        scene.make_pod(name, &spec);
    }
    let pods = [scene.runs(WEB).await, scene.runs(SECOND).await];
    scene.is_confined(&pods[0], "app");
    let namespace = scene.namespace.clone();
    scene.agent.set("--hooks", &namespace);
    scene.agent.start().await;
    let (percent, [first, other]) = scene.divide([&pods[0], &pods[1]]);
    let share = |percent: u64| json!({"metadata": {"annotations": {"vscaled.io/canary": format!("{percent}%")}}});
    let merge = |patch: &Value| {
        let namespace = format!("--namespace={namespace}");
        let patch = [
            "patch",
            "vpa",
            "web",
            &namespace,
            "--type=merge",
            "--patch",
            &patch.to_string(),
        ];
        scene.today.api.kubectl(&patch, "");
    };
    merge(&share(percent));
    scene.recommend(&[("app", LARGER)]);
    scene.is_resized(&first, "app", &objects::resources(LARGER)).await;
    let waits = async || scene.agent.pod(&other).await.filter(|pod| pod.reason == "CanaryFirst");
    scene.agent.until("the other pod to wait", waits).await;
    assert_eq!(
        scene.object(&other)["spec"]["containers"][0]["resources"],
        objects::resources(APP)
    );
    merge(&share(100));
    scene.is_resized(&other, "app", &objects::resources(LARGER)).await;

    // The hook has told both containers, once the kubelet had done its part.
    for before in &pods {
        let name = before["metadata"]["name"].as_str().unwrap();
        let ran = async || {
            let history = scene.agent.history().await;
            let mut hooks = history
                .iter()
                .filter(|change| change.name == name && change.cause.starts_with("hook after-grow"));
            hooks.next().map(|hook| hook.outcome.clone())
        };
        assert_eq!(scene.agent.until("the hook to end", ran).await, "HookRan");
        let cgroup = scene.cgroup(before, "app").under("/sys/fs/cgroup".as_ref());
        let pids = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        let pid = pids.lines().next().unwrap();
        let told = std::fs::read_to_string(format!("/proc/{pid}/root/dev/shm/told")).unwrap();
        assert_eq!(told, format!("{} {}\n", 128 << 20, 192 << 20));
        let after = scene.object(name);
        nothing_restarted(before, &after);
    }

    let workload = format!("{namespace}/Deployment/web");
    let report = scene.says(&["report"]);
    let row = report
        .lines()
        .find(|line| line.starts_with(&workload))
        .expect(&workload);
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        cells[1..8],
        ["2", "200m", "→", "400m", "128Mi", "→", "192Mi"],
        "{report}"
    );

    // The API server takes what is exported, and the workload has it then.
    for format in ["patch", "vpa"] {
        let exported = scene.says(&["export", "--format", format]);
        let dry_run = if format == "vpa" {
            "--dry-run=server"
        } else {
            "--dry-run=none"
        };
        let apply = ["apply", "--server-side", "--force-conflicts", dry_run, "--filename=-"];
        scene.today.api.kubectl(&apply, &exported);
    }
    let deployments = scene.collection("apis/apps/v1") + "/deployments/web";
    let template = scene.today.api.get(&deployments)["spec"]["template"].clone();
    assert_eq!(
        template["spec"]["containers"][0]["resources"],
        objects::resources(LARGER),
        "{template:#}"
    );

    let list = ["get", "pods", "--namespace", &namespace, "--output=yaml"];
    let live = scene.today.api.kubectl(&list, "");
    let linted = vscalectl(&["lint", "--file", "-", "--output", "json"], &live);
    assert_eq!(linted.status.code(), Some(1), "{linted:?}");
    let linted: Value = serde_json::from_slice(&linted.stdout).unwrap();
    let findings = linted["findings"].as_array().unwrap().iter();
    let found: Vec<_> = findings
        .map(|finding| (&finding["workload"], &finding["rule"]))
        .collect();
    assert_eq!(found.len(), 2, "one of each pod: {linted:#}");
    assert!(found.iter().all(|(_, rule)| *rule == "FixedHeap"), "{linted:#}");
}
