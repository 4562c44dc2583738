//! A cgroup tree of the test's own, shaped like a kubelet's, in every hierarchy of the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vscaled::plan::CgroupVersion;
use vscaled::resources::{ControlFile, Setting, Settings};

use super::mounts;

/// A cgroup below the root of every hierarchy, unique to this value. Dropping it kills what runs in it and removes it.
#[derive(Debug)]
pub(crate) struct CgroupTree {
    /// `/vscaled-test-<pid>-<n>`
    root: String,
    hierarchies: Vec<mounts::Mount>,
    version: CgroupVersion,
}

impl CgroupTree {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(nix::unistd::geteuid().is_root(), "tests of real cgroups need root");
        let hierarchies: Vec<_> = mounts::all()
            .into_iter()
            .filter(|mount| mount.kind == "cgroup" || mount.kind == "cgroup2")
            .collect();
        let has_v1_memory = hierarchies
            .iter()
            .any(|mount| mount.options.iter().any(|option| option == "memory"));
        let version = if has_v1_memory {
            CgroupVersion::V1
        } else {
            CgroupVersion::V2
        };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let tree = Self {
            root: format!("/vscaled-test-{}-{count}", process::id()),
            hierarchies,
            version,
        };
        tree.make("");
        tree
    }

    pub(crate) const fn version(&self) -> CgroupVersion {
        self.version
    }

    /// The whole path, as `/proc/PID/cgroup` and CRI's `cgroup_parent` show it, of a path in this tree.
    pub(crate) fn path(&self, below: &str) -> String {
        format!("{}{below}", self.root)
    }

    /// Makes a cgroup of this tree and its parents, with cpu and memory controllers.
    pub(crate) fn make(&self, below: &str) {
        let path = self.path(below);
        match self.version {
            CgroupVersion::V1 => {
                for controller in ["cpu", "memory"] {
                    fs::create_dir_all(self.directory(controller, &path)).unwrap();
                }
            }
            CgroupVersion::V2 => {
                let mut directory = self.directory("", "/");
                for component in Path::new(&path).components().skip(1) {
                    fs::write(directory.join("cgroup.subtree_control"), "+cpu +memory +pids").unwrap();
                    directory.push(component);
                    fs::create_dir_all(&directory).unwrap();
                }
            }
        }
    }

    /// Writes one file of the cgroup with that whole path.
    pub(crate) fn write(&self, path: &str, setting: Setting) {
        let file = self.file(path, setting.file());
        fs::write(&file, setting.to_write())
            .unwrap_or_else(|error| panic!("{setting} into {}: {error}", file.display()));
    }

    /// What the cgroup with that whole path holds now, in every file that exists.
    pub(crate) fn settings(&self, path: &str) -> Settings {
        let files: &[ControlFile] = match self.version {
            CgroupVersion::V1 => &ControlFile::V1,
            CgroupVersion::V2 => &ControlFile::V2,
        };
        files.iter().filter_map(|file| self.setting(path, *file)).collect()
    }

    fn setting(&self, path: &str, file: ControlFile) -> Option<Setting> {
        match fs::read_to_string(self.file(path, file)) {
            Ok(text) => Some(Setting::parse(file, &text).unwrap()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && file == ControlFile::MemswLimit => None,
            Err(error) => panic!("{path} {file}: {error}"),
        }
    }

    /// The whole path of a process's cgroup. On v1 all controllers we use agree.
    pub(crate) fn of_process(&self, pid: i32) -> String {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let wanted = match self.version {
            CgroupVersion::V1 => "memory",
            CgroupVersion::V2 => "",
        };
        let line = text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers
                .split(',')
                .any(|controller| controller == wanted)
                .then_some(path)
        });
        line.expect("the process is in a memory cgroup").to_owned()
    }

    fn file(&self, path: &str, file: ControlFile) -> PathBuf {
        let controller = file.name().split('.').next().unwrap_or_default();
        self.directory(controller, path).join(file.name())
    }

    fn directory(&self, controller: &str, path: &str) -> PathBuf {
        let mount = self.hierarchies.iter().find(|mount| match self.version {
            CgroupVersion::V1 => mount.options.iter().any(|option| option == controller),
            CgroupVersion::V2 => mount.kind == "cgroup2",
        });
        mount
            .unwrap_or_else(|| panic!("no cgroup hierarchy of controller {controller:?}"))
            .point
            .join(path.trim_start_matches('/'))
    }
}

impl Drop for CgroupTree {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        for mount in &self.hierarchies {
            let directory = mount.point.join(self.root.trim_start_matches('/'));
            // Killed processes leave a little later, so cgroups are busy for a moment.
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

/// Children first, since a cgroup with children cannot be removed. Gone already is fine.
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
            // Gone between reading and killing is what is wanted.
            kill(Pid::from_raw(pid), Signal::SIGKILL).or_else(|error| match error {
                nix::errno::Errno::ESRCH => Ok(()),
                error => Err(io::Error::from(error)),
            })?;
        }
    }
    fs::remove_dir(directory)
}
