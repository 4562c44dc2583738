//! The runtime client with a real containerd, runc or crun, and the kernel's files, on cgroup v1 and v2.

mod host_client;
mod oci_version;

use std::path::Path;
use std::time::Duration;

use vscaled::model::{CgroupVersion, ControlFile, CpuShares, CriResources, MemoryLimit, Resource, Setting, Settings};
use vscaled::runtime::proto::LinuxContainerResources;
use vscaled::runtime::{ContainerRuntime, Cri, Deadlines, weight};

use crate::support::containerd::{Containerd, OciRuntime};
use crate::support::mounts;
use crate::support::pods::{Container, ContainerSpec, Pod, PodSpec};

const MIB: i64 = 1 << 20;
const POD_LIMIT: MemoryLimit = MemoryLimit::Bytes(256 << 20);
const UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";

/// A pod of two idle containers with different resources.
fn pod() -> PodSpec {
    let container = |name, cpu_shares, cpu_quota, memory_limit_in_bytes| ContainerSpec {
        name,
        script: "while true; do sleep 1000; done",
        mounts: Vec::new(),
        resources: LinuxContainerResources {
            cpu_shares,
            cpu_quota,
            cpu_period: 100_000,
            memory_limit_in_bytes,
        },
    };
    PodSpec {
        name: "web-0",
        uid: UID,
        memory_limit: POD_LIMIT,
        containers: vec![
            container("app", 512, 20_000, 64 * MIB),
            container("sidecar", 102, 5_000, 32 * MIB),
        ],
    }
}

/// A slow guest kernel needs more time than a real one.
fn patient() -> Deadlines {
    Deadlines {
        read: Duration::from_secs(20),
        update: Duration::from_secs(60),
    }
}

fn client(containerd: &Containerd) -> Cri {
    Cri::new(&containerd.socket(), patient()).unwrap()
}

async fn memory_alone_changes(containerd: &Containerd, pod: &Pod) {
    let cri = client(containerd);
    let (app, sidecar) = (&pod.containers[0], &pod.containers[1]);
    let files = |container: &Container| containerd.cgroups().settings(&container.cgroup);
    let (before, sidecar_before) = (files(app), files(sidecar));
    let stored_before = cri.stored(&app.id).await.unwrap();
    let started_at = containerd.life(&app.id).await.started_at;

    let change = CriResources {
        memory_limit_in_bytes: Some(96 * MIB),
        ..CriResources::default()
    };
    cri.update(&app.id, &change).await.unwrap();

    let after = files(app);
    assert_eq!(after.memory_limit(), Some(MemoryLimit::Bytes(96 << 20)));
    let cpu = |settings: &Settings| {
        settings
            .iter()
            .filter(|setting| setting.file().resource() == Resource::Cpu)
            .collect::<Vec<_>>()
    };
    assert_eq!(cpu(&after), cpu(&before));
    // The burst exists since Linux 5.14.
    let older = cpu(&after)
        .iter()
        .filter(|setting| setting.burst_us().is_none())
        .count();
    let is_v1 = containerd.cgroups().version() == CgroupVersion::V1;
    assert_eq!(older, if is_v1 { 3 } else { 2 });
    assert_eq!(files(sidecar), sidecar_before);
    assert_eq!(
        containerd.cgroups().settings(&pod.cgroup).memory_limit(),
        Some(POD_LIMIT)
    );

    let expected = CriResources {
        memory_limit_in_bytes: Some(96 * MIB),
        ..stored_before.unwrap()
    };
    assert_eq!(cri.stored(&app.id).await.unwrap(), Some(expected));
    assert_eq!(containerd.pid(&app.id), app.pid);
    assert_eq!(containerd.life(&app.id).await.started_at, started_at);
}

#[tokio::test]
async fn updating_memory_leaves_cpu_and_the_process_alone() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    memory_alone_changes(&containerd, &pod).await;
}

#[tokio::test]
async fn with_crun_it_is_the_same() {
    let containerd = Containerd::start(OciRuntime::Crun).await;
    match containerd.try_run(&pod()).await {
        Ok(pod) => {
            memory_alone_changes(&containerd, &pod).await;
            shares_become_what_the_formula_says(&containerd, &pod, OciRuntime::Crun).await;
        }
        // The only kind of host on which crun runs no container.
        Err(status) => assert!(mounts::is_hybrid() && status.message().contains("hybrid"), "{status}"),
    }
}

/// The output of `runc --version` or `crun --version`.
fn version_text(program: &str) -> String {
    let mut command = std::process::Command::new(program);
    crate::support::image::output(command.arg("--version"))
}

async fn shares_become_what_the_formula_says(containerd: &Containerd, pod: &Pod, runtime: OciRuntime) {
    let app = &pod.containers[0];
    let stored = client(containerd).stored(&app.id).await.unwrap();
    let shares = stored.and_then(|stored| stored.cpu_shares).unwrap();
    let shares = CpuShares::new(shares.try_into().unwrap());
    let files = containerd.cgroups().settings(&app.cgroup);
    match containerd.cgroups().version() {
        CgroupVersion::V1 => assert_eq!(files.get(ControlFile::CpuShares), Some(Setting::CpuShares(shares))),
        CgroupVersion::V2 => {
            let Some(Setting::CpuWeight(weight)) = files.get(ControlFile::CpuWeight) else {
                panic!("{files:?}");
            };
            let detected = weight::detect([(shares, weight)]);
            assert!(detected.is_some(), "{weight:?} of {shares:?}");
            assert_eq!(detected, oci_version::of_oci_runtime(&version_text(runtime.program())));
        }
    }
}

#[tokio::test]
async fn the_weight_formula_shows_in_a_live_container() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    shares_become_what_the_formula_says(&containerd, &pod, OciRuntime::Runc).await;
}

#[tokio::test]
async fn a_test_leaves_nothing_behind() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let pids: Vec<_> = pod.containers.iter().map(|container| container.pid).collect();
    let directory = containerd.socket().parent().map(Path::to_owned).unwrap();
    drop(containerd);
    assert!(!directory.exists());
    for pid in pids {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }
}
