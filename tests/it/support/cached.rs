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

/// Files with which the test says that enough is cached, the process that it reads no more, and the test that it shall go on.
const SIGNALS: [&str; 3] = ["enough", "rests", "go-on"];

impl Cached {
    /// Caches the whole file for the container. The process rests then until [`Self::read_again`], and reads without end after that.
    pub(crate) async fn by(node: &mut BareNode, cgroup: &CgroupPath, agent: &Agent) -> Self {
        // On a real file system, because the kernel cannot drop tmpfs pages. Guests of v2lab share this directory.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let cached = Self { directory };
        File::create(cached.path("cached"))
            .unwrap()
            .set_len(MEBIBYTES << 20)
            .unwrap();
        let [enough, rests, go_on] = SIGNALS.map(|name| cached.path(name).display().to_string());
        let program = format!(
            "open(F, \"<\", \"{}\") or die; my $block; while (1) {{ sysseek(F, 0, 0); \
             while (sysread(F, $block, 1 << 20)) {{}} next unless -e \"{enough}\"; open(R, \">\", \"{rests}\") or die; \
             select(undef, undef, undef, 0.01) while (! -e \"{go_on}\") }}",
            cached.path("cached").display(),
        );
        node.spawn(cgroup, &format!("exec perl -e '{program}'"));
        let in_use = || node.cgroups().memory_usage(cgroup) > MEBIBYTES << 20;
        agent.wait_for("the file to be cached", in_use).await;
        cached.signal("enough");
        agent
            .wait_for("the process to rest", || cached.path("rests").exists())
            .await;
        cached
    }

    pub(crate) fn read_again(&self) {
        self.signal("go-on");
    }

    fn signal(&self, name: &str) {
        File::create(self.path(name)).map(drop).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
