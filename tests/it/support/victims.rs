//! Processes that the OOM killer ends.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use vscaled::model::CgroupPath;

use super::tree::CgroupTree;

/// A shell command that allocates more than any limit of a test. It does not read /dev/zero: User-Mode Linux 7.2
/// panics when a process is killed during that read.
pub(crate) const TOO_MUCH: &str = "x=x; while :; do x=$x$x; done";

/// Makes the OOM killer prefer this shell, and the program that it executes.
const FIRST: &str = "echo 1000 >/proc/$$/oom_score_adj";

/// A shell command that allocates this many bytes and holds them, also without /dev/zero.
pub(crate) fn holding(bytes: u64) -> String {
    format!("exec perl -e 'vec(my $held, {bytes} - 1, 8) = 1; sleep 1000'")
}

/// Starts a shell command that the kernel will kill. The OOM killer prefers it to the cgroup's other processes, even
/// larger ones.
pub(crate) fn victim(cgroups: &CgroupTree, cgroup: &CgroupPath, command: &str) -> Child {
    let directories = cgroups.directories(cgroup);
    let enter: Vec<String> = directories
        .iter()
        .map(|directory| format!("echo $$ >{}/cgroup.procs", directory.display()))
        .collect();
    Command::new("sh")
        .args(["-ec", &format!("{FIRST} && {} && {command}", enter.join(" && "))])
        .stdin(Stdio::null())
        // The pipe has no reader, so the process holds the memory of its output.
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for the end of a process that the kernel must have killed.
pub(crate) fn was_killed(mut child: Child) {
    assert_eq!(child.wait().unwrap().signal(), Some(9), "not killed; is there swap?");
}
