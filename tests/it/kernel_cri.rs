//! The runtime client against a real containerd, its runc or crun, and the kernel's own files. The same tests hold on
//! cgroup v1 and v2.

use std::path::Path;
use std::time::Duration;

use vscaled::plan::{CgroupVersion, CriResources, Driver, RuntimeKind};
use vscaled::resources::{ControlFile, CpuShares, MemoryLimit, Setting, Settings};
use vscaled::runtime::proto::LinuxContainerResources;
use vscaled::runtime::{
    ContainerRuntime, ContainerState, Cri, Deadlines, EventStream, Happened, Problem, RuntimeEvent, discover, weight,
};

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

/// A node on a slow guest kernel needs more than a real one.
fn patient() -> Deadlines {
    Deadlines {
        read: Duration::from_secs(20),
        update: Duration::from_secs(60),
    }
}

fn client(containerd: &Containerd) -> Cri {
    Cri::new(&containerd.socket(), patient()).unwrap()
}

/// The next event that is told about, whatever comes in between. Waits so long only where it never comes.
async fn expect(events: &mut EventStream, wanted: &RuntimeEvent) {
    let found = async {
        while let Some(event) = events.next().await {
            if event == *wanted {
                return;
            }
        }
        panic!("the stream ended before {wanted:?}");
    };
    tokio::time::timeout(Duration::from_secs(60), found)
        .await
        .unwrap_or_else(|_| panic!("{wanted:?} was never told"));
}

fn about(id: &str, happened: Happened) -> RuntimeEvent {
    RuntimeEvent::Container {
        id: id.to_owned(),
        happened,
    }
}

#[tokio::test]
async fn containers_are_listed_by_name_and_each_tells_its_process_and_stored_resources() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let (cri, info) = discover(Some(&containerd.socket()), patient()).await.unwrap();
    assert_eq!((info.name.as_str(), info.kind), ("containerd", RuntimeKind::Containerd));
    // containerd tells from 2.0 on; an older one must not be taken for systemd's.
    assert!(matches!(info.cgroup_driver, None | Some(Driver::Cgroupfs)), "{info:?}");

    let pods = cri.list_pods().await.unwrap();
    assert_eq!(pods.len(), 1);
    assert_eq!(
        (pods[0].uid.as_str(), pods[0].namespace.as_str(), pods[0].name.as_str()),
        (UID, "test", "web-0")
    );
    let listing = cri.list_containers().await.unwrap();
    assert!(listing.unusable.is_empty(), "{:?}", listing.unusable);
    let mut containers = listing.containers;
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(containers.len(), 2);
    let app = &containers[0];
    assert_eq!(
        (app.name.as_str(), app.pod_name.as_str(), app.pod_namespace.as_str()),
        ("app", "web-0", "test")
    );
    assert_eq!((app.pod_uid.as_str(), &app.id), (UID, &pod.containers[0].id));
    assert_eq!(app.sandbox_id, pod.sandbox_id);
    let sidecar = &containers[1];
    assert_eq!((sidecar.name.as_str(), &sidecar.id), ("sidecar", &pod.containers[1].id));
    assert!(app.created_at.is_some() && app.created_at < sidecar.created_at);

    let told = cri.container(&app.id).await.unwrap();
    assert_eq!(
        (&told.id, &told.name, &told.pod_uid, &told.pod_name, &told.pod_namespace),
        (&app.id, &app.name, &app.pod_uid, &app.pod_name, &app.pod_namespace)
    );
    assert_eq!(
        (told.state, told.pid),
        (ContainerState::Running, Some(pod.containers[0].pid))
    );
    assert!(told.started_at >= app.created_at);
    let stored = CriResources {
        cpu_shares: Some(512),
        cpu_quota: Some(20_000),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(64 * MIB),
    };
    assert_eq!(told.resources, Some(stored));
    let told = cri.container(&sidecar.id).await.unwrap();
    assert_eq!(told.resources.unwrap().memory_limit_in_bytes, Some(32 * MIB));
}

