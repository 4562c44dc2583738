//! Which cgroup a process is in.

use std::path::Path;

use procfs::process::Process;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

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

/// Sends a signal to a process of a cgroup, or of one below it, and to no other: the process is held while it is looked at, so
/// that none which has its number later gets the signal. Without a signal only whether one may be sent is tried.
///
/// Errors: a sentence.
pub fn signal_in(
    hierarchy: &Hierarchy,
    proc_root: &Path,
    cgroup: &CgroupPath,
    pid: i32,
    signal: Option<Signal>,
) -> Result<(), String> {
    let failed = |call: &str, errno: rustix::io::Errno| format!("process {pid} cannot be {call}: {errno}");
    let number = Pid::from_raw(pid).ok_or("the runtime does not say which process is the first")?;
    let held = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| failed("found", errno))?;
    let is_in = cgroup_of_pid(hierarchy, proc_root, pid).is_some_and(|path| path.below(cgroup).is_some());
    if !is_in {
        return Err(format!(
            "process {pid} is not seen in the container's cgroup: signals need the host's processes in sight (hostPID)"
        ));
    }
    let sent = match signal {
        Some(signal) => pidfd_send_signal(held, signal),
        None => test_kill_process(number),
    };
    sent.map_err(|errno| failed("sent a signal", errno))
}
