use std::fs;

use tempfile::TempDir;

use super::*;
use crate::model::QosClass;

const UID: &str = "6c4b2d1e-0000-4000-8000-00000000000a";
const SLICE: &str = "6c4b2d1e_0000_4000_8000_00000000000a";
const HASH: &str = "0123456789abcdef0123456789abcdef";

fn id(digit: &str) -> String {
    digit.repeat(64)
}

/// A v2 tree with these cgroups.
fn v2(cgroups: &[String]) -> (TempDir, Hierarchy) {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
    for cgroup in cgroups {
        fs::create_dir_all(root.path().join(cgroup.trim_start_matches('/'))).unwrap();
    }
    let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
    (root, hierarchy)
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::new(text).unwrap()
}

#[test]
fn a_cgroupfs_tree_is_found_and_listed() {
    let (_tree, hierarchy) = v2(&[
        format!("/kubepods/burstable/pod{UID}/{}", id("a")),
        format!("/kubepods/burstable/pod{UID}/{}", id("b")),
        format!("/kubepods/besteffort/pod{HASH}"),
        "/system.slice/kubelet.service".to_owned(),
    ]);
    let kubepods = Kubepods::find(&hierarchy, None).unwrap();
    assert_eq!(kubepods, Kubepods::at(path("/kubepods")).unwrap());
    assert_eq!(kubepods.driver, Driver::Cgroupfs);
    let pods = kubepods.scan(&hierarchy).unwrap();
    let found: Vec<_> = pods
        .iter()
        .map(|pod| (pod.place.uid.as_str(), pod.place.qos, pod.containers.len()))
        .collect();
    assert_eq!(
        found,
        [
            (HASH, Some(QosClass::BestEffort), 0),
            (UID, Some(QosClass::Burstable), 2)
        ]
    );
    assert_eq!(
        pods[1].containers[0].path,
        path(&format!("/kubepods/burstable/pod{UID}/{}", id("a")))
    );
}

#[test]
fn a_systemd_tree_of_crio_leaves_monitors_out() {
    let pod = format!("/kubepods.slice/kubepods-pod{SLICE}.slice");
    let (_tree, hierarchy) = v2(&[
        format!("{pod}/crio-{}.scope/container", id("a")),
        format!("{pod}/crio-conmon-{}.scope", id("a")),
        "/kubepods.slice/kubepods-burstable.slice".to_owned(),
    ]);
    let kubepods = Kubepods::find(&hierarchy, None).unwrap();
    assert_eq!(kubepods.driver, Driver::Systemd);
    let pods = kubepods.scan(&hierarchy).unwrap();
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].place.qos, Some(QosClass::Guaranteed));
    let [container] = pods[0].containers.as_slice() else {
        panic!("{:?}", pods[0].containers);
    };
    assert_eq!(container.id.as_str(), id("a"));
    assert_eq!(container.path, path(&format!("{pod}/crio-{}.scope", id("a"))));
}

#[test]
fn a_kubelet_in_a_container_has_a_deep_root() {
    let outer = format!(
        "/machine.slice/libpod-{}.scope/container/kubelet.slice/kubelet-kubepods.slice",
        id("c")
    );
    let pod = format!("{outer}/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICE}.slice");
    let (_tree, hierarchy) = v2(&[format!("{pod}/cri-containerd-{}.scope", id("a"))]);
    let kubepods = Kubepods::find(&hierarchy, Some(Driver::Systemd)).unwrap();
    assert_eq!(kubepods.path, path(&outer));
    assert_eq!(kubepods.scan(&hierarchy).unwrap()[0].containers.len(), 1);
    let error = Kubepods::find(&hierarchy, Some(Driver::Cgroupfs)).unwrap_err();
    assert!(error.to_string().starts_with("no kubepods within 5 levels"), "{error}");
}

