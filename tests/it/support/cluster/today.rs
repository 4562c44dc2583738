//! A cluster of a Kubernetes that resizes in place, with one node. A run's tests share one; a test that breaks parts
//! boots its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vscaled::cgroup::{CgroupDir, Hierarchy};
use vscaled::model::{CgroupPath, Settings};

use super::api::Api;
use super::{ApiServer, Kubelet, NODE, Programs, Release, User, has_systemd_driver};
use crate::support::agent::Agent;
use crate::support::containerd::{Containerd, OciRuntime};
use crate::support::{image, pause_after, scratch};

const PATIENCE: Duration = Duration::from_secs(400);

/// The variable that names the description of the shared cluster.
const SHARED: &str = "VSCALED_TEST_CLUSTER";

/// The repository of the image that [`Today::import_agent`] imports, with the chart's version as its tag.
pub(crate) const IMAGE: &str = "docker.io/library/vscaled";

/// Where the parts of a cluster are.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Places {
    port: u16,
    api_server: PathBuf,
    containerd_socket: PathBuf,
    /// The socket of the agent that a DaemonSet runs.
    deployed_socket: PathBuf,
    kubelet: PathBuf,
    kubepods: String,
    logs: Vec<PathBuf>,
}

/// Parts that end with this value, in this order.
pub(crate) struct Parts {
    pub(crate) kubelet: Kubelet,
    pub(crate) server: ApiServer,
    pub(crate) containerd: Containerd,
}

/// A running cluster.
pub(crate) struct Today {
    pub(crate) api: Api,
    places: Places,
    /// The parts of a cluster that is not shared.
    pub(crate) own: Option<Parts>,
}

impl Today {
    /// The run's shared cluster, or an own one where a test runs alone.
    pub(crate) async fn shared(test: &str) -> Option<Self> {
        match std::env::var_os(SHARED) {
            Some(description) => Some(Self::attach(test, Path::new(&description))?),
            None => Self::boot(test, &json!({})).await,
        }
    }

    /// Boots a cluster with the agent's rights; `kubelet` adds fields to the kubelet's configuration.
    pub(crate) async fn boot(test: &str, kubelet: &Value) -> Option<Self> {
        let today = Self::bare(test, kubelet).await?;
        today.api.grant("deploy/base");
        Some(today)
    }

    /// Boots a cluster that nobody has used yet.
    pub(crate) async fn bare(test: &str, kubelet: &Value) -> Option<Self> {
        let server = ApiServer::start_for_pods(test)?;
        let containerd = Containerd::enclosed(OciRuntime::Runc, &server).await;
        let kubepods = match has_systemd_driver() {
            true => CgroupPath::new("/kubepods.slice").unwrap(),
            false => containerd.cgroups().make_everywhere().child("kubepods").unwrap(),
        };
        let mut kubelet = Kubelet::new(&server, &containerd, kubelet);
        kubelet.launch(&containerd);
        let places = Places {
            port: server.port(),
            api_server: server.directory().to_owned(),
            containerd_socket: containerd.socket(),
            deployed_socket: containerd.deployed_socket(),
            kubelet: containerd.kubelet_directory(),
            kubepods: kubepods.to_string(),
            logs: vec![
                kubelet.log_file(),
                containerd.file("log"),
                server.directory().join("kube-apiserver.log"),
            ],
        };
        let api = Api::of(
            server.programs().clone(),
            Release::Today,
            places.port,
            &places.api_server,
        );
        let parts = Parts {
            kubelet,
            server,
            containerd,
        };
        let today = Self {
            api,
            places,
            own: Some(parts),
        };
        today.is_ready().await;
        Some(today)
    }

    fn attach(test: &str, description: &Path) -> Option<Self> {
        let programs = Programs::of(Release::Today, test)?;
        let places: Places = serde_json::from_slice(&fs::read(description).unwrap()).unwrap();
        let api = Api::of(programs, Release::Today, places.port, &places.api_server);
        Some(Self { api, places, own: None })
    }

    /// Runs a shell command whose tests use this cluster, and whose kubectl, helm and vscalectl are its admin's. Returns
    /// whether it succeeded.
    pub(crate) fn lend(&self, command: &str) -> bool {
        let description = self.places.api_server.join("cluster.json");
        fs::write(&description, serde_json::to_vec(&self.places).unwrap()).unwrap();
        let mut shell = self.shell(&[], command);
        shell.env(SHARED, description).status().unwrap().success()
    }

