//! Calls to a running API server, by whoever runs it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::{Programs, Release, admin};
use crate::support::pause_after;

/// How long pods may take to end. The next test needs what they have of the node.
const PATIENCE: Duration = Duration::from_secs(240);

/// A user of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Has every right.
    Admin,
    /// The agent's service account as deployed, with the rights of its RBAC rules only.
    Agent,
    Kubelet,
    /// A person on call, without rights until a test grants some.
    OnCall,
}

impl User {
    pub(super) const ALL: [Self; 4] = [Self::Admin, Self::Agent, Self::Kubelet, Self::OnCall];

    /// The tokens are no secrets: the API server listens on loopback and lives for one test.
    const fn token(self) -> &'static str {
        match self {
            Self::Admin => "token-of-admin",
            Self::Agent => "token-of-agent",
            Self::Kubelet => "token-of-kubelet",
            Self::OnCall => "token-of-on-call",
        }
    }

    /// A line of kube-apiserver's token file: token, name, UID, groups.
    pub(super) const fn line(self) -> &'static str {
        match self {
            Self::Admin => "token-of-admin,admin,1,system:masters\n",
            Self::Agent => {
                "token-of-agent,system:serviceaccount:vscaled:vscaled,2,\"system:serviceaccounts,system:serviceaccounts:vscaled\"\n"
            }
            Self::Kubelet => "token-of-kubelet,system:node:node-1,3,system:nodes\n",
            Self::OnCall => "token-of-on-call,on-call,4\n",
        }
    }
}

/// An API server on loopback, and the directory of its files.
#[derive(Debug)]
pub(crate) struct Api {
    programs: Programs,
    release: Release,
    port: u16,
    directory: PathBuf,
}

impl Api {
    /// One that runs already, at this port and with its files in a directory.
    pub(super) fn of(programs: Programs, release: Release, port: u16, directory: &Path) -> Self {
        Self {
            programs,
            release,
            port,
            directory: directory.to_owned(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn kubeconfig(&self, user: User) -> PathBuf {
        self.write_kubeconfig(&format!("{user:?}"), user.token())
    }

    fn write_kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        let path = self.file(&format!("{name}.kubeconfig"));
        let text = format!(
            "apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority: '{}'}}}}]
users: [{{name: test, user: {{token: {token}}}}}]
",
            self.port,
            self.file("apiserver.crt").display(),
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// A kubeconfig with a token of the agent's own service account, which must exist. The API server issues the
    /// token.
    pub(crate) fn deployed_kubeconfig(&self) -> PathBuf {
        self.issue("deployed", &json!({}))
    }

    /// The same with a token as the agent's pod of this name has it, which names the pod's node.
    pub(crate) fn kubeconfig_in_pod(&self, pod: &str) -> PathBuf {
        let uid = self.uid(&format!("/api/v1/namespaces/vscaled/pods/{pod}"));
        let object = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid});
        self.issue(pod, &json!({"boundObjectRef": object}))
    }

    fn issue(&self, name: &str, spec: &Value) -> PathBuf {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let path = "/api/v1/namespaces/vscaled/serviceaccounts/vscaled/token";
        let answer = self.send(Method::POST, path, &request);
        self.write_kubeconfig(name, answer["status"]["token"].as_str().unwrap())
    }

    /// The port on loopback.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The certificate and its authority (PEM).
    pub(crate) fn certificate(&self) -> String {
        fs::read_to_string(self.file("apiserver.crt")).unwrap()
    }

    pub(crate) const fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(crate) const fn release(&self) -> Release {
        self.release
    }

    /// Creates or updates an object.
    pub(crate) fn apply(&self, object: &Value) {
        if let Err(refused) = admin::apply(&self.kubeconfig(User::Admin), object) {
            panic!("{object} was refused: {refused}\n{}", self.log());
        }
    }

    /// The answer to an admin's GET of a path, or the error.
    pub(crate) fn try_get(&self, path: &str) -> Result<String, kube::Error> {
        admin::request(&self.kubeconfig(User::Admin), Method::GET, path, None)
    }

    /// The object or list at a path.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.try_get(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_str(&answer).unwrap()
    }

    /// Sends an object to a path and returns the answer.
    pub(crate) fn send(&self, method: Method, path: &str, object: &Value) -> Value {
        let answer = admin::request(&self.kubeconfig(User::Admin), method, path, Some(object));
        serde_json::from_str(&answer.unwrap_or_else(|error| panic!("{path}: {error}"))).unwrap()
    }

    /// Deletes all objects of a collection, and waits until they are gone.
    pub(crate) fn remove_all(&self, collection: &str) -> Result<(), kube::Error> {
        let admin = self.kubeconfig(User::Admin);
        let at_once = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        admin::request(&admin, Method::DELETE, collection, Some(&at_once))?;
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let looked = Instant::now();
            let left: Value = serde_json::from_str(&self.try_get(collection)?).unwrap();
            if left["items"] == json!([]) {
                break;
            }
            std::thread::sleep(pause_after(looked));
        }
        Ok(())
    }

