//! A kubelet of a test's API server, with the test's own containerd.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use vscaled::model::CgroupVersion;

use super::{ApiServer, Release, User, free_port, has_systemd_driver};
use crate::support::containerd::Containerd;
use crate::support::scratch;

/// The name of the node that the kubelet registers.
pub(crate) const NODE: &str = "node-1";

/// A kubelet, running or not. Dropping the value ends it; its pods end with their containerd. If a test fails, the
/// end of the log is printed.
#[derive(Debug)]
pub(crate) struct Kubelet {
    process: Option<Child>,
    program: PathBuf,
    arguments: Vec<String>,
    /// The cgroup that the kubelet runs in, as a service has one. In the root it does not find the node's swap.
    cgroup: Option<PathBuf>,
    directory: TempDir,
}

impl Kubelet {
    /// Makes a kubelet whose pods live in the cgroup tree of that containerd, and does not start it. `configured`
    /// adds fields to the configuration of every test.
    pub(crate) fn new(cluster: &ApiServer, containerd: &Containerd, configured: &Value) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        let file = |name: &str| directory.path().join(name);
        let cgroups = containerd.cgroups();
        let root = cgroups.make_everywhere();
        let is_systemds = has_systemd_driver() && cluster.release() == Release::Today;
        let (driver, root) = match is_systemds {
            true => ("systemd", "/".to_owned()),
            false => ("cgroupfs", root.to_string()),
        };
        let has_cgroup = cgroups.version() == CgroupVersion::V2 && !is_systemds;
        let cgroup = has_cgroup.then(|| cgroups.make("kubelet").under("/sys/fs/cgroup".as_ref()));
        let address = guests_address();
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": address.unwrap_or("127.0.0.1"), "port": free_port(), "readOnlyPort": 0, "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": false}, "webhook": {"enabled": false},
                "x509": {"clientCAFile": cluster.kubelet_client()},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": driver, "cgroupRoot": root, "cgroupsPerQOS": true,
            "protectKernelDefaults": true, "failSwapOn": false, "resolvConf": "",
            "volumePluginDir": file("plugins"),
            // The kubelet posts an Event for every kill on this machine; other calls should not wait for those.
            "kubeAPIQPS": 500, "kubeAPIBurst": 500,
            "containerRuntimeEndpoint": format!("unix://{}", containerd.socket().display()),
            "failCgroupV1": false,
            // Elsewhere than on a plain disk, the kubelet cannot measure it.
            "localStorageCapacityIsolation": false,
            // A full machine must not make the kubelet evict pods or remove images.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        });
        for (field, value) in configured.as_object().unwrap() {
            match (config[field].as_object_mut(), value.as_object()) {
                (Some(fields), Some(more)) => fields.extend(more.clone()),
                _ => config[field] = value.clone(),
            }
        }
        fs::write(file("config.json"), config.to_string()).unwrap();
        let mut arguments = vec![
            format!("--config={}", file("config.json").display()),
            format!("--cert-dir={}", file("certificates").display()),
            format!("--kubeconfig={}", cluster.kubeconfig(User::Kubelet).display()),
            format!("--hostname-override={NODE}"),
        ];
        arguments.extend(address.map(|address| format!("--node-ip={address}")));
        Self {
            process: None,
            program: cluster.programs().kubelet(cluster.release()),
            arguments,
            cgroup,
            directory,
        }
    }

    /// Starts the kubelet without waiting.
    pub(crate) fn launch(&mut self, containerd: &Containerd) {
        assert!(self.process.is_none(), "the kubelet runs already");
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let enter = match &self.cgroup {
            Some(cgroup) => format!("echo $$ >{}/cgroup.procs; ", cgroup.display()),
            None => String::new(),
        };
        let process = containerd
            .beside("sh")
            .args(["-euc", &(enter + "exec \"$@\""), "sh"])
            .arg(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    /// Kills the kubelet, as a crash would. Its pods stay.
    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }
}

/// The node's address in guests of `scripts/v2lab`, which have no other network than loopback. Without an address a
/// kubelet gives nobody logs or measurements.
pub(crate) fn guests_address() -> Option<&'static str> {
    const ADDRESS: &str = "192.0.2.1";
    TcpListener::bind((ADDRESS, 0)).is_ok().then_some(ADDRESS)
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            eprintln!("the kubelet's log:\n{}", self.log());
        }
    }
}
