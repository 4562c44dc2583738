//! A private containerd with its CRI, and its cleanup.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use vscaled::runtime::proto;
use vscaled::runtime::proto::image_service_client::ImageServiceClient;
use vscaled::runtime::proto::runtime_service_client::RuntimeServiceClient;

use super::cluster::{ApiServer, Enclosure, Release, enclosure, has_systemd_driver};
use super::image::{self, BUSYBOX, PAUSE};
use super::tree::CgroupTree;
use super::{mounts, network, scratch};

const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OciRuntime {
    Runc,
    Crun,
}

impl OciRuntime {
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }
}

/// A running containerd. Dropping the value, also in a panic, ends its containers and shims, and removes their files.
/// Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Containerd {
    daemon: Option<Child>,
    cgroups: CgroupTree,
    enclosure: Option<Enclosure>,
    /// Where programs are looked for: a directory that comes before those of `PATH`.
    programs: Option<PathBuf>,
    directory: TempDir,
}

impl Containerd {
    /// Starts containerd and imports the images.
    pub(crate) async fn start(runtime: OciRuntime) -> Self {
        Self::start_in(false, None, runtime).await
    }

    /// Like [`Self::start`], in a mount namespace of its own, for a kubelet of that cluster. A cluster of today has
    /// containerd 2, a legacy one Debian's.
    pub(crate) async fn enclosed(runtime: OciRuntime, cluster: &ApiServer) -> Self {
        let programs = match cluster.release() {
            Release::Legacy => None,
            Release::Today => cluster.programs().containerd(),
        };
        Self::start_in(true, programs, runtime).await
    }

    async fn start_in(is_enclosed: bool, programs: Option<PathBuf>, runtime: OciRuntime) -> Self {
        let cgroups = CgroupTree::new();
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        let mut containerd = Self {
            daemon: None,
            cgroups,
            enclosure: is_enclosed.then(|| Enclosure::new(directory.path())),
            programs,
            directory,
        };
        fs::write(containerd.file("config.toml"), containerd.config(runtime)).unwrap();
        network::install(&containerd.file("network"));
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

    /// A command that runs in the same mount namespace as containerd.
    pub(crate) fn beside(&self, program: &str) -> Command {
        let mut command = match &self.enclosure {
            Some(enclosure) => enclosure.command(program),
            None => Command::new(program),
        };
        if let Some(first) = &self.programs {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = std::iter::once(first.clone()).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(all).unwrap());
        }
        command
    }

    /// A CRI client. Get a new one after a restart.
    pub(crate) fn kubelet(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel())
    }

    /// Kills containerd, as a crash would. Its containers stay.
    pub(crate) fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    /// Kills the shims of all pods, as a crash would.
    pub(crate) fn kill_shims(&self) {
        for shim in self.shims() {
            kill(shim, Signal::SIGKILL).unwrap();
        }
    }

    /// Stops containerd (SIGSTOP), or resumes it: the connection stays open without answers.
    pub(crate) fn hang(&self, hang: bool) {
        let daemon = self.daemon.as_ref().expect("containerd runs");
        let signal = if hang { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(daemon.id().cast_signed()), signal).unwrap();
    }

    /// Starts containerd and waits until CRI answers.
    pub(crate) async fn launch(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.file("log"))
            .unwrap();
        let daemon = self
            .beside("containerd")
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

    /// The pid of the container's first process, from the shim's record.
    pub(crate) fn pid(&self, id: &str) -> i32 {
        let record = self.tasks().join(id).join("init.pid");
        fs::read_to_string(record).unwrap().trim().parse().unwrap()
    }

    /// The container's status from CRI: state, start time, resources.
    pub(crate) async fn life(&self, id: &str) -> proto::ContainerStatus {
        let request = proto::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let answer = self.kubelet().container_status(request).await;
        self.expect(answer).status.unwrap()
    }

    fn tasks(&self) -> PathBuf {
        self.file("state/io.containerd.runtime.v2.task/k8s.io")
    }

    /// The kubelet's directory: inside of the mount namespace it is `/var/lib/kubelet`.
    pub(crate) fn kubelet_directory(&self) -> PathBuf {
        self.file(enclosure::KUBELET)
    }

    /// The control socket of the deployed agent, which has it at its usual place.
    pub(crate) fn deployed_socket(&self) -> PathBuf {
        self.file(enclosure::CONTROL).join("vscaled.sock")
    }

    /// Imports the images of all tests.
    async fn import(&self) {
        self.import_archive(image::archive, &[BUSYBOX, PAUSE]).await;
    }

    /// Builds an archive of images in its own directory, imports it, and waits until CRI lists the images.
    pub(crate) async fn import_archive(&self, build: impl FnOnce(&Path) -> PathBuf, names: &[&str]) {
        let directory = self.file("images");
        fs::create_dir(&directory).unwrap();
        let archive = build(&directory);
        image::output(
            self.beside("ctr")
                .arg("--address")
                .arg(self.socket())
                .args(["--namespace", "k8s.io", "images", "import", "--snapshotter", "native"])
                .arg(archive),
        );
        fs::remove_dir_all(&directory).unwrap();
        let started = Instant::now();
        for name in names {
            let image = Some(proto::ImageSpec { image: (*name).into() });
            let request = proto::ImageStatusRequest { image };
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

    pub(super) fn expect<T>(&self, answer: Result<tonic::Response<T>, tonic::Status>) -> T {
        match answer {
            Ok(answer) => answer.into_inner(),
            Err(status) => panic!("{status}\ncontainerd's log:\n{}", self.log()),
        }
    }

    pub(super) fn log(&self) -> String {
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self, runtime: OciRuntime) -> String {
        let directory = self.directory.path().display();
        let program = runtime.program();
        let architecture = image::architecture();
        // The parser must be installed where the kernel confines containers, as on nodes of Debian and Ubuntu.
        let is_unconfined = !Path::new("/sys/kernel/security/apparmor").exists();
        let by_systemd = self.enclosure.is_some() && has_systemd_driver();
        // Without restrict_oom_score_adj, runc needs CAP_SYS_RESOURCE to give the sandbox its negative score. Unprivileged
        // ports and pings are settings of a pod's own network, which is the node's here.
        format!(
            r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{directory}/containerd.sock"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
platform = "linux/{architecture}"
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
disable_apparmor = {is_unconfined}
sandbox_image = "{PAUSE}"
netns_mounts_under_state_dir = true
enable_unprivileged_ports = false
enable_unprivileged_icmp = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{directory}/network"
conf_dir = "{directory}/network"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
default_runtime_name = "test"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.test]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.test.options]
BinaryName = "{program}"
SystemdCgroup = {by_systemd}
Root = "{directory}/oci"
"#
        )
    }

    /// The shims of this containerd, found by the socket in their arguments.
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
        // The daemon first, so that it starts nothing again, then the shims. Their sockets are outside this
        // directory.
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
        // Then the fields: the cgroup tree kills the containers, and the directory is removed.
    }
}
