//! A private containerd with its CRI, and pods in it made as a kubelet makes them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::Pid;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use vscaled::resources::Setting;
use vscaled::runtime::proto::image_service_client::ImageServiceClient;
use vscaled::runtime::proto::runtime_service_client::RuntimeServiceClient;
use vscaled::runtime::proto::{self, LinuxContainerResources};

use super::image::{self, BUSYBOX, PAUSE};
use super::mounts;
use super::tree::CgroupTree;

const PATIENCE: Duration = Duration::from_secs(60);

/// The program that makes containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OciRuntime {
    Runc,
    Crun,
}

impl OciRuntime {
    const fn program(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }
}

/// A running containerd. Dropping it, also in a panic, ends its containers, shims and itself, and removes what they
/// left in the file system. Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Containerd {
    daemon: Option<Child>,
    cgroups: CgroupTree,
    directory: TempDir,
}

/// What a container is to hold.
#[derive(Debug, Clone)]
pub(crate) struct ContainerSpec {
    pub(crate) name: &'static str,
    /// Run by `/bin/sh -c`.
    pub(crate) script: &'static str,
    pub(crate) resources: LinuxContainerResources,
}

/// A pod to make.
#[derive(Debug, Clone)]
pub(crate) struct PodSpec {
    pub(crate) name: &'static str,
    pub(crate) uid: &'static str,
    /// What the pod's own cgroup holds before its sandbox starts.
    pub(crate) cgroup: Vec<Setting>,
    pub(crate) containers: Vec<ContainerSpec>,
}

/// A pod that runs.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) sandbox_id: String,
    /// The whole path of the pod's cgroup.
    pub(crate) cgroup: String,
    pub(crate) containers: Vec<Container>,
}

/// A container that runs.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) pid: i32,
    /// The whole path of its cgroup.
    pub(crate) cgroup: String,
}

impl Containerd {
    /// Starts containerd and gives it the images.
    pub(crate) async fn start(runtime: OciRuntime) -> Self {
        let cgroups = CgroupTree::new();
        let directory = tempfile::Builder::new().prefix("vscaled-").tempdir_in(base()).unwrap();
        let mut containerd = Self {
            daemon: None,
            cgroups,
            directory,
        };
        fs::write(containerd.file("config.toml"), containerd.config(runtime)).unwrap();
        containerd.launch().await;
        containerd.import().await;
        containerd
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.file("containerd.sock")
    }

    pub(crate) const fn cgroups(&self) -> &CgroupTree {
        &self.cgroups
    }

