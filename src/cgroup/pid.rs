//! Which cgroup a process is in.

use std::path::Path;

use procfs::process::Process;

use super::Hierarchy;
use crate::model::{CgroupPath, CgroupVersion, InvalidPath, Resource};

/// Why a process's cgroup is not known.
#[derive(Debug, thiserror::Error)]
pub enum PidError {
    /// The process has ended, or its `/proc` entry cannot be read.
    #[error("cannot read {proc_root}/{pid}/cgroup: {source}; has the process ended? Host processes need hostPID")]
    Unreadable {
        proc_root: String,
        pid: i32,
        source: procfs::ProcError,
    },
    /// The process is in no hierarchy of that controller.
    #[error("process {pid} is in no cgroup of the {controller} controller")]
    NoHierarchy { pid: i32, controller: Resource },
    /// The process is outside of what the mount shows.
    #[error("process {pid}: its {controller} cgroup is outside of {}: {source}", mount.display())]
    OutsideMount {
        pid: i32,
        controller: Resource,
        mount: std::path::PathBuf,
        source: InvalidPath,
    },
    /// v1: the controllers hold the process in different places, which no container runtime does.
    #[error("process {pid} is in cpu cgroup {cpu} but in memory cgroup {memory}: not a container's process")]
    Divided {
        pid: i32,
        cpu: CgroupPath,
        memory: CgroupPath,
    },
}

/// The cgroup a process is in, as a path below the mounts. `proc_root` is `/proc`, or where the host's is mounted.
///
/// On v1 a process that is just ending is in `/`; on v2 it keeps its path until it is reaped.
pub fn cgroup_of_pid(hierarchy: &Hierarchy, proc_root: &Path, pid: i32) -> Result<CgroupPath, PidError> {
    let entries = Process::new_with_root(proc_root.join(pid.to_string()))
        .and_then(|process| process.cgroups())
        .map_err(|source| PidError::Unreadable {
            proc_root: proc_root.display().to_string(),
            pid,
            source,
        })?;
    let path = |controller: Resource| {
        let holds = |name: &String| name == controller.name();
        let entry = entries.0.iter().find(|entry| match hierarchy.version() {
            CgroupVersion::V1 => entry.controllers.iter().any(holds),
            CgroupVersion::V2 => entry.hierarchy == 0,
        });
        let printed = &entry.ok_or(PidError::NoHierarchy { pid, controller })?.pathname;
        hierarchy
            .visible(controller, printed)
            .map_err(|source| PidError::OutsideMount {
                pid,
                controller,
                mount: hierarchy.mount(controller).to_owned(),
                source,
            })
    };
    let (cpu, memory) = (path(Resource::Cpu)?, path(Resource::Memory)?);
    if cpu == memory {
        Ok(cpu)
    } else {
        Err(PidError::Divided { pid, cpu, memory })
    }
}
