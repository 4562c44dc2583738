//! The effects of a write, on v1 and v2.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use vscaled::cgroup::{CgroupDir, Hierarchy, Reason};
use vscaled::model::{
    CgroupVersion, ControlFile, CpuMax, CpuQuota, DEFAULT_CFS_PERIOD_US, MemoryLimit, Resource, Setting,
};

use super::tree::{Tree, wait_for};
use crate::support::skipped;

/// A memory limit in the version's file.
pub(super) fn memory(version: CgroupVersion, limit: MemoryLimit) -> Setting {
    match version {
        CgroupVersion::V1 => Setting::MemoryLimit(limit),
        CgroupVersion::V2 => Setting::MemoryMax(limit),
    }
}

/// A quota for a period of 100 ms in the version's file.
pub(super) fn quota(version: CgroupVersion, micros: u64) -> Setting {
    let quota = CpuQuota::Micros(micros);
    match version {
        CgroupVersion::V1 => Setting::CfsQuota(quota),
        CgroupVersion::V2 => Setting::CpuMax(CpuMax {
            quota,
            period_us: 100_000,
        }),
    }
}

#[test]
fn a_new_cgroup_is_unbounded() {
    let Some(tree) = Tree::new("unbounded") else { return };
    let settings = tree.open(&tree.path).read_all().unwrap();
    assert_eq!(settings.cpu_max(), Some(CpuMax::of_limit(None, DEFAULT_CFS_PERIOD_US)));
    assert_eq!(settings.memory_limit(), Some(MemoryLimit::Max));
    for setting in settings.iter() {
        assert_eq!(
            setting.to_string(),
            tree.raw(&tree.path, setting.file()),
            "{}",
            setting.file()
        );
    }
}

#[test]
fn what_is_written_is_read_back_with_the_kernels_rounding() {
    let Some(tree) = Tree::new("rounding") else { return };
    let cgroup = tree.open(&tree.path);
    let version = cgroup.version();
    let limit = memory(version, MemoryLimit::Bytes(20_000_001));
    let unlimited = memory(version, MemoryLimit::Max);
    assert_eq!(cgroup.read(limit.file()).unwrap(), Some(unlimited));
    let written = cgroup.write(limit).unwrap();
    assert_eq!(written, memory(version, MemoryLimit::Bytes(19_996_672)));
    assert_eq!(tree.raw(&tree.path, limit.file()), "19996672");

    assert!(cgroup.write(quota(version, 17_500)).is_ok());
    assert_eq!(
        cgroup.read_all().unwrap().cpu_max().unwrap().quota,
        CpuQuota::Micros(17_500)
    );
    // Values shorter than the file's previous content, and "no limit" again.
    assert!(cgroup.write(quota(version, 1_000)).is_ok());
    let unbounded = cgroup.write(memory(version, MemoryLimit::Max)).unwrap();
    assert_eq!(unbounded, memory(version, MemoryLimit::Max));
}

#[test]
fn a_refusal_of_a_value_names_the_rule() {
    let Some(tree) = Tree::new("range") else { return };
    let cgroup = tree.open(&tree.path);
    let wanted = quota(cgroup.version(), 999);
    let error = cgroup.write(wanted).unwrap_err();
    assert_eq!(error.reason, Reason::Invalid { wanted });
    assert_eq!(error.file, tree.file(&tree.path, wanted.file()));
    assert!(error.to_string().contains("at least 1000"), "{error}");
    assert_eq!(
        cgroup.read_all().unwrap().cpu_max(),
        Some(CpuMax::of_limit(None, DEFAULT_CFS_PERIOD_US))
    );
}

#[test]
fn a_quota_and_its_burst_are_refused_in_the_wrong_order() {
    let Some(tree) = Tree::new("burst") else { return };
    let cgroup = tree.open(&tree.path);
    let version = cgroup.version();
    let burst = match version {
        CgroupVersion::V1 => Setting::CfsBurst,
        CgroupVersion::V2 => Setting::CpuMaxBurst,
    };
    if cgroup.read(burst(0).file()).unwrap().is_none() {
        skipped("burst", "this kernel has none (Linux 5.14 and later)");
        return;
    }
    for setting in [quota(version, 50_000), burst(40_000)] {
        assert!(cgroup.write(setting).is_ok());
    }
    for wanted in [quota(version, 30_000), burst(50_001)] {
        assert_eq!(cgroup.write(wanted).unwrap_err().reason, Reason::Invalid { wanted });
    }
    for setting in [
        burst(24_000),
        quota(version, 30_000),
        quota(version, 60_000),
        burst(60_000),
    ] {
        assert_eq!(cgroup.write(setting).unwrap(), setting);
    }
}

