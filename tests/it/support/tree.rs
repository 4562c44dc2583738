//! A test's own cgroup tree, shaped like a kubelet's, in every hierarchy of the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vscaled::cgroup::{CgroupDir, Hierarchy, cgroup_of_pid};
use vscaled::model::{CgroupPath, CgroupVersion, CpuMax, CpuQuota, MemoryLimit, Resource, Setting, Settings};

use super::mounts;

/// The longest wait for a process. Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cgroup below the root of every hierarchy, unique to this value. Dropping the value kills its processes and
/// removes it.
#[derive(Debug)]
pub(crate) struct CgroupTree {
    /// `/vscaled-test-<pid>-runtime-<n>`
    root: CgroupPath,
    hierarchy: Hierarchy,
}

impl CgroupTree {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(
            nix::unistd::geteuid().is_root(),
            "tests with a real container runtime need root"
        );
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = CgroupPath::new(&format!("/vscaled-test-{}-runtime-{count}", process::id())).unwrap();
        let hierarchy = Hierarchy::discover(None).unwrap();
        Self { root, hierarchy }
    }

    /// Shares the tree with a second owner. The first drop removes the tree.
    pub(crate) fn shared(&self) -> Self {
        Self {
            root: self.root.clone(),
            hierarchy: self.hierarchy.clone(),
        }
    }

    pub(crate) fn version(&self) -> CgroupVersion {
        self.hierarchy.version()
    }

    /// Creates a cgroup of this tree and its parents, with cpu and memory controllers.
    pub(crate) fn make(&self, below: &str) -> CgroupPath {
        self.make_all(self.root.segments().chain(below.split('/')))
    }

    /// The same for a child of a cgroup of this tree.
    pub(crate) fn make_child(&self, parent: &CgroupPath, name: &str) -> CgroupPath {
        self.make_all(parent.segments().chain([name]))
    }

    fn make_all<'a>(&self, segments: impl Iterator<Item = &'a str>) -> CgroupPath {
        let mut path = CgroupPath::root();
        for name in segments {
            if self.version() == CgroupVersion::V2 {
                let parent = path.under(self.hierarchy.mount(Resource::Cpu));
                fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory +pids").unwrap();
            }
            path = path.child(name).unwrap();
            for controller in Resource::ALL {
                fs::create_dir_all(path.under(self.hierarchy.mount(controller))).unwrap();
            }
        }
        path
    }

    /// Moves the processes of a cgroup into a child cgroup, as a process that creates cgroups below its own must: on
    /// v2 a cgroup with processes cannot enable controllers for its children.
    pub(crate) fn move_below(&self, path: &CgroupPath, name: &str) {
        for directory in self.directories(path) {
            let below = directory.join(name);
            fs::create_dir_all(&below).unwrap();
            for pid in fs::read_to_string(directory.join("cgroup.procs")).unwrap().lines() {
                fs::write(below.join("cgroup.procs"), pid).unwrap();
            }
        }
    }

    /// Creates the root of this tree in every hierarchy, as a kubelet wants the root of its cgroups.
    pub(crate) fn make_everywhere(&self) -> CgroupPath {
        for mount in mounts::all().iter().filter(|mount| mount.is_cgroup()) {
            let directory = self.root.under(&mount.point);
            fs::create_dir_all(&directory).unwrap();
            // On v1 no process can enter a cgroup without processors and memory nodes.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (own, root) = (directory.join(file), mount.point.join(file));
                if own.exists() && root.exists() {
                    fs::write(own, fs::read_to_string(root).unwrap()).unwrap();
                }
            }
        }
        self.root.clone()
    }

    /// Sets a memory limit, as the kubelet does for pods.
    pub(crate) fn limit_memory(&self, path: &CgroupPath, limit: MemoryLimit) {
        self.put(
            path,
            match self.version() {
                CgroupVersion::V1 => Setting::MemoryLimit(limit),
                CgroupVersion::V2 => Setting::MemoryMax(limit),
            },
        );
    }

    /// Removes the cpu limit of cgroups, parents first. Many processes on a fifth of a processor take minutes to
    /// reach another limit.
    pub(crate) fn free_cpu(&self, paths: [&CgroupPath; 2]) {
        let quota = match self.version() {
            CgroupVersion::V1 => Setting::CfsQuota(CpuQuota::Max),
            CgroupVersion::V2 => Setting::CpuMax(CpuMax {
                quota: CpuQuota::Max,
                period_us: 100_000,
            }),
        };
        for path in paths {
            self.put(path, quota);
        }
    }

    /// Writes one value, as a foreign writer.
    pub(crate) fn put(&self, path: &CgroupPath, setting: Setting) {
        let directory = path.under(self.hierarchy.mount(setting.file().resource()));
        fs::write(directory.join(setting.file().name()), setting.to_write()).unwrap();
    }

    /// Writes one value that the kernel may refuse.
    pub(crate) fn try_put(&self, path: &CgroupPath, setting: Setting) -> bool {
        let directory = path.under(self.hierarchy.mount(setting.file().resource()));
        fs::write(directory.join(setting.file().name()), setting.to_write()).is_ok()
    }

    /// Kills the processes of a cgroup and removes the cgroup from its hierarchies.
    pub(crate) fn remove(&self, path: &CgroupPath) {
        let deadline = Instant::now() + PATIENCE;
        for directory in self.directories(path) {
            while let Err(error) = kill_and_remove(&directory) {
                assert!(Instant::now() < deadline, "{}: {error}", directory.display());
                sleep(Duration::from_millis(5));
            }
        }
    }

    /// The directories of a cgroup: one on v2, one for each controller on v1.
    pub(crate) fn directories(&self, path: &CgroupPath) -> Vec<PathBuf> {
        let mut directories: Vec<_> = Resource::ALL
            .iter()
            .map(|controller| path.under(self.hierarchy.mount(*controller)))
            .collect();
        directories.dedup();
        directories
    }

    /// The current values of a cgroup.
    pub(crate) fn settings(&self, path: &CgroupPath) -> Settings {
        CgroupDir::open(&self.hierarchy, path).unwrap().read_all().unwrap()
    }

    /// Whether a cgroup is there and holds all these values. A runtime names a container before its cgroup is there.
    pub(crate) fn holds(&self, path: &CgroupPath, wanted: &Settings) -> bool {
        let Ok(cgroup) = CgroupDir::open(&self.hierarchy, path) else {
            return false;
        };
        let Ok(held) = cgroup.read_all() else { return false };
        wanted.iter().all(|wanted| held.get(wanted.file()) == Some(wanted))
    }

    /// The number of processes of a cgroup that the OOM killer ended.
    pub(crate) fn oom_kills(&self, path: &CgroupPath) -> u64 {
        let file = match self.version() {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        };
        let text = fs::read_to_string(path.under(self.hierarchy.mount(Resource::Memory)).join(file)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.expect("the kernel counts kills").parse().unwrap()
    }

    /// The current memory use of a cgroup in bytes.
    pub(crate) fn memory_usage(&self, path: &CgroupPath) -> u64 {
        let cgroup = CgroupDir::open(&self.hierarchy, path).unwrap();
        cgroup.memory_usage().unwrap().get()
    }

    /// Waits until a process is in a cgroup, in every hierarchy.
    pub(crate) fn wait_for_process(&self, pid: i32, path: &CgroupPath) {
        let deadline = Instant::now() + PATIENCE;
        while cgroup_of_pid(&self.hierarchy, Path::new("/proc"), pid).as_ref() != Some(path) {
            assert!(Instant::now() < deadline, "process {pid} never came to {path}");
            sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn of_process(&self, pid: i32) -> CgroupPath {
        cgroup_of_pid(&self.hierarchy, Path::new("/proc"), pid).unwrap()
    }
}

impl Drop for CgroupTree {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        // The OCI runtime creates its cgroups in every hierarchy, with or without the controllers.
        for mount in mounts::all().iter().filter(|mount| mount.is_cgroup()) {
            let directory = self.root.under(&mount.point);
            // Killed processes take a moment to exit, so cgroups are busy for a moment.
            while let Err(error) = kill_and_remove(&directory) {
                if Instant::now() > deadline {
                    eprintln!("left behind {}: {error}", directory.display());
                    break;
                }
                sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Removes children first, because a cgroup with children cannot be removed. A missing directory is fine.
fn kill_and_remove(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            kill_and_remove(&entry.path())?;
        }
    }
    for pid in fs::read_to_string(directory.join("cgroup.procs"))?.lines() {
        if let Some(pid) = pid.parse().ok().filter(|pid| *pid > 0) {
            // The process may exit between the read and the kill.
            kill(Pid::from_raw(pid), Signal::SIGKILL).or_else(|error| match error {
                nix::errno::Errno::ESRCH => Ok(()),
                error => Err(io::Error::from(error)),
            })?;
        }
    }
    fs::remove_dir(directory)
}
