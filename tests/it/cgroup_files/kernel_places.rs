//! vscaled finds the cgroups of pods, containers and processes.

use std::path::Path;

use vscaled::cgroup::{Kubepods, Place, cgroup_of_pid};
use vscaled::model::{CgroupPath, Driver, QosClass};

use super::kernel_writes::quota;
use super::tree::{Tree, wait_for};

const UID: &str = "6c4b2d1e-0000-4000-8000-00000000000a";

#[test]
fn a_kubelets_tree_is_listed() {
    let Some(tree) = Tree::new("scan") else { return };
    let id = "c".repeat(64);
    let container = tree.below(&format!("kubepods/burstable/pod{UID}/{id}"));
    let kubepods = Kubepods::at(tree.path.child("kubepods").unwrap()).unwrap();
    assert_eq!(kubepods.driver, Driver::Cgroupfs);
    let pods = kubepods.scan(&tree.hierarchy).unwrap();
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].place.uid.as_str(), UID);
    assert_eq!(pods[0].place.qos, Some(QosClass::Burstable));
    assert_eq!(pods[0].containers[0].path, container);
    tree.remove(&container);
    assert_eq!(kubepods.scan(&tree.hierarchy).unwrap()[0].containers, []);
}

#[test]
fn a_process_leads_to_its_container() {
    let Some(mut tree) = Tree::new("pid") else { return };
    let path = tree.below(&format!("kubepods/pod{UID}/{}", "d".repeat(64)));
    let pid = tree.run(&path, "exec sleep 1000");
    let found = || cgroup_of_pid(&tree.hierarchy, Path::new("/proc"), pid);
    wait_for("the process to be in its cgroup", || found().as_ref() == Some(&path));
    let kubepods = Kubepods::at(tree.path.child("kubepods").unwrap()).unwrap();
    assert!(matches!(kubepods.place(&path), Some(Place::Container { .. })));
    assert_eq!(kubepods.place(&CgroupPath::root()), None);
    let gone = cgroup_of_pid(&tree.hierarchy, Path::new("/proc"), i32::MAX);
    assert_eq!(gone, None);
}

#[test]
fn a_scope_and_cruns_inner_cgroup_are_resized_as_one() {
    let Some(tree) = Tree::new("crun") else { return };
    let inner = tree.below(&format!("crio-{}.scope/container", "e".repeat(64)));
    let pair = tree.open_pair(&inner);
    let version = tree.open(&inner).version();
    for micros in [40_000, 20_000, 60_000] {
        assert!(pair.write(quota(version, micros)).is_ok(), "{micros}");
        for dir in pair.dirs() {
            assert_eq!(dir.read_all().unwrap().cpu_max(), pair.read_all().unwrap().cpu_max());
        }
    }
}
