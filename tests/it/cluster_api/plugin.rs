//! `kubectl vscale` with the real kubectl, from a pod's name at a real API server to the agent's answer to vscalectl.
//!
//! `kubectl exec` needs a kubelet, and these tests have none. A script between the plugin and kubectl runs the
//! command of an exec on this machine, next to the agent, and forwards every other call to kubectl. One test uses the
//! real exec and checks that the request reaches the node.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::{NODE, Scene};
use crate::support::cluster::User;

/// The result of a command.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    complaint: String,
}

/// For an exec, writes down the arguments before `--` and runs the command after it. Forwards every other call to
/// kubectl.
const KUBECTL: &str = r#"#!/bin/sh
case " $* " in
  *' exec '*)
    while [ "$1" != -- ]; do printf '%s ' "$1" >>"$EXECUTED"; shift; done
    shift
    exec "$@"
    ;;
esac
exec "$KUBECTL" "$@"
"#;

impl Scene {
    /// Adds the agent's DaemonSet and its pods on two nodes, of which the pod on the other node has not started. Adds
    /// pods of tenants with the agent's label, in the agent's namespace and in another.
    fn with_agents_pods(self) -> Self {
        let labels = json!({"app.kubernetes.io/name": "vscaled"});
        let template = json!({
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "vscaled", "image": "none"}]},
        });
        self.cluster.apply(&json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "vscaled", "namespace": "vscaled"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }));
        let uid = self.cluster.uid("/apis/apps/v1/namespaces/vscaled/daemonsets/vscaled");
        let owner = |uid: &str| {
            json!([
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "another-owner", "uid": "u"},
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "vscaled", "uid": uid, "controller": true},
            ])
        };
        let pods = [
            ("vscaled", "decoy-a", NODE, "Running", json!([])),
            ("vscaled", "decoy-b", NODE, "Running", owner("another")),
            ("test", "decoy-c", NODE, "Running", owner(&uid)),
            ("vscaled", "vscaled-a", NODE, "Running", owner(&uid)),
            ("vscaled", "vscaled-b", "node-2", "Pending", owner(&uid)),
        ];
        for (namespace, name, node, phase, owners) in pods {
            self.cluster.apply(&json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owners},
                "spec": {"nodeName": node, "containers": [{"name": "vscaled", "image": "none"}]},
            }));
            let collection = format!("/api/v1/namespaces/{namespace}/pods");
            self.cluster.put_status(&collection, name, &json!({"phase": phase}));
        }
        self
    }

    fn plugin(&self, user: User, arguments: &[&str]) -> Ran {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("kubectl"), KUBECTL).unwrap();
        fs::set_permissions(directory.path().join("kubectl"), Permissions::from_mode(0o755)).unwrap();
        self.plugin_in(directory.path(), directory.path(), user, arguments)
    }

    /// Runs the plugin with the kubectl of one directory, which may write into `home`.
    fn plugin_in(&self, kubectl: &Path, home: &Path, user: User, arguments: &[&str]) -> Ran {
        let vscalectl = Path::new(env!("CARGO_BIN_EXE_vscalectl")).parent().unwrap();
        let system = std::env::var("PATH").unwrap();
        let output = Command::new("sh")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubectl-vscale"))
            .args(arguments)
            .env(
                "PATH",
                format!("{}:{}:{system}", kubectl.display(), vscalectl.display()),
            )
            .env("HOME", home)
            .env("KUBECONFIG", self.cluster.kubeconfig(user))
            .env("KUBECTL", self.cluster.kubectl_program())
            .env("EXECUTED", home.join("executed"))
            .env("VSCALED_SOCKET", self.agent.socket())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let executed = fs::read_to_string(home.join("executed")).unwrap_or_default();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran = Ran {
            code: output.status.code(),
            out: text(output.stdout),
            complaint: text(output.stderr),
        };
        assert!(
            executed.is_empty() || executed == "exec --namespace vscaled vscaled-a ",
            "{executed}: {ran:?}"
        );
        ran
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_on_the_pods_node_answers() {
    let Some(scene) = Scene::started("cluster_api::plugin::the_agent_on_the_pods_node").await else {
        return;
    };
    let scene = scene.with_agents_pods();
    let ran = scene.plugin(User::Admin, &["explain", "test/web-5c4f-x"]);
    assert!(ran.code == Some(0) && ran.out.contains("test/web-5c4f-x"), "{ran:?}");

    let resize = [
        "-n",
        "test",
        "resize",
        "web-5c4f-x",
        "-c",
        "app",
        "--memory-limit",
        "256Mi",
    ];
    let ran = scene.plugin(
        User::Admin,
        &[&resize[..], &["--reason", "a load test; $HOME"]].concat(),
    );
    assert!(ran.code == Some(0) && ran.out.contains("Applied"), "{ran:?}");
    let pod = scene.agent.pod("web-5c4f-x").await.unwrap();
    assert_eq!(pod.r#override.unwrap().reason, "a load test; $HOME");

    // Only one of the agent's pods runs. The other one's node is named, and so is the exit code for that.
    let ran = scene.plugin(User::Admin, &["get", "overrides"]);
    assert!(ran.code == Some(4) && ran.out.contains("test/web-5c4f-x"), "{ran:?}");
    assert!(
        ran.complaint
            .contains("no answer from node-2: the agent's pod vscaled-b is Pending"),
        "{ran:?}"
    );
    let ran = scene.plugin(User::Admin, &["explain", "test/nothing"]);
    assert!(ran.code == Some(1) && ran.complaint.contains("NotFound"), "{ran:?}");
    let ran = scene.plugin(User::Admin, &["--node", "node-2", "get"]);
    assert!(
        ran.code == Some(3) && ran.complaint.contains("runs on node node-2"),
        "{ran:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_may_look_in_two_namespaces_only_needs_no_option() {
    let Some(scene) = Scene::started("cluster_api::plugin::somebody_who_may_look").await else {
        return;
    };
    let scene = scene.with_agents_pods();
    let rules = [
        (
            "test",
            json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
        ),
        (
            "vscaled",
            json!([
                {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
                {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
            ]),
        ),
    ];
    for (namespace, rules) in rules {
        let metadata = json!({"name": "on-call", "namespace": namespace});
        scene.cluster.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules,
        }));
        scene.cluster.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "on-call"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "on-call"}],
        }));
    }
    let explain = ["explain", "test/web-5c4f-x"];
    // The API server takes a moment to apply new rules.
    let may = async || Some(scene.plugin(User::OnCall, &explain)).filter(|ran| ran.code == Some(0));
    let ran = scene.agent.until("the rules to be heeded", may).await;
    assert!(ran.out.contains("test/web-5c4f-x"), "{ran:?}");

    // The real exec: kubectl accepts the arguments, the API server authorizes this user, and then looks for the
    // node's kubelet.
    let home = tempfile::tempdir().unwrap();
    let kubectl = scene.cluster.kubectl_program();
    let ran = scene.plugin_in(kubectl.parent().unwrap(), home.path(), User::OnCall, &explain);
    assert!(
        ran.code == Some(1) && ran.complaint.contains("no preferred addresses found"),
        "{ran:?}"
    );
}
