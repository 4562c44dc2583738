//! Behaviour of cgroup v2 only.

use vscaled::cgroup::Reason;
use vscaled::model::CgroupVersion::V2;
use vscaled::model::{CgroupPath, ControlFile, CpuWeight, Setting};

use super::kernel_writes::quota;
use super::tree::Tree;

#[test]
fn a_childs_quota_may_exceed_its_parents() {
    let Some(tree) = Tree::of_version("child-quota", V2) else {
        return;
    };
    let child = tree.open(&tree.below("container"));
    let pod = tree.open(&tree.path);
    assert!(pod.write(quota(V2, 20_000)).is_ok());
    assert!(child.write(quota(V2, 30_000)).is_ok());
    assert!(pod.write(quota(V2, 10_000)).is_ok());
}

#[test]
fn the_root_has_no_limits_to_write() {
    let Some(tree) = Tree::of_version("root", V2) else {
        return;
    };
    let root = tree.open(&CgroupPath::root());
    assert!(root.read_all().unwrap().is_empty());
    let error = root.write(Setting::CpuWeight(CpuWeight::new(39))).unwrap_err();
    assert_eq!(error.reason, Reason::Absent);
}

#[test]
fn every_weight_survives_the_kernels_own_scale() {
    let Some(tree) = Tree::of_version("weights", V2) else {
        return;
    };
    let cgroup = tree.open(&tree.path);
    for weight in [1, 2, 3, 39, 59, 79, 99, 100, 101, 157, 303, 2500, 9999, 10_000] {
        let setting = Setting::CpuWeight(CpuWeight::new(weight));
        assert_eq!(cgroup.write(setting).unwrap(), setting);
        assert_eq!(tree.raw(&tree.path, ControlFile::CpuWeight), weight.to_string());
    }
}
