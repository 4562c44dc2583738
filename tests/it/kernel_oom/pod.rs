//! A pod's cgroups of the test's own, and processes that use more memory than they may.

use std::fs;
use std::num::NonZeroU64;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

use vscaled::cgroup::{CgroupPath, Controller, Hierarchy};
use vscaled::oom::counters::{Change, EVENTS, OOM_CONTROL, Reading};
use vscaled::plan::CgroupVersion;

pub(super) const POD_UID: &str = "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";
pub(super) const CONTAINER: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const LIMIT: &str = "16777216";
const MORE: &str = "64M";

/// `/vscaled-test-<pid>-oom-<label>/kubepods/burstable/pod<uid>/<id>` in the memory hierarchy, removed when dropped.
pub(super) struct TestPod {
    hierarchy: Hierarchy,
    root: CgroupPath,
    pub(super) pod: CgroupPath,
    pub(super) container: CgroupPath,
}

impl TestPod {
    pub(super) fn new(label: &str) -> Self {
        let hierarchy = Hierarchy::discover(None).expect("a machine with cgroups");
        let root = CgroupPath::new(&format!("/vscaled-test-{}-oom-{label}", std::process::id())).unwrap();
        let pod = CgroupPath::new(&format!("{root}/kubepods/burstable/pod{POD_UID}")).unwrap();
        let container = pod.child(CONTAINER).unwrap();
        let pod = Self {
            hierarchy,
            root,
            pod,
            container,
        };
        let mut made = CgroupPath::root();
        for name in pod.container.segments() {
            if pod.counts_hierarchically() {
                fs::write(pod.directory(&made).join("cgroup.subtree_control"), "+memory").unwrap();
            }
            made = made.child(name).unwrap();
            fs::create_dir(pod.directory(&made)).expect("root, to make cgroups");
        }
        pod
    }

    /// Whether this is cgroup v2.
    pub(super) fn counts_hierarchically(&self) -> bool {
        self.hierarchy.version() == CgroupVersion::V2
    }

    pub(super) fn limit_container(&self) {
        self.limit(&self.container);
    }

    pub(super) fn limit_pod(&self) {
        self.limit(&self.pod);
    }

    pub(super) fn container_kills(&self) -> Reading {
        Reading::of(&self.directory(&self.container).join(self.counter())).unwrap()
    }

    pub(super) fn pod_kills(&self) -> Reading {
        Reading::of(&self.directory(&self.pod).join(self.counter())).unwrap()
    }

    /// Runs a process in the container that uses more than the limit, until it is killed. Returns its pid.
    pub(super) fn exceed(&self) -> u32 {
        let procs = self.directory(&self.container).join("cgroup.procs");
        let script = format!(
            "echo $$ >{} && exec dd if=/dev/zero of=/dev/null bs={MORE} count=1",
            procs.display()
        );
        let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "dd was not killed");
        child.id()
    }

    fn limit(&self, path: &CgroupPath) {
        let directory = self.directory(path);
        let file = if self.counts_hierarchically() {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        fs::write(directory.join(file), LIMIT).unwrap();
        let swap = directory.join("memory.swap.max");
        if swap.exists() {
            fs::write(swap, "0").unwrap();
        }
    }

    fn counter(&self) -> &'static str {
        if self.counts_hierarchically() {
            EVENTS
        } else {
            OOM_CONTROL
        }
    }

    fn directory(&self, path: &CgroupPath) -> PathBuf {
        path.under(self.hierarchy.mount(Controller::Memory))
    }
}

impl Drop for TestPod {
    fn drop(&mut self) {
        let mut path = Some(self.container.clone());
        while let Some(made) = path.filter(|path| path.below(&self.root).is_some()) {
            if let Err(error) = fs::remove_dir(self.directory(&made)) {
                eprintln!("{made} is left behind: {error}");
            }
            path = made.parent();
        }
    }
}

pub(super) fn new_kills(count: u64) -> Change {
    NonZeroU64::new(count).map_or(Change::None, Change::Kills)
}
