//! `vscaled-notify` as the first process of a container: its program learns of new limits without an agent.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vscaled::model::CgroupVersion;
use vscaled::runtime::proto::ContainerState;

use super::{APP, Amounts, Scene};

const RUNS: &str = "while [ ! -e /ready ]; do sleep 0.05; done; \
     exec /notify --run /bin/sh -c 'echo {memory} {cpu} $VSCALED_MEMORY_MAX $VSCALED_CPU_MAX >/told' -- /bin/sh /program";
const SIGNALS: &str = "while [ ! -e /ready ]; do sleep 0.05; done; exec /notify --signal SIGUSR1 -- /bin/sh /program";
/// Leaves orphans, records signals, and ends with its own exit status.
const PROGRAM: &str = "trap 'echo HUP >/hup' HUP; trap 'echo told >/told' USR1; trap 'exit 42' TERM
echo $$ >/pid
i=0; while [ $i -lt 5 ]; do (sleep 0.2 &); i=$((i + 1)); done
while :; do sleep 0.05; done
";
const OTHER: Amounts = Amounts {
    cpu_limit: Some(300),
    memory_limit: Some(96),
    ..APP
};

/// The statically linked helper in cargo's directory, if it was built.
fn helper() -> Option<PathBuf> {
    let helper = Path::new(env!("CARGO_BIN_EXE_vscaled")).with_file_name("vscaled-notify");
    helper.exists().then_some(helper)
}

impl Scene {
    fn host_path(&self, name: &str) -> String {
        format!("/proc/{}/root/{name}", self.pod.containers[0].pid)
    }

    /// Copies the programs into the container, and waits until they run.
    async fn notified(script: &'static str) -> Option<Self> {
        let Some(helper) = helper() else {
            eprintln!("SKIPPED kernel_agent_containerd::notify: no vscaled-notify is built: scripts/test build does");
            return None;
        };
        let scene = Self::new(script).await;
        scene.free_cpu();
        let notify = scene.host_path("notify");
        fs::copy(helper, &notify).unwrap();
        fs::set_permissions(&notify, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(scene.host_path("program"), PROGRAM).unwrap();
        fs::write(scene.host_path("ready"), "").unwrap();
        scene
            .agent
            .wait_for("the program to run", || scene.file("pid").is_some())
            .await;
        Some(scene)
    }

    fn free_cpu(&self) {
        self.containerd
            .cgroups()
            .free_cpu([&self.pod.cgroup, &self.pod.containers[0].cgroup]);
    }

    /// Writes the first container's limits, as any process may.
    fn give(&self, amounts: Amounts) {
        let cgroups = self.containerd.cgroups();
        for setting in amounts.settings(cgroups.version()).iter() {
            cgroups.put(&self.pod.containers[0].cgroup, setting);
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pod.containers[0].pid), signal).unwrap();
    }

    /// Kills the helper's program.
    fn kill_program(&self) {
        let cgroups = self.containerd.cgroups();
        let directory = cgroups.directories(&self.pod.containers[0].cgroup).remove(0);
        let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        let is_program = |pid: &&str| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line == "/bin/sh\0/program\0"
        };
        let pid = pids.lines().find(is_program).unwrap();
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    }

    /// The number of zombies in the first container.
    fn zombies(&self) -> usize {
        let cgroups = self.containerd.cgroups();
        let directory = cgroups.directories(&self.pod.containers[0].cgroup).remove(0);
        let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        let is_zombie = |pid: &&str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('Z'))
        };
        pids.lines().filter(is_zombie).count()
    }

    /// Waits for the exit code of the container.
    async fn exit_code(&self) -> i32 {
        let id = &self.pod.containers[0].id;
        let ended = async || {
            let life = self.containerd.life(id).await;
            (life.state() == ContainerState::ContainerExited).then_some(life.exit_code)
        };
        self.agent.until("the container to end", ended).await
    }
}

#[tokio::test]
async fn a_command_runs_with_new_limits_and_signals() {
    let Some(scene) = Scene::notified(RUNS).await else {
        return;
    };
    assert_eq!(scene.file("told"), None);
    scene.give(OTHER);
    let cpu = match scene.containerd.cgroups().version() {
        CgroupVersion::V1 => "30000",
        CgroupVersion::V2 => "30000 100000",
    };
    let memory = 96 << 20;
    let told = format!("{memory} {cpu} {memory} {cpu}\n");
    scene
        .agent
        .wait_for("the limits to be told", || scene.file("told").as_ref() == Some(&told))
        .await;
    scene
        .agent
        .wait_for("orphans to be taken in", || {
            scene.zombies() == 0 && scene.others().len() <= 2
        })
        .await;
    scene.signal(Signal::SIGHUP);
    scene
        .agent
        .wait_for("the signal to be handed on", || scene.file("hup").is_some())
        .await;
    // A runtime stops a container like this.
    scene.signal(Signal::SIGTERM);
    assert_eq!(scene.exit_code().await, 42);
}

#[tokio::test]
async fn a_signal_is_sent_on_every_change() {
    let Some(scene) = Scene::notified(SIGNALS).await else {
        return;
    };
    for amounts in [OTHER, APP] {
        scene.give(amounts);
        scene
            .agent
            .wait_for("the signal", || scene.file("told").is_some())
            .await;
        fs::remove_file(scene.host_path("told")).unwrap();
    }
    let first = fs::read_to_string(format!("/proc/{}/cmdline", scene.pod.containers[0].pid)).unwrap();
    assert!(first.starts_with("/notify\0"), "{first:?}");
    let others = scene.others();
    assert!(others.iter().any(|line| line == "/bin/sh /program"), "{others:?}");
    scene.kill_program();
    assert_eq!(scene.exit_code().await, 128 + 9);
}
