//! A test's own pod cgroups, and processes that use more memory than their limit.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use vscaled::cgroup::Hierarchy;
use vscaled::model::{CgroupPath, CgroupVersion, MemoryLimit, Resource};
use vscaled::oom::counters::{Counter, EVENTS, OOM_CONTROL, Reading};

use crate::support::tree::CgroupTree;
use crate::support::victims::TOO_MUCH;
pub(super) use crate::support::victims::was_killed;

pub(super) const POD_UID: &str = "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";
pub(super) const CONTAINER: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const LIMIT: MemoryLimit = MemoryLimit::Bytes(16 << 20);

fn below() -> String {
    format!("kubepods/burstable/pod{POD_UID}/{CONTAINER}")
}

/// A pod with one container.
pub(super) struct TestPod {
    tree: CgroupTree,
    hierarchy: Hierarchy,
    pub(super) pod: CgroupPath,
    pub(super) container: CgroupPath,
}

impl TestPod {
    pub(super) fn new() -> Self {
        let tree = CgroupTree::new();
        let container = tree.make(&below());
        let pod = container.parent().unwrap();
        let hierarchy = Hierarchy::discover(None).unwrap();
        Self {
            tree,
            hierarchy,
            pod,
            container,
        }
    }

    /// Whether this is cgroup v2, whose counters include child cgroups.
    pub(super) fn counts_hierarchically(&self) -> bool {
        self.tree.version() == CgroupVersion::V2
    }

    pub(super) fn limit_container(&self) {
        self.tree.limit_memory(&self.container, LIMIT);
    }

    pub(super) fn limit_pod(&self) {
        self.tree.limit_memory(&self.pod, LIMIT);
    }

    pub(super) fn kills(&self, path: &CgroupPath) -> Reading {
        let file = if self.counts_hierarchically() {
            EVENTS
        } else {
            OOM_CONTROL
        };
        let counter = Counter::open(self.directory(path).join(file)).unwrap().unwrap();
        counter.read().unwrap().unwrap()
    }

    /// Runs a process in the container that uses more than the limit, until it is killed. Returns its pid.
    pub(super) fn exceed(&self) -> u32 {
        let child = self.start();
        let pid = child.id();
        was_killed(child);
        pid
    }

    /// Starts a process in the container that will use more than the limit.
    pub(super) fn start(&self) -> Child {
        let procs = self.directory(&self.container).join("cgroup.procs");
        let script = format!("echo $$ >{} && {TOO_MUCH}", procs.display());
        Command::new("sh").args(["-c", &script]).spawn().unwrap()
    }

    /// Creates the container's cgroup again.
    pub(super) fn make_container(&self) {
        assert_eq!(self.tree.make(&below()), self.container);
    }

    pub(super) fn remove_container(&self) {
        fs::remove_dir(self.directory(&self.container)).unwrap();
    }

    pub(super) fn directory(&self, path: &CgroupPath) -> PathBuf {
        path.under(self.hierarchy.mount(Resource::Memory))
    }
}
