//! What the kubelet sends → pods.

use super::*;
use crate::kubernetes::follow::Followed;

/// A pod as kube-apiserver 1.20.2 encodes it: the kubelet uses the same code.
const RECORDED: &[u8] = include_bytes!("../../../../tests/data/pod-protobuf/pod.pb");
/// The same pod as JSON, of the same API server.
const AS_JSON: &str = include_str!("../../../../tests/data/pod-protobuf/pod.json");

fn known() -> Arc<SharedList<Pod>> {
    SharedList::new("pods".to_owned(), None, ObjectMemory::new(1 << 20), <_>::default())
}

fn pod(name: &str, uid: &str) -> core::Pod {
    let metadata = core::ObjectMeta {
        name: name.to_owned(),
        namespace: "shop".to_owned(),
        uid: uid.to_owned(),
        ..Default::default()
    };
    core::Pod {
        metadata: Some(metadata),
        ..Default::default()
    }
}

fn event(kind: EventType, pod: &core::Pod) -> WatchPodsEvent {
    WatchPodsEvent {
        r#type: kind.into(),
        pod: pod.encode_to_vec(),
    }
}

fn uids(known: &SharedList<Pod>) -> Vec<String> {
    known.with(|followed| followed.objects().map(|pod| pod.metadata.uid.clone()).collect())
}

#[test]
fn a_recorded_pod_is_the_same_in_both_encodings() {
    let (from_kubelet, _) = decode_pod(RECORDED).object.unwrap();
    let (from_api, _) = Decoded::<Pod>::parse(AS_JSON).object.unwrap();
    assert_eq!(from_kubelet, from_api);
    // It says enough for that to mean something.
    let app = &from_kubelet.spec.containers[0];
    assert_eq!(app.memory_settings.len(), 4, "{:?}", app.memory_settings);
    assert_eq!(
        from_kubelet.status.container_statuses[0]
            .last_state
            .terminated
            .as_ref()
            .unwrap()
            .reason,
        "OOMKilled"
    );
    assert!(from_kubelet.spec.overhead.memory.is_some() && from_kubelet.spec.priority.is_some());
}

#[test]
fn resources_of_newer_kubelets_are_read() {
    let amount = |text: &str| core::Quantity {
        string: text.to_owned(),
    };
    let list = |text: &str| [("memory".to_owned(), amount(text))].into();
    let has = core::ResourceRequirements {
        limits: list("128Mi"),
        requests: list("64Mi"),
    };
    let status = core::ContainerStatus {
        name: "app".to_owned(),
        resources: Some(has.clone()),
        allocated_resources: list("64Mi"),
        ..Default::default()
    };
    let mut sent = pod("web", "u");
    sent.status = Some(core::PodStatus {
        container_statuses: vec![status],
        resources: Some(has),
        observed_generation: 3,
        ..Default::default()
    });
    let (read, _) = decode_pod(&sent.encode_to_vec()).object.unwrap();
    let status = &read.status.container_statuses[0];
    let limit = |requirements: Option<crate::model::Requirements>| requirements.unwrap().limits.memory.unwrap().get();
    assert_eq!(
        (limit(status.resources), limit(read.status.resources)),
        (128 << 20, 128 << 20)
    );
    assert_eq!(status.allocated_resources.unwrap().memory.unwrap().get(), 64 << 20);
    assert_eq!(read.status.observed_generation, 3);
}

#[test]
fn restart_rules_of_newer_kubelets_are_read() {
    let has_rules = |rules: Vec<core::ContainerRestartRule>| {
        let container = core::Container {
            restart_policy_rules: rules,
            ..Default::default()
        };
        let mut sent = pod("web", "u");
        sent.spec = Some(core::PodSpec {
            containers: vec![container],
            ..Default::default()
        });
        let (read, _) = decode_pod(&sent.encode_to_vec()).object.unwrap();
        read.spec.containers[0].has_restart_rules
    };
    assert!(has_rules(vec![core::ContainerRestartRule::default()]) && !has_rules(Vec::new()));
}