    /// Sends a strategic merge patch with the credentials in a kubeconfig, and returns the API server's complaint.
    pub(crate) fn patch(&self, kubeconfig: &Path, path: &str, patch: &Value) -> Result<String, String> {
        self.request_as(kubeconfig, Method::PATCH, path, Some(patch))
    }

    /// Sends a request with the credentials in a kubeconfig, and returns the answer or the API server's complaint.
    #[allow(clippy::unused_self, reason = "the kubeconfig is one of this API server's")]
    pub(crate) fn request_as(
        &self,
        kubeconfig: &Path,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, String> {
        admin::request(kubeconfig, method, path, body).map_err(|error| error.to_string())
    }

    /// Sends a strategic merge patch as admin, and returns the object or the API server's refusal (a Status).
    pub(crate) fn answer(&self, path: &str, patch: &Value) -> Value {
        match admin::request(&self.kubeconfig(User::Admin), Method::PATCH, path, Some(patch)) {
            Ok(object) => serde_json::from_str(&object).unwrap(),
            Err(kube::Error::Api(status)) => serde_json::to_value(status).unwrap(),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Grants the agent the rights of an overlay.
    pub(crate) fn grant(&self, overlay: &str) {
        self.grant_without(overlay, &[]);
    }

    /// The same without the rules for some resources. The API server takes a moment to refuse them.
    pub(crate) fn grant_without(&self, overlay: &str, resources: &[&str]) {
        let directory = format!("{}/{overlay}", env!("CARGO_MANIFEST_DIR"));
        let rendered = self.kubectl(&["kustomize", &directory], "");
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        for kind in ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"] {
            let object = objects.iter_mut().find(|object| object["kind"] == kind);
            let object = object.unwrap_or_else(|| panic!("{overlay} has no {kind}"));
            if let Some(rules) = object.get_mut("rules").and_then(Value::as_array_mut) {
                for rule in &mut *rules {
                    let granted = rule["resources"].as_array_mut().unwrap();
                    granted.retain(|of| of.as_str().is_none_or(|of| !resources.contains(&of)));
                }
                rules.retain(|rule| rule["resources"] != json!([]));
            }
            self.apply(object);
        }
    }

    pub(crate) fn uid(&self, path: &str) -> String {
        self.get(path)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Writes the status of an object, as its controller does; `collection` is the path of its collection.
    pub(crate) fn put_status(&self, collection: &str, name: &str, status: &Value) {
        let path = format!("{collection}/{name}");
        let mut object = self.get(&path);
        object["status"] = status.clone();
        self.send(Method::PUT, &format!("{path}/status"), &object);
    }

    pub(crate) fn kubectl_program(&self) -> PathBuf {
        self.programs.kubectl()
    }

    /// Runs kubectl as admin with this standard input and returns its output. A failure of kubectl fails the test.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        match self.try_kubectl(User::Admin, arguments, input) {
            Ok(printed) => printed,
            Err(complaint) => panic!("kubectl {arguments:?}: {complaint}"),
        }
    }

    /// Runs kubectl and returns its output or its error message.
    pub(crate) fn try_kubectl(&self, user: User, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut kubectl = Command::new(self.kubectl_program())
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig(user))
            .env("HOME", &self.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        kubectl.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = kubectl.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.try_get("/readyz").is_ok()
    }

    pub(super) fn log(&self) -> String {
        let tail = |name| {
            let log = fs::read_to_string(self.file(name)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            // A Go program that panics prints the reason first, then long stack traces.
            let panic = lines
                .iter()
                .position(|line| line.starts_with("panic") || line.starts_with("fatal error"));
            let from = panic.unwrap_or(lines.len()).min(lines.len().saturating_sub(20));
            lines[from..].iter().take(60).copied().collect::<Vec<_>>().join("\n")
        };
        format!("{}\n{}", tail("etcd.log"), tail("kube-apiserver.log"))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
