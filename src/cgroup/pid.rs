//! Finds the cgroup of a process.

use std::path::Path;

use procfs::process::Process;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

use super::Hierarchy;
use crate::model::{CgroupPath, Resource};

/// The cgroup of a process, as a path below the mounts. `proc_root` is `/proc`, or the mount point of the host's. `None` if
/// the process has ended or is hidden (without hostPID), if the mounts do not show its cgroup, or if v1's controllers place it
/// in different cgroups, which no container runtime does.
///
/// On v1 the kernel moves an ending process to `/`; on v2 the process keeps its path until it is reaped.
pub fn cgroup_of_pid(hierarchy: &Hierarchy, proc_root: &Path, pid: i32) -> Option<CgroupPath> {
    let process = Process::new_with_root(proc_root.join(pid.to_string())).ok()?;
    let (entries, version) = (process.cgroups().ok()?, hierarchy.version());
    let path = |controller: Resource| {
        let holds = |name: &String| name == controller.name();
        let mut entries = entries.0.iter();
        let entry = entries.find(|entry| version.v1_or_v2(entry.controllers.iter().any(holds), entry.hierarchy == 0));
        hierarchy.visible(controller, &entry?.pathname)
    };
    path(Resource::Cpu).filter(|cpu| path(Resource::Memory).as_ref() == Some(cpu))
}

/// Sends a signal to a process of a cgroup or of one below it. A pidfd holds the process between the check and the signal, so
/// that no later process with the same id gets the signal. Without a signal, only tries whether a signal may be sent.
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
