//! Answers as runtimes give them, and answers no runtime should give.

use super::*;

fn labels() -> HashMap<String, String> {
    let labels = [
        (POD_NAME, "web-0"),
        (POD_NAMESPACE, "shop"),
        (POD_UID, "11111111-2222-3333-4444-555555555555"),
        (CONTAINER_NAME, "app"),
    ];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn metadata() -> Option<proto::ContainerMetadata> {
    Some(proto::ContainerMetadata {
        name: "app".into(),
        attempt: 3,
    })
}

fn entry() -> proto::Container {
    proto::Container {
        id: "c1".into(),
        metadata: metadata(),
        created_at: 1_700_000_000_000_000_000,
        labels: labels(),
        ..proto::Container::default()
    }
}

fn status() -> proto::ContainerStatus {
    proto::ContainerStatus {
        id: "c1".into(),
        ..proto::ContainerStatus::default()
    }
}

fn answer(status: proto::ContainerStatus, info: &str) -> proto::ContainerStatusResponse {
    proto::ContainerStatusResponse {
        status: Some(status),
        info: [("info".to_owned(), info.to_owned())].into(),
    }
}

fn what<T: std::fmt::Debug>(result: Result<T, Problem>) -> String {
    let problem = result.unwrap_err().to_string();
    let what = problem.strip_prefix("the runtime's answer makes no sense: ");
    what.unwrap_or_else(|| panic!("{problem}")).to_owned()
}

#[test]
fn a_container_is_known_by_kubelet_labels() {
    let expected = ListedContainer {
        id: "c1".into(),
        name: "app".into(),
        pod: PodId {
            uid: "11111111-2222-3333-4444-555555555555".into(),
            name: "web-0".into(),
            namespace: "shop".into(),
        },
        restart_count: 3,
        created_at: Some("2023-11-14T22:13:20Z".parse().unwrap()),
    };
    assert_eq!(listed(entry()), Ok(expected));
}

#[test]
fn the_spec_fills_gaps_of_the_status() {
    let info = r#"{"pid":42,"runtimeSpec":{"linux":{"resources":{
        "cpu":{"shares":1024,"quota":0,"period":100000,"cpus":"0-3"},"memory":{"limit":67108864},"unified":{"a":"b"}}}}}"#;
    let stored = stored("c1", answer(status(), info)).unwrap();
    let expected = CriResources {
        cpu_shares: Some(1024),
        cpu_quota: None,
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(67_108_864),
    };
    assert_eq!(stored, Some(expected));
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
    let stored = stored("c1", answer(status, info)).unwrap();
    assert_eq!(stored.unwrap().cpu_shares, Some(512));
}

#[test]
fn each_amount_of_the_status_is_stored() {
    let stored_of = |cpu_shares, cpu_quota, cpu_period, memory_limit_in_bytes| {
        let mut status = status();
        let linux = proto::LinuxContainerResources {
            cpu_shares,
            cpu_quota,
            cpu_period,
            memory_limit_in_bytes,
        };
        status.resources = Some(proto::ContainerResources { linux: Some(linux) });
        stored("c1", answer(status, "")).unwrap().unwrap()
    };
    let expected = CriResources {
        cpu_shares: Some(512),
        cpu_quota: Some(-1),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(67_108_864),
    };
    assert_eq!(stored_of(512, -1, 100_000, 67_108_864), expected);
    assert_eq!(stored_of(0, 0, 0, 0), CriResources::default());
}

#[test]
fn the_first_process_has_a_number_above_zero() {
    let first = |info: &str| first_process("c1", &answer(status(), info));
    assert_eq!(first(r#"{"pid":42,"sandboxID":"s"}"#), Ok(Some(42)));
    for info in [
        r#"{"pid":0}"#,
        r#"{"pid":-1}"#,
        r#"{"pid":"42"}"#,
        r#"{"pid":4294967296}"#,
        "{}",
        "",
    ] {
        assert_eq!(first(info), Ok(None), "{info}");
    }
    let other = first_process("c2", &answer(status(), r#"{"pid":42}"#));
    assert_eq!(what(other), "it is about container \"c1\"");
}

#[test]
fn both_outputs_of_a_command_are_kept_in_part() {
    let done = ended(3, " out\n", "err \n").unwrap();
    assert_eq!((done.exit_code, done.output.as_str()), (3, "out\nerr"));
    let long = ended(0, &"x".repeat(1025), "").unwrap();
    assert_eq!(long.output.len(), 1024);
}

#[test]
fn crio_has_a_late_command_end_with_minus_one() {
    let limit = Duration::from_secs(1);
    assert_eq!(ended(-1, "", "command timed out"), Err(Problem::Deadline { limit }));
    assert_eq!(ended(-1, "", "other").map(|done| done.exit_code), Ok(-1));
    assert_eq!(ended(1, "", "command timed out").map(|done| done.exit_code), Ok(1));
}

/// The answer about a command that had a second and left this.
fn ended(exit_code: i32, stdout: &str, stderr: &str) -> Result<Executed, Problem> {
    let answer = proto::ExecSyncResponse {
        stdout: stdout.into(),
        stderr: stderr.into(),
        exit_code,
    };
    executed(&answer, Duration::from_secs(1))
}

#[test]
fn a_pod_is_known_by_its_sandbox() {
    let sandbox = |uid: &str| proto::PodSandbox {
        id: "s1".to_owned(),
        metadata: Some(proto::PodSandboxMetadata {
            name: "web-0".to_owned(),
            uid: uid.to_owned(),
            namespace: "shop".to_owned(),
            ..proto::PodSandboxMetadata::default()
        }),
        ..proto::PodSandbox::default()
    };
    let expected = ListedPod {
        sandbox: "s1".to_owned(),
        pod: PodId {
            uid: "u".into(),
            name: "web-0".to_owned(),
            namespace: "shop".to_owned(),
        },
    };
    assert_eq!(listed_pod(sandbox("u")), Ok(expected));
    assert_eq!(what(listed_pod(sandbox(""))), "sandbox \"s1\" has no metadata.uid");
    assert!(is_the_kubelets(&labels()) && !is_the_kubelets(&HashMap::new()));
}

#[test]
fn words_that_are_no_json_say_nothing() {
    assert_eq!(stored("c1", answer(status(), "pid is 42")), Ok(None));
}

#[test]
fn contradictions_are_refused_by_name() {
    let empty = proto::ContainerStatusResponse::default();
    assert_eq!(what(stored("c1", empty)), "status is missing");

    let mut other = status();
    other.id = "c2".into();
    assert_eq!(what(stored("c1", answer(other, ""))), "it is about container \"c2\"");
}

#[test]
fn a_list_entry_without_an_owner_is_refused() {
    let mut unlabelled = entry();
    unlabelled.labels.remove(CONTAINER_NAME);
    assert_eq!(what(listed(unlabelled)), "io.kubernetes.container.name is missing");

    let mut nobodys = entry();
    nobodys.labels.remove(POD_UID);
    assert_eq!(what(listed(nobodys)), "io.kubernetes.pod.uid is missing");
}

#[test]
fn a_time_that_is_not_told_is_not_the_epoch() {
    let mut untold = entry();
    untold.created_at = 0;
    assert_eq!(listed(untold).unwrap().created_at, None);
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
    let unknown = runtime_kind("podman").unwrap_err().to_string();
    assert!(
        unknown.starts_with("\"podman\" is not a supported runtime"),
        "{unknown}"
    );
    assert_eq!(what(runtime_kind("")), "runtime_name is empty");
}