#[test]
fn of_two_roots_the_one_with_pods_is_taken() {
    let (tree, hierarchy) = v2(&[
        "/kubepods/burstable".to_owned(),
        format!("/kubepods.slice/kubepods-pod{SLICE}.slice"),
    ]);
    assert_eq!(Kubepods::find(&hierarchy, None).unwrap().path, path("/kubepods.slice"));
    assert_eq!(
        Kubepods::find(&hierarchy, Some(Driver::Cgroupfs)).unwrap().path,
        path("/kubepods")
    );
    fs::create_dir(tree.path().join(format!("kubepods/pod{UID}"))).unwrap();
    let error = Kubepods::find(&hierarchy, None).unwrap_err().to_string();
    assert!(
        error.starts_with("several kubelet roots: ") && error.matches("/kubepods").count() == 2,
        "{error}"
    );
}

#[test]
fn a_root_with_containers_beats_what_was_left() {
    let pod = format!("/kubepods.slice/kubepods-pod{SLICE}.slice");
    // The driver was changed: pods that have ended keep their cgroups.
    let (_tree, hierarchy) = v2(&[
        format!("/kubepods/burstable/pod{UID}"),
        format!("{pod}/cri-containerd-{}.scope", id("a")),
    ]);
    assert_eq!(Kubepods::find(&hierarchy, None).unwrap().path, path("/kubepods.slice"));
    // `cgroupRoot` was changed.
    let deep = "/kubelet.slice/kubelet-kubepods.slice";
    let (_tree, hierarchy) = v2(&[
        pod,
        format!(
            "{deep}/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{}.scope",
            id("a")
        ),
    ]);
    assert_eq!(Kubepods::find(&hierarchy, None).unwrap().path, path(deep));
    // Docker Desktop.
    let (_tree, hierarchy) = v2(&[format!("/kubepods/kubepods/besteffort/pod{UID}/{}", id("a"))]);
    let kubepods = Kubepods::find(&hierarchy, None).unwrap();
    assert_eq!(kubepods.path, path("/kubepods/kubepods"));
    assert_eq!(kubepods.scan(&hierarchy).unwrap().len(), 1);
    let (_tree, hierarchy) = v2(&["/kubepods/burstable".to_owned(), format!("{deep}/other.slice")]);
    assert_eq!(Kubepods::find(&hierarchy, None).unwrap().path, path("/kubepods"));
}

#[test]
fn no_root_is_inside_a_pod() {
    let pod = format!("kubepods-pod{SLICE}.slice");
    let made = format!("kubepods/pod{UID}/{}", id("b"));
    let (_tree, hierarchy) = v2(&[format!("/kubepods.slice/{pod}/cri-containerd-{}.scope/{made}", id("a"))]);
    let error = Kubepods::find(&hierarchy, Some(Driver::Cgroupfs)).unwrap_err();
    assert!(error.to_string().starts_with("no kubepods within 5 levels"), "{error}");
    // The kubelet uses systemd and the runtime does not: containers are not below their pods.
    let (_tree, hierarchy) = v2(&[
        format!("/kubepods.slice/{pod}"),
        format!("/system.slice/{pod}:cri-containerd:{}/{made}", id("a")),
    ]);
    assert_eq!(Kubepods::find(&hierarchy, None).unwrap().path, path("/kubepods.slice"));
}

#[test]
fn a_v1_tree_is_listed_by_its_cpu_hierarchy() {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(
        root.path()
            .join(format!("cpu,cpuacct/kubelet/kubepods/pod{UID}/{}", id("a"))),
    )
    .unwrap();
    fs::create_dir_all(root.path().join("memory/kubelet/kubepods")).unwrap();
    let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
    let kubepods = Kubepods::find(&hierarchy, None).unwrap();
    assert_eq!(kubepods.path, path("/kubelet/kubepods"));
    assert_eq!(kubepods.scan(&hierarchy).unwrap()[0].containers.len(), 1);
}

#[test]
fn a_configured_path_must_be_such_a_root() {
    let refusal = |text| Kubepods::at(path(text)).unwrap_err().to_string();
    assert!(refusal("/system.slice").contains("it is not the root of all pods"));
    assert!(refusal("/xkubepods.slice").contains("it is not the root of all pods"));
    assert_eq!(
        Kubepods::at(path("/vscaled-demo/kubepods")).unwrap().driver,
        Driver::Cgroupfs
    );
}

#[test]
fn a_root_that_is_gone_has_no_pods() {
    let (_tree, hierarchy) = v2(&[]);
    assert_eq!(Kubepods::at(path("/kubepods")).unwrap().scan(&hierarchy).unwrap(), []);
}
