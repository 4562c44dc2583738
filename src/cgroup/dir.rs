//! One cgroup, held open.

use std::path::Path;

use nix::fcntl::OFlag;

use super::file::{Dir, Inode, if_present};
use super::hierarchy::ByVersion;
use super::{CgroupError, Hierarchy, Reason};
use crate::model::{CgroupPath, CgroupVersion, ControlFile, Resource, Setting, Settings};

/// One cgroup: a directory in v2, two (cpu and memory) in v1. Opened once and from then on the same cgroup: when it is
/// removed, every call fails with [`Reason::Vanished`] or [`Reason::Recreated`], even if its path exists again.
///
/// Holds one descriptor in v2 and two in v1. An open one does not keep the kernel from removing the cgroup.
#[derive(Debug)]
pub struct CgroupDir {
    path: CgroupPath,
    dirs: ByVersion<Dir>,
}

/// What makes a cgroup this one and no other: the inodes of its directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    cpu: Inode,
    memory: Inode,
}

/// Whether a cgroup's path still leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Alive,
    Removed,
    /// The path leads to another cgroup, made later.
    Recreated,
}

impl CgroupDir {
    /// Opens the cgroup that is at a path now.
    ///
    /// Errors: [`Reason::Vanished`] when there is none, in any of the hierarchies.
    pub fn open(hierarchy: &Hierarchy, path: &CgroupPath) -> Result<Self, CgroupError> {
        let open = |controller| Dir::open(path.under(hierarchy.mount(controller)));
        let dirs = match hierarchy.version() {
            CgroupVersion::V1 => ByVersion::V1 {
                cpu: open(Resource::Cpu)?,
                memory: open(Resource::Memory)?,
            },
            CgroupVersion::V2 => ByVersion::V2(open(Resource::Cpu)?),
        };
        Ok(Self {
            path: path.clone(),
            dirs,
        })
    }

    /// Its path below the mounts.
    pub const fn path(&self) -> &CgroupPath {
        &self.path
    }

    /// Which kernel interface its files are of.
    pub const fn version(&self) -> CgroupVersion {
        self.dirs.version()
    }

    /// The files a cgroup of this version may have.
    pub const fn files(&self) -> &'static [ControlFile] {
        match self.version() {
            CgroupVersion::V1 => ControlFile::V1,
            CgroupVersion::V2 => ControlFile::V2,
        }
    }

    pub const fn identity(&self) -> Identity {
        Identity {
            cpu: self.dir(Resource::Cpu).inode(),
            memory: self.dir(Resource::Memory).inode(),
        }
    }

    /// Whether the path still leads here. In v1, where both directories must, the worse of the two.
    ///
    /// Errors: [`CgroupError`] when a directory cannot be looked at.
    pub fn state(&self) -> Result<State, CgroupError> {
        match self.dir(Resource::Cpu).state()? {
            State::Alive => self.dir(Resource::Memory).state(),
            gone => Ok(gone),
        }
    }

    /// The directory of its memory controller, held open on its own: its freezer, and the limits that no field of CRI
    /// carries. v1 keeps freezers in a hierarchy of their own, which is none of these: it has no state.
    ///
    /// Errors: [`Reason::Vanished`] and [`Reason::Recreated`] when this cgroup has ended.
    pub fn memory_dir(&self) -> Result<Dir, CgroupError> {
        let dir = self.dir(Resource::Memory);
        let opened = Dir::open(dir.path().to_owned())?;
        if opened.number() == dir.number() {
            return Ok(opened);
        }
        Err(CgroupError {
            file: dir.path().to_owned(),
            reason: Reason::Recreated,
        })
    }

    /// Its directory below a controller's mount, when it was opened.
    #[must_use]
    pub fn directory(&self, controller: Resource) -> &Path {
        self.dir(controller).path()
    }

    /// Reads one file; `None` when the cgroup does not have it (the root; `memsw` without swap accounting).
    ///
    /// Errors: [`CgroupError`]; [`Reason::WrongVersion`] for a file of the other version.
    pub fn read(&self, file: ControlFile) -> Result<Option<Setting>, CgroupError> {
        let dir = self.dir_of(file)?;
        let open = dir.open_file(file.name(), OFlag::O_RDONLY);
        if_present(open.and_then(|open| open.setting(file)))
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

    pub(super) const fn dir(&self, controller: Resource) -> &Dir {
        self.dirs.get(controller)
    }

    /// The directory a file is in.
    pub(super) fn dir_of(&self, file: ControlFile) -> Result<&Dir, CgroupError> {
        let dir = self.dir(file.resource());
        if self.files().contains(&file) {
            return Ok(dir);
        }
        let version = match self.version() {
            CgroupVersion::V1 => "v1",
            CgroupVersion::V2 => "v2",
        };
        Err(dir.error(file.name(), Reason::WrongVersion(version)))
    }
}
