//! vscaled never writes to a cgroup that was removed, or removed and created again.

use vscaled::cgroup::{CgroupDir, Reason};

use super::kernel_writes::quota;
use super::tree::Tree;

#[test]
fn a_removed_cgroup_says_so() {
    let Some(tree) = Tree::new("removed") else { return };
    let path = tree.below("pod");
    let cgroup = tree.open(&path);
    cgroup.check().unwrap();
    tree.remove(&path);
    assert_eq!(cgroup.check().unwrap_err().reason, Reason::Vanished);
    let write = cgroup.write(quota(cgroup.version(), 20_000)).unwrap_err();
    let read = cgroup.read_all().unwrap_err();
    let usage = cgroup.memory_usage().unwrap_err();
    let reopened = CgroupDir::open(&tree.hierarchy, &path).unwrap_err();
    for error in [write, read, usage, reopened] {
        assert_eq!(error.reason, Reason::Vanished);
        assert!(error.is_gone());
    }
}

#[test]
fn a_path_made_again_is_another_cgroup() {
    let Some(tree) = Tree::new("recreated") else { return };
    let path = tree.below("pod");
    let before = tree.open(&path);
    tree.remove(&path);
    tree.make(&path);
    let after = tree.open(&path);
    assert_ne!(before.identity(), after.identity());
    assert_eq!(after.identity(), tree.open(&path).identity());
    assert_eq!(before.check().unwrap_err().reason, Reason::Recreated);
    let untouched = after.read_all().unwrap();
    let error = before.write(quota(before.version(), 20_000)).unwrap_err();
    assert_eq!(error.reason, Reason::Recreated);
    assert_eq!(before.read_all().unwrap_err().reason, Reason::Recreated);
    assert_eq!(after.read_all().unwrap(), untouched);
}

#[test]
fn an_open_cgroup_does_not_hinder_its_removal() {
    let Some(tree) = Tree::new("held") else { return };
    let path = tree.below("pod/container");
    let _held = tree.open(&path);
    tree.remove(&path);
    tree.remove(&path.parent().unwrap());
}