#[test]
fn a_limit_below_what_is_in_use_is_refused_and_nobody_dies() {
    let Some(mut tree) = Tree::new("below-usage") else {
        return;
    };
    let (path, bytes) = (tree.path.clone(), 30 << 20);
    tree.occupy(&path, bytes);
    let cgroup = tree.open(&path);
    let limit = |bytes| memory(cgroup.version(), MemoryLimit::Bytes(bytes));
    // The shell, tail and sleep; head ends once tail has read all of its output.
    let processes = 3;
    wait_for("head to end", || tree.population(&path) == processes);
    for from in ["max", "67108864"] {
        let error = cgroup.write(limit(bytes / 2)).unwrap_err();
        let Reason::BelowUsage { usage, wanted } = error.reason else {
            panic!("from {from}: {error}");
        };
        assert!(usage >= bytes && wanted == bytes / 2, "from {from}: {error}");
        assert!(cgroup.write(limit(64 << 20)).is_ok());
    }
    assert_eq!(
        cgroup.read_all().unwrap().memory_limit(),
        Some(MemoryLimit::Bytes(64 << 20))
    );
    assert_eq!(tree.population(&path), processes, "every process is still there");
}

#[test]
fn a_file_of_the_other_version_is_not_written() {
    let Some(tree) = Tree::new("version") else { return };
    let cgroup = tree.open(&tree.path);
    let other = match cgroup.version() {
        CgroupVersion::V1 => CgroupVersion::V2,
        CgroupVersion::V2 => CgroupVersion::V1,
    };
    let error = cgroup.write(memory(other, MemoryLimit::Max)).unwrap_err();
    assert!(matches!(error.reason, Reason::Absent), "{error}");
}

/// The machine's hierarchies mounted read-only in a mount namespace, for the lifetime of this value.
struct ReadOnlyMounts {
    holder: Child,
    root: TempDir,
}

impl ReadOnlyMounts {
    fn of(hierarchy: &Hierarchy) -> Self {
        let root = TempDir::new().unwrap();
        let mut script = String::new();
        for controller in Resource::ALL {
            let point = match hierarchy.version() {
                CgroupVersion::V1 => root.path().join(controller.name()),
                CgroupVersion::V2 => root.path().to_owned(),
            };
            std::fs::create_dir_all(&point).unwrap();
            let (from, to) = (hierarchy.mount(controller).display(), point.display());
            script += &format!("mount --bind {from} {to} && mount -o remount,bind,ro {to} && ");
        }
        script += "touch \"$0\" && exec sleep 1000";
        let ready = root.path().with_extension("ready");
        let mut holder = Command::new("unshare");
        holder
            .args(["-m", "sh", "-c", &script])
            .arg(&ready)
            .stdin(Stdio::null());
        let holder = holder.spawn().unwrap();
        wait_for("the read-only mounts", || ready.exists());
        std::fs::remove_file(ready).unwrap();
        Self { holder, root }
    }

    fn hierarchy(&self) -> Hierarchy {
        let inside = format!("/proc/{}/root{}", self.holder.id(), self.root.path().display());
        Hierarchy::of_tree(inside.as_ref()).unwrap()
    }
}

impl Drop for ReadOnlyMounts {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

#[test]
fn a_read_only_mount_is_named_as_such() {
    let Some(tree) = Tree::new("read-only") else { return };
    let mounts = ReadOnlyMounts::of(&tree.hierarchy);
    let cgroup = CgroupDir::open(&mounts.hierarchy(), &tree.path).unwrap();
    assert_eq!(cgroup.read_all().unwrap(), tree.open(&tree.path).read_all().unwrap());
    let error = cgroup.write(quota(cgroup.version(), 20_000)).unwrap_err();
    assert_eq!(error.reason, Reason::ReadOnly);
    let file = match cgroup.version() {
        CgroupVersion::V1 => ControlFile::CfsQuota,
        CgroupVersion::V2 => ControlFile::CpuMax,
    };
    assert!(tree.raw(&tree.path, file).starts_with(['m', '-']), "still unbounded");
}
