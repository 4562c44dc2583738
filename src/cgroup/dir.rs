//! One cgroup, held open.

use nix::fcntl::OFlag;

use super::file::{Dir, Inode, if_present};
use super::{CgroupError, Hierarchy};
use crate::model::{CgroupPath, CgroupVersion, ControlFile, CpuShares, CpuWeight, Resource, Setting, Settings};

/// One cgroup: a directory in v2, two (cpu and memory) in v1. After the cgroup is removed, every call fails with
/// [`Vanished`](super::Reason::Vanished) or [`Recreated`](super::Reason::Recreated), even if the path exists again.
///
/// Holds one descriptor in v2 and two in v1. The kernel can remove a cgroup that is held open.
#[derive(Debug)]
pub struct CgroupDir {
    path: CgroupPath,
    /// The directory of the cpu controller; v1 only.
    cpu: Option<Dir>,
    /// The directory of the memory controller, and in v2 of both controllers.
    memory: Dir,
}

/// The inodes of a cgroup's directories. A later cgroup of the same path has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity([Inode; 2]);

impl CgroupDir {
    /// Opens the cgroup that is at a path now.
    ///
    /// Errors: [`Vanished`](super::Reason::Vanished) when there is none, in any of the hierarchies.
    pub fn open(hierarchy: &Hierarchy, path: &CgroupPath) -> Result<Self, CgroupError> {
        let open = |controller| Dir::open(path.under(hierarchy.mount(controller)));
        Ok(Self {
            path: path.clone(),
            cpu: match hierarchy.version() {
                CgroupVersion::V1 => Some(open(Resource::Cpu)?),
                CgroupVersion::V2 => None,
            },
            memory: open(Resource::Memory)?,
        })
    }

    /// The cgroup's path below the mounts.
    pub const fn path(&self) -> &CgroupPath {
        &self.path
    }

    /// The cgroup version, which decides the names of the files.
    pub const fn version(&self) -> CgroupVersion {
        match self.cpu {
            Some(_) => CgroupVersion::V1,
            None => CgroupVersion::V2,
        }
    }

    /// The files a cgroup of this version may have.
    pub fn files(&self) -> &'static [ControlFile] {
        self.version().v1_or_v2(ControlFile::V1, ControlFile::V2)
    }

    pub fn identity(&self) -> Identity {
        Identity([self.dir(Resource::Cpu).inode, self.memory.inode])
    }

    /// Checks that the path still leads here, in v1 to both directories.
    ///
    /// Errors: the cgroup was removed or made again, or the kernel does not show a directory.
    pub fn check(&self) -> Result<(), CgroupError> {
        self.dir(Resource::Cpu).check()?;
        self.memory.check()
    }

    /// The directory of the memory controller, for the freezer of v2 and for the limits that CRI has no field for. v1 keeps
    /// freezers in a hierarchy of their own.
    pub const fn memory_dir(&self) -> &Dir {
        &self.memory
    }

    /// Reads one file; `None` when the cgroup does not have it (the root; `memsw` without swap accounting; the other version's;
    /// the weight of an [idle](Self::is_idle) cgroup).
    ///
    /// Errors: [`CgroupError`].
    pub fn read(&self, file: ControlFile) -> Result<Option<Setting>, CgroupError> {
        let open = self.dir(file.resource()).open_file(file.name(), OFlag::O_RDONLY);
        let held = if_present(open.and_then(|open| open.setting(file)))?;
        // The kernel shows an idle cgroup with 3 shares (`WEIGHT_IDLEPRIO`), as a weight of 0 or 1.
        let shown_idle = [
            Setting::CpuWeight(CpuWeight::MIN),
            Setting::CpuShares(CpuShares::new(3)),
        ];
        let has_none = held.is_some_and(|held| shown_idle.contains(&held)) && self.is_idle()?;
        Ok(held.filter(|_| !has_none))
    }

    /// Whether processes of the cgroup run only while no others want to (`cpu.idle`). The kernel refuses every weight for it
    /// (`sched_group_set_shares`, kernel/sched/fair.c).
    ///
    /// Errors: [`CgroupError`].
    pub fn is_idle(&self) -> Result<bool, CgroupError> {
        let idle = self.dir(Resource::Cpu).text("cpu.idle")?;
        Ok(idle.is_some_and(|idle| idle.trim() == "1"))
    }

    /// Reads every file the cgroup has.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn read_all(&self) -> Result<Settings, CgroupError> {
        let mut settings = Settings::default();
        for file in self.files() {
            if let Some(setting) = self.read(*file)? {
                settings.insert(setting);
            }
        }
        Ok(settings)
    }

    /// The directory of a controller.
    pub(super) fn dir(&self, controller: Resource) -> &Dir {
        match (controller, &self.cpu) {
            (Resource::Cpu, Some(cpu)) => cpu,
            (Resource::Cpu, None) | (Resource::Memory, _) => &self.memory,
        }
    }
}
