//! A process whose only memory is page cache.

use std::fs::File;
use std::path::PathBuf;

use tempfile::TempDir;
use vscaled::model::CgroupPath;

use super::agent::Agent;
use super::bare::BareNode;

const MEBIBYTES: u64 = 150;

/// A file that a process of the container has open and has read. Dropping the value removes the file.
pub(crate) struct Cached {
    directory: TempDir,
}

impl Cached {
    /// Caches the whole file for the container. The process reads the file again on every request.
    pub(crate) async fn by(node: &mut BareNode, cgroup: &CgroupPath, agent: &Agent) -> Self {
        // On a real file system, because the kernel cannot drop tmpfs pages. Guests of v2lab share this directory.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let cached = Self { directory };
        File::create(cached.file()).unwrap().set_len(MEBIBYTES << 20).unwrap();
        let program = format!(
            "open(F, \"<\", \"{}\") or die; my $block; while (1) {{ sysseek(F, 0, 0); \
             while (sysread(F, $block, 1 << 20)) {{}} select(undef, undef, undef, 0.01) while (! -e \"{}\") }}",
            cached.file().display(),
            cached.go_on().display(),
        );
        node.spawn(cgroup, &format!("exec perl -e '{program}'"));
        let in_use = || node.cgroups().memory_usage(cgroup) > MEBIBYTES << 20;
        agent.wait_for("the file to be cached", in_use).await;
        cached
    }

    pub(crate) fn read_again(&self) {
        File::create(self.go_on()).map(drop).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("cached")
    }

    fn go_on(&self) -> PathBuf {
        self.directory.path().join("go-on")
    }
}
