//! Which cgroup a process is in.

use std::path::Path;

use procfs::process::Process;

use super::Hierarchy;
use crate::model::{CgroupPath, CgroupVersion, Resource};

/// The cgroup a process is in, as a path below the mounts. `proc_root` is `/proc`, or where the host's is mounted. None if
/// the process has ended or is hidden (without hostPID), if the mounts do not show its cgroup, and if v1's controllers hold
/// it in different places, which no container runtime does.
///
/// On v1 a process that is just ending is in `/`; on v2 it keeps its path until it is reaped.
#[must_use]
pub fn cgroup_of_pid(hierarchy: &Hierarchy, proc_root: &Path, pid: i32) -> Option<CgroupPath> {
    let process = Process::new_with_root(proc_root.join(pid.to_string())).ok()?;
    let entries = process.cgroups().ok()?;
    let path = |controller: Resource| {
        let holds = |name: &String| name == controller.name();
        let entry = entries.0.iter().find(|entry| match hierarchy.version() {
            CgroupVersion::V1 => entry.controllers.iter().any(holds),
            CgroupVersion::V2 => entry.hierarchy == 0,
        });
        hierarchy.visible(controller, &entry?.pathname)
    };
    path(Resource::Cpu).filter(|cpu| path(Resource::Memory).as_ref() == Some(cpu))
}
