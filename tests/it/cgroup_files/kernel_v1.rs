//! Behaviour of cgroup v1 only.

use std::fs;

use nix::errno::Errno;
use vscaled::cgroup::Reason;
use vscaled::model::CgroupVersion::V1;
use vscaled::model::{ControlFile, CpuQuota, MemoryLimit, Setting};

use super::tree::Tree;
use crate::support::skipped;

const fn quota(micros: u64) -> Setting {
    Setting::CfsQuota(CpuQuota::Micros(micros))
}

#[test]
fn a_childs_quota_may_not_exceed_its_parents() {
    let Some(tree) = Tree::of_version("child-quota", V1) else {
        return;
    };
    let child = tree.open(&tree.below("container"));
    let pod = tree.open(&tree.path);
    assert!(pod.write(quota(20_000)).is_ok());
    let error = child.write(quota(30_000)).unwrap_err();
    assert_eq!(error.reason, Reason::Invalid { wanted: quota(30_000) });
    assert!(error.to_string().contains("grow the parent first"), "{error}");
    assert!(pod.write(quota(30_000)).is_ok());
    assert!(child.write(quota(30_000)).is_ok());
    assert_eq!(
        pod.write(quota(20_000)).unwrap_err().reason,
        Reason::Invalid { wanted: quota(20_000) }
    );
    // A new period alone changes the share as well.
    let period = Setting::CfsPeriod(50_000);
    assert_eq!(
        child.write(period).unwrap_err().reason,
        Reason::Invalid { wanted: period }
    );
}

#[test]
fn the_kernel_is_busy_where_this_refuses() {
    let Some(mut tree) = Tree::of_version("busy", V1) else {
        return;
    };
    let (path, bytes) = (tree.path.clone(), 30 << 20);
    tree.occupy(&path, bytes);
    let raw = fs::write(tree.file(&path, ControlFile::MemoryLimit), (bytes / 2).to_string()).unwrap_err();
    assert_eq!(raw.raw_os_error(), Some(Errno::EBUSY as i32));
    let limit = Setting::MemoryLimit(MemoryLimit::Bytes(bytes / 2));
    let error = tree.open(&path).write(limit).unwrap_err();
    assert!(matches!(error.reason, Reason::BelowUsage { .. }), "{error}");
}

#[test]
fn memory_alone_stays_below_memory_with_swap() {
    let Some(tree) = Tree::of_version("memsw", V1) else {
        return;
    };
    let cgroup = tree.open(&tree.path);
    if cgroup.read(ControlFile::MemswLimit).unwrap().is_none() {
        skipped("memsw", "this kernel does not account swap");
        return;
    }
    let (mega, limit, memsw) = (1_u64 << 20, Setting::MemoryLimit, Setting::MemswLimit);
    let bytes = |count| MemoryLimit::Bytes(count * mega);
    assert_eq!(
        cgroup.write(memsw(bytes(64))).unwrap_err().reason,
        Reason::Invalid {
            wanted: memsw(bytes(64))
        }
    );
    for setting in [limit(bytes(64)), memsw(bytes(64))] {
        assert_eq!(cgroup.write(setting).unwrap(), setting);
    }
    let error = cgroup.write(limit(bytes(128))).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("memory.memsw.limit_in_bytes: raise that one first"),
        "{error}"
    );
    for setting in [memsw(MemoryLimit::Max), limit(MemoryLimit::Max)] {
        assert_eq!(cgroup.write(setting).unwrap(), setting);
    }
}
