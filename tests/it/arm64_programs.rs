//! The programs for arm64 print the same as this machine's programs. They run on arm64 or under qemu. Only pure
//! commands are tested, because qemu emulates the processor and not the kernel.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{skipped, vscalectl};

/// A pod whose VPA recommends more, with a runtime that reads its heap size from a flag.
const MANIFESTS: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: web-0
  uid: 6c4b2d1e-58ff-4d36-9d5c-0a6f4c9f2a11
  labels: {app: web}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: web, controller: true}]
spec:
  nodeName: here
  containers:
  - name: app
    command: [java, -Xmx512m, -jar, app.jar]
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 300m, memory: 600Mi}}
status: {phase: Running, qosClass: Burstable, startTime: '2026-03-01T11:00:00Z',
  containerStatuses: [{name: app, containerID: 'containerd://0a1b'}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}}
---
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web}
status:
  recommendation:
    containerRecommendations:
    - {containerName: app, target: {cpu: 200m, memory: 1Gi}, lowerBound: {cpu: 150m, memory: 512Mi}}
";

/// The directory into which scripts/image writes the programs.
fn programs() -> PathBuf {
    let told = std::env::var_os("VSCALED_ARM64_PROGRAMS");
    told.map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/image/arm64"),
        PathBuf::from,
    )
}

/// The emulator that runs the programs on this machine.
fn emulator() -> Option<&'static str> {
    let runs = |program: &&str| {
        let asked = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    if cfg!(target_arch = "aarch64") {
        return Some("env");
    }
    ["qemu-aarch64", "qemu-aarch64-static"].into_iter().find(runs)
}

#[test]
fn pure_commands_answer_as_on_this_machine() {
    let label = "arm64 programs";
    let program = programs().join("vscalectl");
    if !program.exists() {
        return skipped(label, "none are in target/image/arm64; scripts/image arm64 makes them");
    }
    let Some(emulator) = emulator() else {
        return skipped(label, "qemu is missing, which runs them: apt-get install qemu-user");
    };
    let scratch = tempfile::tempdir().unwrap();
    let manifests = scratch.path().join("pods.yaml");
    std::fs::write(&manifests, MANIFESTS).unwrap();
    let manifests = manifests.to_str().unwrap();
    let kills = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kmsg/s2-pod-limit-hit-v1.txt");
    for arguments in [
        vec!["--version"],
        vec!["decide", "--now", "2026-03-02T12:00:00Z", "-f", manifests],
        vec!["decide", "--now", "2026-03-02T12:00:00Z", "-f", manifests, "-o", "json"],
        vec!["plan", "--now", "2026-03-02T12:00:00Z", "-f", manifests, "-o", "json"],
        vec!["lint", "-f", manifests],
        vec!["oom", "parse", kills, "-o", "json"],
    ] {
        let there = Command::new(emulator).arg(&program).args(&arguments).output().unwrap();
        let here = vscalectl(&arguments, "");
        assert!(!there.stdout.is_empty(), "{arguments:?}: {there:?}");
        assert_eq!(
            (there.status.code(), String::from_utf8_lossy(&there.stdout)),
            (here.status.code(), String::from_utf8_lossy(&here.stdout)),
            "{arguments:?}"
        );
    }
}

#[test]
fn the_agent_itself_starts_and_reads_its_configuration() {
    let label = "arm64 agent";
    let program = programs().join("vscaled");
    let Some(emulator) = emulator().filter(|_| program.exists()) else {
        return skipped(label, "no programs for arm64, or no qemu: see above");
    };
    let run = |arguments: &[&str]| Command::new(emulator).arg(&program).args(arguments).output().unwrap();
    let version = run(&["--version"]);
    assert_eq!(
        String::from_utf8_lossy(&version.stdout).trim(),
        concat!("vscaled ", env!("CARGO_PKG_VERSION")),
        "{version:?}"
    );
    let refused = run(&["run", "--config=/no/such/file"]);
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("/no/such/file"),
        "{refused:?}"
    );
}