#[test]
fn both_sources_name_ephemeral_containers() {
    let debugger = core::Container {
        name: "dbg".to_owned(),
        ..Default::default()
    };
    let mut sent = pod("web", "u");
    sent.spec = Some(core::PodSpec {
        ephemeral_containers: vec![core::EphemeralContainer {
            ephemeral_container_common: Some(debugger),
        }],
        ..Default::default()
    });
    let (of_kubelet, _) = decode_pod(&sent.encode_to_vec()).object.unwrap();
    let json =
        r#"{"spec": {"ephemeralContainers": [{"name": "dbg", "image": "busybox", "targetContainerName": "app"}]}}"#;
    let of_server: Pod = serde_json::from_str(json).unwrap();
    for pod in [of_kubelet, of_server] {
        assert_eq!(pod.spec.ephemeral_containers, ["dbg"]);
    }
}

#[test]
fn a_static_pod_counts_as_its_mirror_pod() {
    let annotations = |source: &str| {
        let mut sent = pod("proxy", "hash");
        let metadata = sent.metadata.as_mut().unwrap();
        metadata.annotations.insert(CONFIG_SOURCE.to_owned(), source.to_owned());
        decode_pod(&sent.encode_to_vec()).object.unwrap().0.metadata.annotations
    };
    assert_eq!(annotations("file")[annotation::MIRROR], "hash");
    assert!(annotations("api").is_empty());
}

#[test]
fn a_pod_that_has_ended_is_gone() {
    let known = known();
    let mut web = pod("web", "u");
    assert!(apply(&known, &event(EventType::Added, &web)).unwrap());
    web.status = Some(core::PodStatus {
        phase: "Succeeded".to_owned(),
        ..Default::default()
    });
    assert!(apply(&known, &event(EventType::Modified, &web)).unwrap());
    assert!(uids(&known).is_empty());
}

#[test]
fn an_ended_pod_takes_no_namesake_along() {
    let known = known();
    for uid in ["before", "after"] {
        apply(&known, &event(EventType::Added, &pod("web", uid))).unwrap();
    }
    assert!(!apply(&known, &event(EventType::Deleted, &pod("web", "before"))).unwrap());
    assert_eq!(uids(&known), ["after"]);
    assert!(apply(&known, &event(EventType::Deleted, &pod("web", "after"))).unwrap());
    assert!(uids(&known).is_empty());
}

#[test]
fn an_earlier_pod_does_not_replace_its_namesake() {
    let created = |uid: &str, seconds| {
        let mut pod = pod("web", uid);
        pod.metadata.as_mut().unwrap().creation_timestamp = Some(core::Time { seconds, nanos: 0 });
        pod
    };
    let (before, after) = (created("before", 1), created("after", 2));
    let known = known();
    for pod in [&before, &after] {
        assert!(apply(&known, &event(EventType::Added, pod)).unwrap());
    }
    for kind in [EventType::Added, EventType::Modified, EventType::Deleted] {
        assert!(!apply(&known, &event(kind, &before)).unwrap(), "{kind:?}");
        assert_eq!(uids(&known), ["after"]);
    }
}

#[test]
fn what_is_no_pod_is_named_and_hides_no_other() {
    let known = known();
    let garbled = WatchPodsEvent {
        r#type: EventType::Added.into(),
        pod: b"\x0a\xff\xff".to_vec(),
    };
    assert!(apply(&known, &garbled).unwrap());
    apply(&known, &event(EventType::Added, &pod("web", "u"))).unwrap();
    assert_eq!(uids(&known), ["u"]);
    let problems: Vec<_> = known.with(|followed: &mut Followed<Pod>| followed.problems().collect());
    assert!(problems[0].contains("it has no name"), "{problems:?}");
}

#[test]
fn an_event_of_an_unknown_type_ends_the_watch() {
    let event = WatchPodsEvent {
        r#type: 9,
        pod: Vec::new(),
    };
    let why = apply(&known(), &event).unwrap_err();
    assert!(why.message().contains("type 9"), "{why}");
}
