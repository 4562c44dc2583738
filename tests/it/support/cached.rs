//! A process whose memory is nothing but page cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use vscaled::cgroup::CgroupPath;

use super::agent::Agent;
use super::bare::BareNode;

const MEBIBYTES: u64 = 150;
/// Tests run beside each other in one process.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A file that a process of the container has open and has read. Removed with this value.
pub(crate) struct Cached {
    file: PathBuf,
    go_on: PathBuf,
}

impl Cached {
    /// All of the file is cached for the container. Its process reads it once more, and again, when it is told to.
    pub(crate) async fn by(node: &mut BareNode, cgroup: &CgroupPath, agent: &Agent) -> Self {
        // On a real file system: what is in a tmpfs cannot be dropped.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let beside =
            |name| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{number}", std::process::id()));
        let cached = Self {
            file: beside("cached"),
            go_on: beside("go-on"),
        };
        File::create(&cached.file).unwrap().set_len(MEBIBYTES << 20).unwrap();
        let program = format!(
            "open(F, \"<\", \"{}\") or die; my $block; while (1) {{ sysseek(F, 0, 0); \
             while (sysread(F, $block, 1 << 20)) {{}} select(undef, undef, undef, 0.01) while (! -e \"{}\") }}",
            cached.file.display(),
            cached.go_on.display(),
        );
        node.spawn(cgroup, &format!("exec perl -e '{program}'"));
        let in_use = || node.cgroups().memory_usage(cgroup) > MEBIBYTES << 20;
        agent.wait_for("the file to be cached", in_use).await;
        cached
    }

    pub(crate) fn read_again(&self) {
        File::create(&self.go_on).map(drop).unwrap();
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        for file in [&self.file, &self.go_on].into_iter().filter(|file| file.exists()) {
            fs::remove_file(file).unwrap_or_else(|error| eprintln!("{}: {error}", file.display()));
        }
    }
}