    /// A shell command with an admin's kubectl and helm, and with further directories of programs before those of `PATH`.
    pub(crate) fn shell(&self, directories: &[&Path], command: &str) -> Command {
        let programs = self.api.programs();
        let own = [programs.kubectl(), programs.addon("helm")].map(|program| program.parent().unwrap().to_owned());
        let path = std::env::var_os("PATH").unwrap();
        let before = directories.iter().map(|directory| (*directory).to_owned()).chain(own);
        let all = before.chain(std::env::split_paths(&path));
        let mut shell = Command::new("bash");
        shell
            .args(["-c", command])
            .env("KUBECONFIG", self.api.kubeconfig(User::Admin))
            .env("VSCALED_SOCKET", &self.places.deployed_socket)
            .env("PATH", std::env::join_paths(all).unwrap());
        shell
    }

    /// Gives the node the agent's image, packed by `scripts/image` from this build's programs: there is no registry.
    /// Its name is then [`IMAGE`].
    pub(crate) fn import_agent(&self) {
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        let programs = self.api.programs().containerd();
        let ctr = programs.map_or_else(|| "ctr".into(), |directory| directory.join("ctr"));
        image::output(
            Command::new(ctr)
                .arg("--address")
                .arg(&self.places.containerd_socket)
                .args(["--namespace", "k8s.io", "images", "import", "--snapshotter", "native"])
                .arg(image::agent_archive(directory.path())),
        );
    }

    /// The socket of the agent that a DaemonSet runs.
    pub(crate) fn deployed_socket(&self) -> &Path {
        &self.places.deployed_socket
    }

    /// Waits until the node is ready.
    async fn is_ready(&self) {
        let path = format!("/api/v1/nodes/{NODE}");
        let ready = |node: &Value| {
            let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let started = Instant::now();
        loop {
            let looked = Instant::now();
            let node = self.api.try_get(&path);
            if node.is_ok_and(|node| ready(&serde_json::from_str(&node).unwrap())) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "no node is ready\n{}", self.logs());
            tokio::time::sleep(pause_after(looked)).await;
        }
    }

    /// An agent for the node with the deployed rights, which does not run yet.
    pub(crate) fn agent(&self) -> Agent {
        Agent::new(&self.kubepods())
            .with("--source", "kubernetes")
            .with("--node-name", NODE)
            .with("--kubeconfig", self.api.deployed_kubeconfig())
            .with("--runtime-socket", &self.places.containerd_socket)
            .with("--kubelet-dir", &self.places.kubelet)
            .with("--weight-formula", "auto")
    }

    /// The socket at which the kubelet lists its pods.
    pub(crate) fn pods_socket(&self) -> PathBuf {
        self.places.kubelet.join("pods-api/pods-api.sock")
    }

    /// The cgroup of a pod.
    pub(crate) fn pod_cgroup(&self, pod: &Value) -> CgroupPath {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let class = pod["status"]["qosClass"].as_str().unwrap().to_lowercase();
        // Guaranteed pods have no level of their own.
        let class = Some(class).filter(|class| class != "guaranteed");
        if has_systemd_driver() {
            let class = class.map(|class| format!("kubepods-{class}"));
            let parent = class.as_deref().unwrap_or("kubepods");
            let slice = format!("{parent}-pod{}.slice", uid.replace('-', "_"));
            let level = class.iter().map(|class| format!("{class}.slice"));
            return level
                .chain([slice])
                .fold(self.kubepods(), |path, name| path.child(&name).unwrap());
        }
        let names = class.into_iter().chain([format!("pod{uid}")]);
        names.fold(self.kubepods(), |path, name| path.child(&name).unwrap())
    }

    /// The cgroup of a pod's container, by its status.
    pub(crate) fn container_cgroup(&self, pod: &Value, status: &Value) -> CgroupPath {
        let id = status["containerID"]
            .as_str()
            .unwrap()
            .trim_start_matches("containerd://");
        let name = match has_systemd_driver() {
            true => format!("cri-containerd-{id}.scope"),
            false => id.to_owned(),
        };
        self.pod_cgroup(pod).child(&name).unwrap()
    }

    pub(crate) fn kubepods(&self) -> CgroupPath {
        CgroupPath::new(&self.places.kubepods).unwrap()
    }

    /// The current values of a cgroup.
    pub(crate) fn settings(&self, path: &CgroupPath) -> Settings {
        let hierarchy = Hierarchy::discover(None).unwrap();
        CgroupDir::open(&hierarchy, path).unwrap().read_all().unwrap()
    }

    /// The ends of the parts' logs.
    pub(crate) fn logs(&self) -> String {
        let tail = |path: &PathBuf| {
            let log = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            format!("{}:\n{end}\n", path.display())
        };
        self.places.logs.iter().map(tail).collect()
    }
}
