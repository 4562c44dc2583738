//! A real kubelet runs the DaemonSet's pod with the shipped user, capabilities, seccomp profile, mounts, probes,
//! service account and configuration. The tests change only what other clusters of this machine share with this one: its
//! ports and cgroups.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{objects, rendered, the};
use crate::cluster_kubelet::{LARGER, Scene, WEB};
use crate::support::cluster::{NODE, User, free_port, objects as cluster_objects};
use crate::support::http;
use crate::support::image::{agent_archive, output};
use crate::support::skipped;
use crate::support::terminal::Terminal;

const PATIENCE: Duration = Duration::from_secs(120);

/// `linux/capability.h`.
const CAP_SYSLOG: u32 = 34;

const POD: &str = "/api/v1/namespaces/vscaled/pods/vscaled-x";
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/vscaled/daemonsets/vscaled";

#[tokio::test(flavor = "multi_thread")]
async fn it_resizes_with_no_more_rights_than_it_is_given() {
    let Some(node) = Node::new("cluster_deploy::agent_in_a_pod::it_resizes").await else {
        return;
    };
    node.deploy("deploy/base");
    node.resizes().await;
    assert_eq!(node.capabilities(), 1 << CAP_SYSLOG, "the agent has other capabilities");
    node.until("the kernel's log to be read without the device", || {
        node.problems("kills") == Some(0)
    })
    .await;
    node.answers_on_the_node();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hierarchies_are_enough_on_cgroup_v1() {
    const NAME: &str = "cluster_deploy::agent_in_a_pod::two_hierarchies";
    if !Path::new("/sys/fs/cgroup/memory").exists() {
        return skipped(NAME, "this machine has cgroup v2");
    }
    let Some(node) = Node::new(NAME).await else { return };
    node.deploy("deploy/overlays/cgroup-v1");
    node.resizes().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernels_log_is_read_where_the_overlay_gives_access_to_it() {
    const NAME: &str = "cluster_deploy::agent_in_a_pod::the_kernels_log";
    if fs::read_link("/proc/self/ns/pid").unwrap() != Path::new("pid:[4026531836]") {
        return skipped(NAME, "this machine's process ids are not those of the kernel's log");
    }
    let Some(node) = Node::new(NAME).await else { return };
    node.deploy("deploy/overlays/kernel-log");
    node.resizes().await;
    node.until("nothing to be in the way of explaining kills", || {
        node.problems("kills") == Some(0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_vscale_shows_top_on_a_terminal_and_without_one() {
    const NAME: &str = "cluster_deploy::agent_in_a_pod::kubectl_vscale_shows_top";
    // The API server serves on this address of the machine with its own certificate.
    let Some(node) = Node::configured(NAME, &json!({"address": "0.0.0.0"})).await else {
        return;
    };
    if !node.has_address() {
        return skipped(
            NAME,
            "this machine has no address but loopback, at which no kubelet is known",
        );
    }
    node.deploy("deploy/base");
    node.resizes().await;

    let table = node.kubectl_vscale(&["--node", NODE, "top"]).output().unwrap();
    let text = String::from_utf8(table.stdout.clone()).unwrap();
    assert!(table.status.success() && text.starts_with("POD  "), "{table:?}");
    assert!(
        text.contains(&format!("test/{WEB}")) && !text.contains('\u{1b}'),
        "{text}"
    );

    let mut top = Terminal::run(&node.kubectl_vscale(&["--node", NODE, "top"]), 30, 150);
    // The screen shows the recommended limits, and has the size of this terminal.
    top.shows(&[&format!("test/{WEB}"), "  app", "  side", "/256Mi", "InSync"]);
    assert!(top.is_taken());
    top.press("/web\r");
    top.until("the agent's own pod to be left out", |text| {
        text.contains(WEB) && !text.contains("vscaled/vscaled-x")
    });
    top.press("q");
    assert_eq!(top.ends().code(), Some(0));
    top.is_restored();
}

/// A node with a pod to resize.
struct Node {
    scene: Scene,
    http: u16,
}

impl Node {
    async fn new(test: &str) -> Option<Self> {
        Self::configured(test, &json!({})).await
    }

    /// `kubelet` adds fields to the kubelet's configuration.
    async fn configured(test: &str, kubelet: &Value) -> Option<Self> {
        let scene = Scene::configured(test, kubelet).await?;
        scene
            .containerd
            .import_archive(agent_archive, &["vscaled:latest"])
            .await;
        Some(Self {
            scene,
            http: free_port(),
        })
    }

    /// Applies an overlay and creates its pod for this node, as the DaemonSet controller does.
    fn deploy(&self, overlay: &str) {
        let cluster = &self.scene.cluster;
        let text = rendered(&cluster.kubectl_program(), overlay);
        cluster.kubectl(&["apply", "--filename=-"], &text);
        // A cluster's controllers create this object in every namespace.
        cluster.apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kube-root-ca.crt", "namespace": "vscaled"},
            "data": {"ca.crt": cluster.certificate()},
        }));
        let objects = objects(&text);
        let template = &the("DaemonSet", &objects)["spec"]["template"];
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"],
        });
        pod["metadata"]["name"] = json!("vscaled-x");
        pod["metadata"]["namespace"] = json!("vscaled");
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "vscaled", "uid": cluster.uid(DAEMON_SET), "controller": true,
        }]);
        self.settle_in(&mut pod["spec"]);
        cluster.apply(&pod);
    }

    /// Adapts a pod spec to a machine with other clusters beside this one, and without controllers.
    fn settle_in(&self, spec: &mut Value) {
        spec["nodeName"] = json!(NODE);
        // The admission plugin for service accounts, which adds this volume, does not run.
        spec["volumes"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "token", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]}}));
        let agent = &mut spec["containers"][0];
        agent["volumeMounts"].as_array_mut().unwrap().push(json!({
            "name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true,
        }));
        agent["ports"][0]["containerPort"] = json!(self.http);
        for probe in ["readinessProbe", "livenessProbe"] {
            agent[probe]["httpGet"]["host"] = json!("127.0.0.1");
        }
        // The tests' pods are not below the root cgroup, and there is no service network.
        let kubepods = self
            .scene
            .containerd
            .cgroups()
            .make_everywhere()
            .child("kubepods")
            .unwrap();
        for (name, value) in [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1".to_owned()),
            ("KUBERNETES_SERVICE_PORT", self.scene.cluster.port().to_string()),
            ("VSCALED_HTTP_ADDRESS", format!("127.0.0.1:{}", self.http)),
            ("VSCALED_KUBEPODS", kubepods.to_string()),
        ] {
            agent["env"]
                .as_array_mut()
                .unwrap()
                .push(json!({"name": name, "value": value}));
        }
    }

    /// Waits until the kubelet's probe reports the agent ready, and the containers have a recommendation.
    async fn resizes(&self) {
        let scene = &self.scene;
        let ready = || {
            let conditions = self.status()["conditions"].clone();
            let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            conditions.as_array().is_some_and(|all| all.iter().any(is_ready))
        };
        self.until("the agent's pod to be ready", ready).await;
        scene.cluster.apply(&cluster_objects::vpa("Recreate"));
        scene.recommend(&LARGER);
        let web = scene.runs(WEB).await;
        self.until("the recommended values", || scene.holds(&web, &LARGER))
            .await;
        self.until("everything but the explanation of kills to be in order", || {
            self.has_nothing_pending()
        })
        .await;
    }

    /// Whether the kubelet reports an address of the node.
    fn has_address(&self) -> bool {
        let addresses = "--output=jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
        !self
            .scene
            .cluster
            .kubectl(&["get", "node", NODE, addresses], "")
            .is_empty()
    }

    /// `kubectl vscale` with the real kubectl, run by a cluster administrator.
    fn kubectl_vscale(&self, arguments: &[&str]) -> Command {
        let (cluster, kubectl) = (&self.scene.cluster, self.scene.cluster.kubectl_program());
        let (path, system) = (kubectl.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("env");
        command
            .arg(format!("PATH={path}:{system}"))
            .arg(format!("HOME={}", cluster.directory().display()))
            .arg(format!("KUBECONFIG={}", cluster.kubeconfig(User::Admin).display()))
            .args(["sh", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubectl-vscale")])
            .args(arguments);
        command
    }

    /// Checks that the socket is in a directory of the node that only root can enter.
    fn answers_on_the_node(&self) {
        let socket = self.scene.containerd.deployed_socket();
        assert_eq!(
            fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode() & 0o7777,
            0o700
        );
        let answer = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
            .args(["get", "pods", "-o", "json", "--socket"])
            .arg(socket)
            .output()
            .unwrap();
        assert!(answer.status.success(), "{answer:?}");
    }

    /// Whether the agent reports no problem, no runtime sync is pending, and no pod waits.
    fn has_nothing_pending(&self) -> bool {
        ["node", "manifests", "state"]
            .iter()
            .all(|with| self.problems(with) == Some(0))
            && self.metric(r#"vscaled_pods{state="owed"}"#) == Some(0)
    }

    /// The number of problems of one kind.
    fn problems(&self, with: &str) -> Option<u64> {
        self.metric(&format!("vscaled_problems{{with=\"{with}\"}}"))
    }

    /// The value of a metric, by its name and labels as served.
    fn metric(&self, name: &str) -> Option<u64> {
        let (_, text) = http::get(([127, 0, 0, 1], self.http).into(), "/metrics")?;
        text.lines()
            .find_map(|line| line.strip_prefix(name))?
            .trim()
            .parse()
            .ok()
    }

    /// Waits until a condition holds.
    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain for {what}: {}\n{}",
                self.status(),
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn status(&self) -> Value {
        self.scene.cluster.get(POD)["status"].clone()
    }

    /// The id of the agent's container.
    fn container(&self) -> Option<String> {
        let status = self.status();
        let id = status["containerStatuses"][0]["containerID"].as_str()?;
        Some(id.trim_start_matches("containerd://").to_owned())
    }

    /// The effective capabilities of the agent's process, as a bit mask.
    fn capabilities(&self) -> u64 {
        let pid = self.scene.containerd.pid(&self.container().unwrap());
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    /// The agent's log, as the kubelet stores it.
    fn log(&self) -> String {
        let find = "cat /var/log/pods/vscaled_vscaled-x_*/agent/*.log 2>&1 || true";
        output(self.scene.containerd.beside("sh").args(["-c", find]))
    }
}
