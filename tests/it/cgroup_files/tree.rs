//! A test's own cgroups, removed with all their processes when the test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use vscaled::cgroup::{Cgroup, CgroupDir, Hierarchy};
use vscaled::model::{CgroupPath, CgroupVersion, ControlFile, Resource};

use crate::support::skipped;

/// A cgroup `/vscaled-test-<pid>-<label>` in every hierarchy, and the cgroups that the test creates below it.
pub(super) struct Tree {
    pub(super) hierarchy: Hierarchy,
    pub(super) path: CgroupPath,
    processes: Vec<Child>,
}

impl Tree {
    /// Creates the cgroup; prints the reason and returns `None` if that is impossible.
    pub(super) fn new(label: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skipped(label, "needs root to make cgroups");
            return None;
        }
        let hierarchy = Hierarchy::discover(None).expect("a machine with cgroups");
        let path = CgroupPath::new(&format!("/vscaled-test-{}-{label}", std::process::id())).unwrap();
        let tree = Self {
            hierarchy,
            path: path.clone(),
            processes: Vec::new(),
        };
        tree.make(&path);
        Some(tree)
    }

    /// Like [`Self::new`], only if the machine's cgroups are of that version.
    pub(super) fn of_version(label: &str, version: CgroupVersion) -> Option<Self> {
        let found = Hierarchy::discover(None).expect("a machine with cgroups").version();
        if found != version {
            skipped(label, &format!("about cgroup {version:?}, this machine has {found:?}"));
            return None;
        }
        Self::new(label)
    }

    /// Creates a cgroup below the test's own, and its parents.
    pub(super) fn below(&self, below: &str) -> CgroupPath {
        let mut path = self.path.clone();
        for name in below.split('/') {
            path = path.child(name).unwrap();
            self.make(&path);
        }
        path
    }

    pub(super) fn make(&self, path: &CgroupPath) {
        if self.hierarchy.version() == CgroupVersion::V2 {
            let parent = path.parent().unwrap().under(self.hierarchy.mount(Resource::Cpu));
            fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory").unwrap();
        }
        for directory in self.directories(path) {
            fs::create_dir_all(directory).unwrap();
        }
    }

    pub(super) fn remove(&self, path: &CgroupPath) {
        for directory in self.directories(path) {
            fs::remove_dir(directory).unwrap();
        }
    }

    pub(super) fn open(&self, path: &CgroupPath) -> CgroupDir {
        CgroupDir::open(&self.hierarchy, path).unwrap()
    }

    pub(super) fn open_pair(&self, path: &CgroupPath) -> Cgroup {
        Cgroup::open(&self.hierarchy, path).unwrap()
    }

    /// The path of a control file, for writes by the test.
    pub(super) fn file(&self, path: &CgroupPath, file: ControlFile) -> PathBuf {
        path.under(self.hierarchy.mount(file.resource())).join(file.name())
    }

    pub(super) fn raw(&self, path: &CgroupPath, file: ControlFile) -> String {
        fs::read_to_string(self.file(path, file)).unwrap().trim_end().to_owned()
    }

    /// Starts a shell command in a cgroup.
    pub(super) fn run(&mut self, path: &CgroupPath, command: &str) -> i32 {
        let enter: Vec<String> = self
            .directories(path)
            .iter()
            .map(|directory| format!("echo $$ >{}/cgroup.procs", directory.display()))
            .collect();
        let script = format!("{} && {command}", enter.join(" && "));
        let child = Command::new("sh")
            .args(["-ec", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        self.processes.push(child);
        pid
    }

    /// Keeps this many bytes of memory in use in a cgroup: `tail` holds them until its pipe is read.
    pub(super) fn occupy(&mut self, path: &CgroupPath, bytes: u64) {
        self.run(
            path,
            &format!("head -c {bytes} /dev/zero | tail -c {bytes} | sleep 1000"),
        );
        let cgroup = self.open(path);
        wait_for("the memory to be in use", || {
            cgroup.memory_usage().unwrap().get() >= bytes
        });
    }

    /// The number of processes in a cgroup.
    pub(super) fn population(&self, path: &CgroupPath) -> usize {
        processes(&path.under(self.hierarchy.mount(Resource::Memory))).len()
    }

    fn directories(&self, path: &CgroupPath) -> Vec<PathBuf> {
        let mut directories: Vec<PathBuf> = Resource::ALL
            .iter()
            .map(|controller| path.under(self.hierarchy.mount(*controller)))
            .collect();
        directories.dedup();
        directories
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for directory in self.directories(&self.path) {
            empty(&directory);
        }
        for child in &mut self.processes {
            child.wait().expect("a killed child to be reaped");
        }
        for directory in self.directories(&self.path) {
            remove_all(&directory);
        }
    }
}

pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited in vain for {what}");
        sleep(Duration::from_millis(5));
    }
}

fn processes(directory: &Path) -> Vec<i32> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn subdirectories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Kills the processes in a cgroup and below it: only for the test's own cgroup.
fn empty(directory: &Path) {
    for inner in subdirectories(directory) {
        empty(&inner);
    }
    for pid in processes(directory) {
        match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(errno) => eprintln!("cannot kill process {pid} of {}: {errno}", directory.display()),
        }
    }
}

fn remove_all(directory: &Path) {
    for inner in subdirectories(directory) {
        remove_all(&inner);
    }
    if directory.exists() {
        wait_for("a test's cgroup to be removable", || fs::remove_dir(directory).is_ok());
    }
}
