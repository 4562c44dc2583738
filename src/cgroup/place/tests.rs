use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::model::{Driver, RuntimeKind};
use crate::plan::{container_cgroup_name, pod_cgroup_path};

const UID: &str = "6c4b2d1e-0000-4000-8000-00000000000a";

fn id() -> String {
    "a1".repeat(32)
}

fn parse(path: &str) -> Option<Place> {
    Place::parse(&CgroupPath::new(path).unwrap())
}

fn container(qos: Option<QosClass>) -> Option<Place> {
    let uid = uid_in_cgroup_name(UID).unwrap();
    let id = ContainerId::parse(&id()).unwrap();
    Some(Place::Container {
        pod: PodPlace { uid, qos },
        id,
    })
}

#[test]
fn every_driver_and_runtime_has_its_own_names() {
    let (id, uid, slice) = (id(), UID, UID.replace('-', "_"));
    let (burstable, guaranteed) = (Some(QosClass::Burstable), Some(QosClass::Guaranteed));
    let deep = format!(
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{slice}.slice"
    );
    let cases = [
        (format!("/kubepods/burstable/pod{uid}/{id}"), burstable),
        (format!("/kubepods/pod{uid}/{id}"), guaranteed),
        (format!("/kubepods/pod{uid}/crio-{id}"), guaranteed),
        (
            format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{id}.scope"),
            guaranteed,
        ),
        (
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/docker-{id}.scope"),
            burstable,
        ),
        (
            format!("/kubepods.slice/kubepods-pod{slice}.slice/crio-{id}.scope/container/exec"),
            guaranteed,
        ),
        (
            format!("/system.slice/containerd.service/kubepods-burstable-pod{slice}.slice:cri-containerd:{id}"),
            burstable,
        ),
        (format!("/docker/{id}/{deep}/cri-containerd-{id}.scope"), burstable),
        (
            format!("/machine.slice/libpod-{id}.scope/container/{deep}/{id}"),
            burstable,
        ),
        (
            format!("/docker/{id}/kubelet/kubepods/pod{uid}/{id}/docker/{id}"),
            guaranteed,
        ),
        (format!("/lab/pod{uid}/{id}"), None),
    ];
    for (path, qos) in cases {
        assert_eq!(parse(&path), container(qos), "{path}");
    }
}

#[test]
fn the_levels_above_containers_are_recognised() {
    let pod = |qos, uid| {
        Some(Place::Pod(PodPlace {
            uid: uid_in_cgroup_name(uid).unwrap(),
            qos,
        }))
    };
    let hash = "0123456789abcdef0123456789abcdef";
    for system in [
        "/kubepods/system",
        "/kubepods.slice/kubepods-system.slice",
        "/a/kubepods/system",
    ] {
        assert_eq!(parse(system), Some(Place::Qos(QosClass::Guaranteed)), "{system}");
    }
    let in_system = [
        format!("/kubepods/system/pod{UID}"),
        format!(
            "/kubepods.slice/kubepods-system.slice/kubepods-system-pod{}.slice",
            UID.replace('-', "_")
        ),
    ];
    for path in in_system {
        assert_eq!(parse(&path), pod(Some(QosClass::Guaranteed), UID), "{path}");
    }
    assert_eq!(parse("/kubepods"), Some(Place::Kubepods));
    assert_eq!(parse("/kubelet.slice/kubelet-kubepods.slice"), Some(Place::Kubepods));
    assert_eq!(parse("/kubepods/burstable"), Some(Place::Qos(QosClass::Burstable)));
    assert_eq!(
        parse("/kubepods.slice/kubepods-besteffort.slice"),
        Some(Place::Qos(QosClass::BestEffort))
    );
    assert_eq!(
        parse(&format!("/kubepods/besteffort/pod{UID}")),
        pod(Some(QosClass::BestEffort), UID)
    );
    assert_eq!(
        parse(&format!("/kubepods.slice/kubepods-pod{hash}.slice")),
        pod(Some(QosClass::Guaranteed), hash),
        "a static pod's UID is a hash"
    );
    for other in [
        "/",
        "/system.slice",
        "/burstable",
        "/system",
        "/mykubepods",
        "/a-kubepodsx.slice",
        "/kubepods/other",
    ] {
        assert_eq!(parse(other), None, "{other}");
    }
}

