//! Fixtures that tests start and clean up: an agent, a container runtime with images, a cgroup tree, pods.
//!
//! All fixtures work the same on cgroup v1 and v2, need root, and touch only what they created. A missing program
//! fails the test with the name of the package to install. Only programs that take minutes to build are optional: a
//! test without them reports that it is skipped.

pub(crate) mod agent;
pub(crate) mod allocator;
pub(crate) mod amounts;
pub(crate) mod apimodel;
pub(crate) mod bare;
pub(crate) mod cached;
pub(crate) mod churn;
pub(crate) mod cluster;
pub(crate) mod containerd;
pub(crate) mod fleet;
pub(crate) mod http;
pub(crate) mod image;
pub(crate) mod mounts;
pub(crate) mod network;
pub(crate) mod pods;
pub(crate) mod policy;
pub(crate) mod prometheus;
pub(crate) mod runtimes;
pub(crate) mod tenants;
pub(crate) mod terminal;
pub(crate) mod tree;
pub(crate) mod victims;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};

/// A directory for the tests' files. Unix sockets and the native snapshotter need a real file system, which a guest's
/// view of its host's files is not. There, `/run` is a tmpfs.
pub(crate) fn scratch() -> PathBuf {
    let run = Path::new("/run");
    let writable = |run: &Path| nix::unistd::access(run, nix::unistd::AccessFlags::W_OK).is_ok();
    if writable(run) && statfs(run).is_ok_and(|info| info.filesystem_type() == TMPFS_MAGIC) {
        run.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// Runs `vscalectl` with this standard input until it ends.
pub(crate) fn vscalectl(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // vscalectl reads everything before it writes anything, so neither side waits for the other.
    match child.stdin.take().unwrap().write_all(input.as_bytes()) {
        // A command that refuses its flags does not read.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.unwrap(),
    }
    child.wait_with_output().unwrap()
}

/// The pause between two looks at something, the first of which began at this moment. Short looks take at most a sixth of the time:
/// on a machine with one processor they keep what they wait for from happening.
pub(crate) fn pause_after(looked: Instant) -> Duration {
    (5 * looked.elapsed()).clamp(Duration::from_millis(10), Duration::from_secs(5))
}

/// Reports that a test is skipped.
#[expect(
    clippy::explicit_write,
    reason = "what a passing test prints with a macro is captured and not shown"
)]
pub(crate) fn skipped(label: &str, why: &str) {
    writeln!(io::stderr(), "SKIPPED {label}: {why}").unwrap();
}
