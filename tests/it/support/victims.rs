//! Processes that the kernel kills for want of memory.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use vscaled::model::CgroupPath;

use super::tree::CgroupTree;

/// A shell command that holds more than any limit of a test. Not by reading /dev/zero: User-Mode Linux 7.2 panics when a
/// process is killed in the middle of that.
pub(crate) const TOO_MUCH: &str = "x=x; while :; do x=$x$x; done";

/// Has the kernel choose this shell, and what it becomes, before others.
const FIRST: &str = "echo 1000 >/proc/$$/oom_score_adj";

/// A shell command that takes so many bytes, no more, and holds them; not by reading /dev/zero either.
pub(crate) fn holding(bytes: u64) -> String {
    format!("exec perl -e 'vec(my $held, {bytes} - 1, 8) = 1; sleep 1000'")
}

/// Starts a shell command in a cgroup that is going to be killed: the kernel chooses it before the cgroup's other processes,
/// also while it is smaller than they are.
pub(crate) fn victim(cgroups: &CgroupTree, cgroup: &CgroupPath, command: &str) -> Child {
    let directories = cgroups.directories(cgroup);
    let enter: Vec<String> = directories
        .iter()
        .map(|directory| format!("echo $$ >{}/cgroup.procs", directory.display()))
        .collect();
    Command::new("sh")
        .args(["-ec", &format!("{FIRST} && {} && {command}", enter.join(" && "))])
        .stdin(Stdio::null())
        // Nobody reads: what it writes there, it holds.
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for the end of a process, which must be the kernel's doing.
pub(crate) fn was_killed(mut child: Child) {
    assert_eq!(child.wait().unwrap().signal(), Some(9), "not killed; is there swap?");
}
