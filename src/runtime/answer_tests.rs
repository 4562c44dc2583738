//! Answers as runtimes give them, and answers no runtime should give.

use super::*;

fn listed() -> proto::Container {
    let labels = [
        (POD_NAME, "web-0"),
        (POD_NAMESPACE, "shop"),
        (POD_UID, "11111111-2222-3333-4444-555555555555"),
        (CONTAINER_NAME, "app"),
    ];
    proto::Container {
        id: "c1".into(),
        pod_sandbox_id: "s1".into(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..proto::Container::default()
    }
}

fn status() -> proto::ContainerStatus {
    proto::ContainerStatus {
        id: "c1".into(),
        state: proto::ContainerState::ContainerRunning.into(),
        started_at: 1_700_000_000_000_000_000,
        metadata: Some(proto::ContainerMetadata {
            name: "app".into(),
            attempt: 3,
        }),
        ..proto::ContainerStatus::default()
    }
}

fn answer(status: proto::ContainerStatus, info: &str) -> proto::ContainerStatusResponse {
    proto::ContainerStatusResponse {
        status: Some(status),
        info: [("info".to_owned(), info.to_owned())].into(),
    }
}

fn what(result: Result<RuntimeContainer, Problem>) -> String {
    match result.unwrap_err() {
        Problem::Nonsense { what } => what,
        other => panic!("{other}"),
    }
}

#[test]
fn a_containers_identity_comes_from_the_kubelets_labels() {
    let container = container(listed(), answer(status(), "{}")).unwrap();
    assert_eq!(container.name, "app");
    assert_eq!(container.pod_uid, "11111111-2222-3333-4444-555555555555");
    assert_eq!(container.sandbox_id, "s1");
    assert_eq!(container.restart_count, 3);
    assert_eq!(container.started_at.unwrap().to_string(), "2023-11-14T22:13:20Z");
    assert_eq!((container.pid, container.resources), (None, None));
}

#[test]
fn what_the_status_does_not_say_is_read_from_the_spec_beside_it() {
    let info = r#"{"pid":42,"runtimeSpec":{"linux":{"resources":{
        "cpu":{"shares":1024,"quota":0,"period":100000,"cpus":"0-3"},"memory":{"limit":67108864},"unified":{"a":"b"}}}}}"#;
    let container = container(listed(), answer(status(), info)).unwrap();
    assert_eq!(container.pid, Some(42));
    let expected = CriResources {
        cpu_shares: Some(1024),
        cpu_quota: None,
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(67_108_864),
    };
    assert_eq!(container.resources, Some(expected));
}

#[test]
fn the_status_wins_over_the_spec() {
    let mut status = status();
    status.resources = Some(proto::ContainerResources {
        linux: Some(proto::LinuxContainerResources {
            cpu_shares: 512,
            ..proto::LinuxContainerResources::default()
        }),
    });
    let info = r#"{"runtimeSpec":{"linux":{"resources":{"cpu":{"shares":1024}}}}}"#;
    let container = container(listed(), answer(status, info)).unwrap();
    assert_eq!(container.resources.unwrap().cpu_shares, Some(512));
}

#[test]
fn words_that_are_not_json_only_mean_that_nothing_is_told() {
    let container = container(listed(), answer(status(), "pid is 42")).unwrap();
    assert_eq!((container.pid, container.resources), (None, None));
}

#[test]
fn an_exited_container_has_no_pid_whatever_the_runtime_remembers() {
    let mut status = status();
    status.state = proto::ContainerState::ContainerExited.into();
    let container = container(listed(), answer(status, r#"{"pid":42}"#)).unwrap();
    assert_eq!((container.state, container.pid), (ContainerState::Exited, None));
}

#[test]
fn contradictions_are_refused_by_name() {
    let empty = proto::ContainerStatusResponse::default();
    assert_eq!(what(container(listed(), empty)), "status is missing");

    let mut other = status();
    other.id = "c2".into();
    assert_eq!(
        what(container(listed(), answer(other, ""))),
        "it is about container \"c2\""
    );

    let mut unknown = status();
    unknown.state = 17;
    assert!(what(container(listed(), answer(unknown, ""))).starts_with("state is "));

    let mut unlabelled = listed();
    unlabelled.labels.remove(POD_UID);
    assert_eq!(
        what(container(unlabelled, answer(status(), ""))),
        "io.kubernetes.pod.uid is missing"
    );
}

#[test]
fn an_untold_driver_is_not_systemd() {
    let told = |linux| cgroup_driver(&proto::RuntimeConfigResponse { linux });
    let driver = |cgroup_driver| Some(proto::LinuxRuntimeConfiguration { cgroup_driver });
    assert_eq!(told(None), Ok(None));
    assert_eq!(told(driver(0)), Ok(Some(Driver::Systemd)));
    assert_eq!(told(driver(1)), Ok(Some(Driver::Cgroupfs)));
    assert!(told(driver(2)).is_err());
}

#[test]
fn runtimes_are_known_by_name() {
    assert_eq!(runtime_kind("containerd"), Ok(RuntimeKind::Containerd));
    assert_eq!(runtime_kind("cri-o"), Ok(RuntimeKind::Crio));
    assert_eq!(runtime_kind("docker"), Ok(RuntimeKind::Docker));
    assert!(matches!(runtime_kind("podman"), Err(Problem::UnknownRuntime { .. })));
    assert!(matches!(runtime_kind(""), Err(Problem::Nonsense { .. })));
}
