//! The commands of hooks inform containers of their limits. The limits change whatever the commands do.

use std::fs;

use vscaled::control::proto::Change;

use super::{APP, Amounts, IDLE, SIDE, Scene};
use crate::support::amounts::with_env;

/// Holds 80 MB until the file /free exists.
const HOLDS: &str = "(head -c 80000000 /dev/zero; while [ ! -e /free ]; do sleep 0.1; done) | tail -c 80000000 >/dev/null; \
     while true; do sleep 1000; done";
pub(super) const LOWER: Amounts = Amounts::doubled(100, 32);
pub(super) const HIGHER: Amounts = Amounts::doubled(100, 96);

impl Scene {
    /// Declares hooks for these containers in the pod's manifest.
    pub(super) fn declare(&self, containers: &[&str], hooks: &[(&str, &str)]) {
        let declared = containers
            .iter()
            .fold(self.manifest.clone(), |manifest, name| with_env(&manifest, name, hooks));
        self.agent.write("pod.yaml", &declared);
    }

    /// A file in the first container.
    pub(super) fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/root/{name}", self.pod.containers[0].pid)).ok()
    }

    /// The results of hooks, when there are this many.
    pub(super) async fn hooks(&self, count: usize) -> Vec<Change> {
        let ended = async || {
            let mut history = self.agent.history().await;
            history.retain(|change| change.cause.starts_with("hook "));
            (history.len() >= count).then_some(history)
        };
        self.agent.until("hooks to end", ended).await
    }

    /// The command lines of the processes in the first container, without the first process.
    pub(super) fn others(&self) -> Vec<String> {
        self.others_in(0)
    }

    pub(super) fn others_in(&self, container: usize) -> Vec<String> {
        self.processes_in(container).into_iter().map(|(_, line)| line).collect()
    }

    /// The same with the process ids.
    pub(super) fn processes_in(&self, container: usize) -> Vec<(i32, String)> {
        let cgroups = self.containerd.cgroups();
        let first = self.pod.containers[container].pid;
        let directory = cgroups.directories(&self.pod.containers[container].cgroup).remove(0);
        let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        let pids = pids.lines().map(|pid| pid.parse::<i32>().unwrap());
        let processes = pids.filter(|pid| *pid != first).map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (pid, String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned())
        });
        processes.collect()
    }
}

#[tokio::test]
async fn growth_is_reported_with_both_limits() {
    let scene = Scene::started(IDLE).await;
    scene.declare(
        &["app"],
        &[(
            "VSCALED_AFTER_GROW",
            r#"["/bin/sh", "-c", "echo {old} {new} {new:50%} >/told; echo done; echo $0 >&2; id -u", "x"]"#,
        )],
    );
    scene.recommend(HIGHER, SIDE);
    let told = scene.hooks(1).await.remove(0);
    assert_eq!(
        (told.outcome.as_str(), told.cause.as_str()),
        ("HookRan", "hook after-grow in container app")
    );
    assert!(
        told.reason.contains("ended with 0") && told.reason.ends_with("it printed: done\n0\nx"),
        "{told:?}"
    );
    let mib = |mib: u64| mib << 20;
    assert_eq!(
        scene.file("told").unwrap(),
        format!("{} {} {}\n", mib(128), mib(192), mib(96))
    );
    scene.settles(HIGHER, SIDE).await;
    // The shrink that follows has no hook.
    scene.recommend(APP, SIDE);
    scene.settles(APP, SIDE).await;
    assert_eq!(scene.hooks(1).await.len(), 1);
}

#[tokio::test]
async fn a_container_that_frees_memory_is_lowered() {
    let scene = Scene::started(HOLDS).await;
    let cgroups = scene.containerd.cgroups();
    let holds = || cgroups.memory_usage(&scene.pod.containers[0].cgroup) > 78_000_000;
    scene.agent.wait_for("the container to hold memory", holds).await;
    scene.declare(
        &["app"],
        &[(
            "VSCALED_BEFORE_SHRINK",
            r#"["/bin/sh", "-c", "echo {old} {new} >/free"]"#,
        )],
    );
    scene.recommend(LOWER, SIDE);
    scene.settles(LOWER, SIDE).await;
    assert_eq!(scene.file("free").unwrap(), format!("{} {}\n", 128 << 20, 64 << 20));
    let history = scene.agent.history().await;
    let outcomes: Vec<_> = history.iter().map(|change| change.outcome.as_str()).collect();
    assert!(!outcomes.contains(&"Refused"), "{history:#?}");
    let told = scene.hooks(1).await.remove(0);
    assert!(
        told.outcome == "HookRan" && told.reason.contains("fits the new limit"),
        "{told:?}"
    );
}