    /// CRI, as the kubelet has it. Must be asked for again after a restart.
    pub(crate) fn kubelet(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel())
    }

    /// Ends containerd, as a crash would. Its containers go on.
    pub(crate) fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    /// Starts containerd and waits until its CRI answers.
    pub(crate) async fn launch(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.file("log"))
            .unwrap();
        let daemon = Command::new("containerd")
            .arg("--config")
            .arg(self.file("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("needs containerd: apt-get install containerd runc");
        self.daemon = Some(daemon);
        let started = Instant::now();
        let request = proto::VersionRequest::default();
        while let Err(status) = self.kubelet().version(request.clone()).await {
            assert!(started.elapsed() < PATIENCE, "containerd: {status}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes the pod's cgroup, its sandbox and its containers, and starts them.
    pub(crate) async fn run(&self, spec: &PodSpec) -> Pod {
        let below = format!("/kubepods/burstable/pod{}", spec.uid);
        let cgroup = self.cgroups.path(&below);
        self.cgroups.make(&below);
        for setting in &spec.cgroup {
            self.cgroups.write(&cgroup, *setting);
        }
        let config = sandbox(spec, &cgroup);
        let request = proto::RunPodSandboxRequest {
            config: Some(config.clone()),
        };
        let sandbox_id = self
            .expect(self.kubelet().run_pod_sandbox(request).await)
            .pod_sandbox_id;
        let mut containers = Vec::new();
        for container in &spec.containers {
            containers.push(self.run_container(&sandbox_id, &config, container).await);
        }
        Pod {
            sandbox_id,
            cgroup,
            containers,
        }
    }

    async fn run_container(
        &self,
        sandbox_id: &str,
        sandbox: &proto::PodSandboxConfig,
        spec: &ContainerSpec,
    ) -> Container {
        let request = proto::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(container(sandbox, spec)),
            sandbox_config: Some(sandbox.clone()),
        };
        let id = self.expect(self.kubelet().create_container(request).await).container_id;
        let start = proto::StartContainerRequest {
            container_id: id.clone(),
        };
        self.expect(self.kubelet().start_container(start).await);
        let pid = self.pid(&id);
        Container {
            cgroup: self.cgroups.of_process(pid),
            id,
            pid,
        }
    }

    /// Ends a container at once.
    pub(crate) async fn end(&self, container: &Container) {
        let request = proto::StopContainerRequest {
            container_id: container.id.clone(),
            timeout: 0,
        };
        self.expect(self.kubelet().stop_container(request).await);
    }

    /// The container's first process, from the shim's own record.
    fn pid(&self, id: &str) -> i32 {
        let record = self.tasks().join(id).join("init.pid");
        fs::read_to_string(record).unwrap().trim().parse().unwrap()
    }

    fn tasks(&self) -> PathBuf {
        self.file("state/io.containerd.runtime.v2.task/k8s.io")
    }

    /// Imports the images and waits until CRI has heard of them.
    async fn import(&self) {
        let directory = self.file("images");
        fs::create_dir(&directory).unwrap();
        let archive = image::archive(&directory);
        image::output(
            Command::new("ctr")
                .arg("--address")
                .arg(self.socket())
                .args(["--namespace", "k8s.io", "images", "import", "--snapshotter", "native"])
                .arg(archive),
        );
        fs::remove_dir_all(&directory).unwrap();
        let started = Instant::now();
        for name in [BUSYBOX, PAUSE] {
            let request = proto::ImageStatusRequest {
                image: Some(proto::ImageSpec { image: name.into() }),
            };
            let mut images = ImageServiceClient::new(self.channel());
            while self.expect(images.image_status(request.clone()).await).image.is_none() {
                assert!(started.elapsed() < PATIENCE, "CRI does not see {name}\n{}", self.log());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn channel(&self) -> Channel {
        let endpoint = format!("unix://{}", self.socket().display());
        Endpoint::from_shared(endpoint).unwrap().connect_lazy()
    }

    fn expect<T>(&self, answer: Result<tonic::Response<T>, tonic::Status>) -> T {
        match answer {
            Ok(answer) => answer.into_inner(),
            Err(status) => panic!("{status}\ncontainerd's log:\n{}", self.log()),
        }
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self, runtime: OciRuntime) -> String {
        let directory = self.directory.path().display();
        let program = runtime.program();
        // Without restrict_oom_score_adj runc needs CAP_SYS_RESOURCE to give the sandbox its negative score.
        format!(
            r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
disable_apparmor = true
sandbox_image = "{PAUSE}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
default_runtime_name = "test"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.test]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.test.options]
BinaryName = "{program}"
Root = "{directory}/oci"
"#
        )
    }

    /// The shims of our containers, known by our socket among their arguments.
    fn shims(&self) -> Vec<Pid> {
        let socket = self.socket();
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        processes
            .filter_map(|process| process.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let mut arguments = arguments.split(|byte| *byte == 0);
                arguments
                    .next()
                    .is_some_and(|program| program.ends_with(b"containerd-shim-runc-v2"))
                    && arguments.any(|argument| argument == socket.as_os_str().as_encoded_bytes())
            })
            .map(Pid::from_raw)
            .collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Shims first: nobody is left to start or restart anything. Their sockets lie outside our directory.
        if let Some(mut daemon) = self.daemon.take() {
            daemon
                .kill()
                .and_then(|()| daemon.wait())
                .map_or_else(|error| eprintln!("containerd: {error}"), drop);
        }
        let tasks = fs::read_dir(self.tasks()).into_iter().flatten().filter_map(Result::ok);
        let sockets: Vec<_> = tasks
            .filter_map(|task| fs::read_to_string(task.path().join("address")).ok())
            .collect();
        for shim in self.shims() {
            kill(shim, Signal::SIGKILL).unwrap_or_else(|error| eprintln!("shim {shim}: {error}"));
        }
        for socket in sockets {
            // Several containers share a shim, and so its socket.
            fs::remove_file(socket.trim().trim_start_matches("unix://")).unwrap_or_default();
        }
        mounts::unmount_below(self.directory.path());
        // Then the fields: the cgroup tree kills the containers, and the directory goes.
    }
}

/// Where containerd may put its files: the native snapshotter wants a real file system, and unix sockets too, which a
/// guest's view of its host's files is not. `/run` is a tmpfs wherever that matters.
fn base() -> PathBuf {
    let run = Path::new("/run");
    if statfs(run).is_ok_and(|info| info.filesystem_type() == TMPFS_MAGIC) {
        run.to_owned()
    } else {
        std::env::temp_dir()
    }
}

fn labels(spec: &PodSpec) -> HashMap<String, String> {
    HashMap::from([
        ("io.kubernetes.pod.name".to_owned(), spec.name.to_owned()),
        ("io.kubernetes.pod.namespace".to_owned(), "test".to_owned()),
        ("io.kubernetes.pod.uid".to_owned(), spec.uid.to_owned()),
    ])
}

/// On the host's network, so that no network plugin is needed.
fn host_network() -> Option<proto::NamespaceOption> {
    Some(proto::NamespaceOption {
        network: proto::NamespaceMode::Node.into(),
        ..proto::NamespaceOption::default()
    })
}

fn sandbox(spec: &PodSpec, cgroup: &str) -> proto::PodSandboxConfig {
    proto::PodSandboxConfig {
        metadata: Some(proto::PodSandboxMetadata {
            name: spec.name.to_owned(),
            uid: spec.uid.to_owned(),
            namespace: "test".to_owned(),
            attempt: 0,
        }),
        labels: labels(spec),
        linux: Some(proto::LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(proto::LinuxSandboxSecurityContext {
                namespace_options: host_network(),
            }),
        }),
        ..proto::PodSandboxConfig::default()
    }
}

fn container(sandbox: &proto::PodSandboxConfig, spec: &ContainerSpec) -> proto::ContainerConfig {
    let mut labels = sandbox.labels.clone();
    labels.insert("io.kubernetes.container.name".to_owned(), spec.name.to_owned());
    proto::ContainerConfig {
        metadata: Some(proto::ContainerMetadata {
            name: spec.name.to_owned(),
            attempt: 0,
        }),
        image: Some(proto::ImageSpec { image: BUSYBOX.into() }),
        command: vec!["/bin/sh".to_owned(), "-c".to_owned(), spec.script.to_owned()],
        labels,
        linux: Some(proto::LinuxContainerConfig {
            resources: Some(spec.resources.clone()),
            security_context: Some(proto::LinuxContainerSecurityContext {
                namespace_options: host_network(),
            }),
        }),
        ..proto::ContainerConfig::default()
    }
}
