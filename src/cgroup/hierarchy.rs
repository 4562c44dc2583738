//! Finds where the cpu and the memory controller are mounted.
//!
//! In comes a mount table (`/proc/self/mountinfo`) or a directory such as `/host/sys/fs/cgroup`; out comes a
//! [`Hierarchy`]: one mount for each controller (v1), or one for both (v2). A hybrid machine, with its controllers on v1
//! beside an empty cgroup2 at `unified`, is v1. Controllers divided between v1 and v2 are refused, because no kubelet runs so.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::{Error, Result, anyhow};
use procfs::process::{MountInfo, Process};

use crate::model::{CgroupPath, CgroupVersion, Resource};

/// A mounted hierarchy, or the part of one that a mount shows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// The cgroup at its top, as `/proc/<pid>/cgroup` would print it: `/`, the path of a container (kind, Docker), or
    /// `/../..` when the mount shows more than this process's cgroup namespace.
    top: String,
}

/// The mounts of the cpu and the memory controller; the same mount in v2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    version: CgroupVersion,
    cpu: Mount,
    memory: Mount,
}

/// The kernel refuses to show a file or a directory.
pub(super) fn unreadable(path: &Path, error: &io::Error) -> Error {
    anyhow!("cannot read {}: {error}", path.display())
}

impl Hierarchy {
    /// Finds the controllers in this process's mount table; below `root` only, if one is given. A root without cgroup mounts
    /// below is read as a plain tree ([`Self::of_tree`]).
    ///
    /// Errors: what is missing, where the agent searched, and what to do next.
    pub fn discover(root: Option<&Path>) -> Result<Self> {
        const TABLE: &str = "/proc/self/mountinfo";
        let table = Process::myself().and_then(|me| me.mountinfo());
        let unreadable = |error| anyhow!("cannot read {TABLE}: {error}; /proc must be mounted");
        let mut mounts = table.map_err(unreadable)?.0;
        let Some(root) = root else {
            return Self::of_mounts(&mounts, TABLE);
        };
        mounts.retain(|mount| mount.mount_point.starts_with(root) && is_cgroup(mount));
        if mounts.is_empty() {
            return Self::of_tree(root);
        }
        Self::of_mounts(&mounts, &format!("the mounts below {}", root.display()))
    }

    fn of_mounts(table: &[MountInfo], looked_in: &str) -> Result<Self> {
        let v1 = |controller: Resource| {
            let has =
                |mount: &&MountInfo| mount.fs_type == "cgroup" && mount.super_options.contains_key(controller.name());
            outermost(table.iter().filter(has))
        };
        let v2 = outermost(table.iter().filter(|mount| mount.fs_type == "cgroup2"));
        Self::choose(Resource::ALL.map(v1), v2, looked_in)
    }

    /// Reads the layout from a directory tree: v2 if `root` holds `cgroup.controllers`, else v1 with a directory for each
    /// hierarchy, named for its controllers (`cpu`, `cpu,cpuacct`, `memory`).
    ///
    /// Errors: what is missing.
    pub fn of_tree(root: &Path) -> Result<Self> {
        let at = |point: PathBuf| Mount {
            point,
            top: "/".to_owned(),
        };
        let looked_in = root.display().to_string();
        if root.join("cgroup.controllers").exists() {
            return Self::choose([None, None], Some(at(root.to_owned())), &looked_in);
        }
        let names = fs::read_dir(root).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
        let names: Vec<OsString> = names.map_err(|error| unreadable(root, &error))?;
        let v1 = |controller: Resource| {
            let has = |name: &&OsString| {
                let name = name.to_str().unwrap_or_default();
                name.split(',').any(|one| one == controller.name())
            };
            // `cpu` beside `cpu,cpuacct` is a link to it: take the shorter name.
            names.iter().filter(has).min().map(|name| at(root.join(name)))
        };
        Self::choose(Resource::ALL.map(v1), None, &looked_in)
    }

    /// Chooses between v1's mounts of cpu and memory, and v2's of both.
    fn choose(v1: [Option<Mount>; 2], v2: Option<Mount>, looked_in: &str) -> Result<Self> {
        let missing = |controller: Resource| {
            Err(anyhow!(
                "the {controller} controller is not mounted (looked in {looked_in}); mount the host's /sys/fs/cgroup here, and \
                 check that the kernel has it ({controller} in /proc/cgroups, no cgroup_disable={controller} at boot)"
            ))
        };
        let (absent, v1) = match v1 {
            [Some(cpu), Some(memory)] => {
                let version = CgroupVersion::V1;
                return Ok(Self { version, cpu, memory });
            }
            [Some(cpu), None] => (Resource::Memory, Some(cpu)),
            [None, memory] => (Resource::Cpu, memory),
        };
        let Some(v2) = v2 else {
            return missing(absent);
        };
        let path = v2.point.join("cgroup.controllers");
        let controllers = fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
        let lacks = |controller: &Resource| controllers.split_whitespace().all(|name| name != controller.name());
        match (v1, Resource::ALL.into_iter().find(lacks)) {
            (None, None) => Ok(Self {
                version: CgroupVersion::V2,
                cpu: v2.clone(),
                memory: v2,
            }),
            (None, Some(controller)) => missing(controller),
            (Some(_), _) if lacks(&absent) => missing(absent),
            (Some(v1), _) => Err(anyhow!(
                "cpu and memory are divided between cgroup v1 ({}) and v2 ({}); no kubelet runs on such a machine",
                v1.point.display(),
                v2.point.display()
            )),
        }
    }

    pub const fn version(&self) -> CgroupVersion {
        self.version
    }

    /// The directory where a controller is mounted.
    pub fn mount(&self, controller: Resource) -> &Path {
        &self.mount_of(controller).point
    }

    /// Whether a cgroup exists, or cannot be examined.
    pub fn may_have(&self, path: &CgroupPath) -> bool {
        path.under(&self.cpu.point).try_exists().unwrap_or(true)
    }

    const fn mount_of(&self, controller: Resource) -> &Mount {
        match controller {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
        }
    }

    /// Turns a path as `/proc/<pid>/cgroup` prints it into a path below the controller's mount. `None` when the mount
    /// does not show the cgroup.
    pub fn visible(&self, controller: Resource, printed: &str) -> Option<CgroupPath> {
        let top = self.mount_of(controller).top.trim_end_matches('/');
        match printed.strip_prefix(top)? {
            "" => Some(CgroupPath::root()),
            below => CgroupPath::new(below).ok(),
        }
    }
}

fn is_cgroup(mount: &MountInfo) -> bool {
    matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2")
}

/// Of several mounts of one hierarchy, the one that shows most of it (the host's own beside a container's), then the one
/// with the shortest path, as the kubelet chooses (`getCgroupSubsystemsV1`).
fn outermost<'m>(mounts: impl Iterator<Item = &'m MountInfo>) -> Option<Mount> {
    let depth = |mount: &MountInfo| -> isize {
        let step = |component: Component<'_>| match component {
            Component::ParentDir => -1,
            Component::Normal(_) => 1,
            Component::Prefix(_) | Component::RootDir | Component::CurDir => 0,
        };
        Path::new(&mount.root).components().map(step).sum()
    };
    let best = mounts.min_by_key(|mount| (depth(mount), mount.mount_point.as_os_str().len()))?;
    Some(Mount {
        point: best.mount_point.clone(),
        top: best.root.clone(),
    })
}

#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/inputs/mounts.rs"]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