async fn memory_alone_changes(containerd: &Containerd, pod: &Pod) {
    let cri = client(containerd);
    let (app, sidecar) = (&pod.containers[0], &pod.containers[1]);
    let files = |container: &Container| containerd.cgroups().settings(&container.cgroup);
    let (before, sidecar_before) = (files(app), files(sidecar));
    let stored_before = cri.container(&app.id).await.unwrap();

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
            .filter(|setting| setting.memory().is_none())
            .collect::<Vec<_>>()
    };
    assert_eq!(cpu(&after), cpu(&before));
    // The burst is there since Linux 5.14.
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

    let stored = cri.container(&app.id).await.unwrap();
    let expected = CriResources {
        memory_limit_in_bytes: Some(96 * MIB),
        ..stored_before.resources.unwrap()
    };
    assert_eq!(stored.resources, Some(expected));
    assert_eq!(
        (stored.pid, stored.started_at),
        (Some(app.pid), stored_before.started_at)
    );
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
        // The one kind of host on which crun runs nothing at all.
        Err(status) => assert!(mounts::is_hybrid() && status.message().contains("hybrid"), "{status}"),
    }
}

#[tokio::test]
async fn starts_updates_and_ends_are_told() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let cri = client(&containerd);
    let mut events = cri.events();
    expect(&mut events, &RuntimeEvent::Resync).await;

    let pod = containerd.run(&pod()).await;
    let app = &pod.containers[0];
    expect(&mut events, &about(&app.id, Happened::Started)).await;

    let change = CriResources {
        cpu_shares: Some(1024),
        ..CriResources::default()
    };
    cri.update(&app.id, &change).await.unwrap();
    expect(&mut events, &about(&app.id, Happened::Updated)).await;

    containerd.end(app).await;
    expect(&mut events, &about(&app.id, Happened::Stopped)).await;
    assert_eq!(cri.container(&app.id).await.unwrap().state, ContainerState::Exited);
    let running = cri.list_containers().await.unwrap().containers;
    assert_eq!(
        running.iter().map(|container| &container.id).collect::<Vec<_>>(),
        [&pod.containers[1].id]
    );
}

#[tokio::test]
async fn a_runtime_that_stopped_is_unavailable_until_it_is_back() {
    let mut containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let cri = client(&containerd);
    let mut events = cri.events();
    expect(&mut events, &RuntimeEvent::Resync).await;
    assert_eq!(cri.list_containers().await.unwrap().containers.len(), 2);

    containerd.stop();
    let lost = async {
        loop {
            if let Some(RuntimeEvent::Lost { why }) = events.next().await {
                return why;
            }
        }
    };
    let why = tokio::time::timeout(Duration::from_secs(60), lost).await.unwrap();
    let socket = containerd.socket().display().to_string();
    assert!(why.contains(&socket), "{why}");
    let change = CriResources {
        memory_limit_in_bytes: Some(96 * MIB),
        ..CriResources::default()
    };
    let error = cri.update(&pod.containers[0].id, &change).await.unwrap_err();
    let gone = matches!(error.problem, Problem::NoSocket | Problem::Unavailable { .. });
    assert!(gone, "{error}");
    assert!(error.is_retryable());
    assert!(
        error.to_string().contains(&socket) && error.to_string().contains(&pod.containers[0].id),
        "{error}"
    );

    containerd.launch().await;
    expect(&mut events, &RuntimeEvent::Resync).await;
    assert_eq!(cri.list_containers().await.unwrap().containers.len(), 2);
    for container in &pod.containers {
        assert_eq!(cri.container(&container.id).await.unwrap().pid, Some(container.pid));
    }
}

#[tokio::test]
async fn the_beginning_of_an_id_is_not_taken_for_the_container() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let app = &pod.containers[0].id;
    let error = client(&containerd).container(&app[..12]).await.unwrap_err();
    assert!(matches!(error.problem, Problem::Nonsense { .. }), "{error}");
    assert!(error.to_string().contains(app), "{error}");
}

#[tokio::test]
async fn a_container_the_runtime_never_had_is_not_found() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let cri = client(&containerd);
    let change = CriResources {
        cpu_shares: Some(1024),
        ..CriResources::default()
    };
    for error in [
        cri.container("nobody").await.unwrap_err(),
        cri.update("nobody", &change).await.unwrap_err(),
    ] {
        assert!(error.is_not_found() && error.to_string().contains("nobody"), "{error}");
    }
}

/// What `runc --version` or `crun --version` says, as an operator would look it up.
fn version_text(program: &str) -> String {
    let mut command = std::process::Command::new(program);
    crate::support::image::output(command.arg("--version"))
}

async fn shares_become_what_the_formula_says(containerd: &Containerd, pod: &Pod, runtime: OciRuntime) {
    let app = &pod.containers[0];
    let stored = client(containerd).container(&app.id).await.unwrap();
    let shares = stored.resources.and_then(|resources| resources.cpu_shares).unwrap();
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
            assert_eq!(detected, weight::of_oci_runtime(&version_text(runtime.program())));
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