#[test]
fn a_monitor_is_not_a_container() {
    let other = |path: &str| matches!(parse(path), Some(Place::Other(_)));
    assert!(other(&format!("/kubepods/pod{UID}/crio-conmon-{}", id())));
    assert!(other(&format!(
        "/kubepods.slice/kubepods-pod{}.slice/crio-conmon-{}.scope",
        UID.replace('-', "_"),
        id()
    )));
    assert!(other(&format!("/kubepods/pod{UID}/somebody.service")));
}

#[test]
fn no_container_poses_as_another_pod() {
    let victim = "ffffffff-0000-4000-8000-00000000000a";
    let path = CgroupPath::new(&format!("/kubepods/pod{UID}/{}/kubepods/pod{victim}/{}", id(), id())).unwrap();
    let root = CgroupPath::new("/kubepods").unwrap();
    let Some(Place::Container { pod, .. }) = Place::parse_below(&root, &path) else {
        panic!("not a container");
    };
    assert_eq!(pod.uid.as_str(), UID);
    assert_eq!(Place::parse_below(&CgroupPath::new("/other").unwrap(), &path), None);
    assert_eq!(Place::parse_below(&root, &root), Some(Place::Kubepods));
}

proptest! {
    #[test]
    fn what_the_planner_names_is_read_back(
        uid in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}",
        id in "[0-9a-f]{64}",
        qos in select(vec![QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]),
        runtime in select(vec![RuntimeKind::Containerd, RuntimeKind::Crio, RuntimeKind::Docker]),
        driver in select(vec![Driver::Cgroupfs, Driver::Systemd]),
        root in select(vec!["/", "/kubelet", "/outer/kubelet"]),
        inside in select(vec!["", "container", "container/exec", "init.scope"]),
    ) {
        let pod = PodPlace { uid: uid_in_cgroup_name(&uid).unwrap(), qos: Some(qos) };
        let mut path = pod_cgroup_path(driver, root, qos, &uid);
        prop_assert_eq!(parse(&path), Some(Place::Pod(pod.clone())), "{}", path);

        path = format!("{path}/{}", container_cgroup_name(driver, runtime, &id));
        if !inside.is_empty() {
            path = format!("{path}/{inside}");
        }
        let container = ContainerId::parse(&id).unwrap();
        prop_assert_eq!(parse(&path), Some(Place::Container { pod, id: container }), "{}", path);
    }

    #[test]
    fn both_readings_know_the_same_paths(path in "(/[a-f0-9pod:.slice-]{1,80}){0,5}") {
        if let Ok(path) = CgroupPath::new(&path) {
            let below = Place::parse_below(&CgroupPath::root(), &path);
            prop_assert_eq!(Place::parse(&path).is_some(), below.is_some());
        }
    }
}

#[test]
fn uids_are_uuids_or_manifest_hashes() {
    let uuid = "6c4b2d1e-0000-4000-8000-00000000000a";
    assert_eq!(uid_in_cgroup_name(uuid).unwrap().as_str(), uuid);
    assert_eq!(uid_in_cgroup_name(&uuid.replace('-', "_")).unwrap().as_str(), uuid);
    let hash = "0123456789abcdef0123456789abcdef";
    assert_eq!(uid_in_cgroup_name(hash).unwrap().as_str(), hash);
    for bad in [
        "",
        "6c4b2d1e",
        &uuid.to_uppercase(),
        &uuid[1..],
        "6c4b2d1e.0000-4000-8000-00000000000a",
    ] {
        assert_eq!(uid_in_cgroup_name(bad), None, "{bad}");
    }
}

#[test]
fn container_ids_are_64_hexadecimal_digits() {
    assert!(ContainerId::parse(&"a1".repeat(32)).is_some());
    assert!(ContainerId::parse(&"a1".repeat(31)).is_none());
    assert!(ContainerId::parse(&"A1".repeat(32)).is_none());
    assert!(ContainerId::parse(&"g1".repeat(32)).is_none());
}
