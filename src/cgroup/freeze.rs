//! The freezer of cgroup v2: stops every process of a cgroup where it stands, and lets it go on.
//!
//! In comes a directory; out come its freezer's state and its identity. Whoever freezes must thaw, whatever happens:
//! seeing to that is [`crate::actuate`]'s, this is only the file.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::file::{Dir, refused};
use super::{CgroupError, Reason};

/// Whether a cgroup is to be frozen: written.
const FREEZE: &str = "cgroup.freeze";
/// Whether it is: read. Includes that an ancestor is.
const EVENTS: &str = "cgroup.events";

/// The freezer of one cgroup, held open: the same one whatever becomes of its path.
#[derive(Debug)]
pub struct CgroupFreezer(Dir);

/// What a freezer's files say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreezerState {
    /// Somebody asked for this cgroup to be frozen.
    pub asked: bool,
    /// Every process in it stands still, for that or because an ancestor is frozen.
    pub frozen: bool,
}

impl CgroupFreezer {
    /// Opens the freezer of the cgroup at this path of the file system.
    ///
    /// Errors: [`Reason::Vanished`] when there is none.
    pub fn open(directory: &Path) -> Result<Self, CgroupError> {
        Dir::open(directory.to_owned()).map(Self)
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// The number that makes this cgroup that one and no later one of the same path.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.0.inode().number()
    }

    /// What its files say; `None` where the kernel has no freezer here (v1, v2 before 5.2, the root).
    pub fn state(&self) -> Result<Option<FreezerState>, CgroupError> {
        let read = |name| self.0.open_file(name, OFlag::O_RDONLY).and_then(|open| open.text());
        let asked = match read(FREEZE) {
            Ok(text) => text.trim() == "1",
            Err(CgroupError {
                reason: Reason::Absent, ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let frozen = read(EVENTS)?.lines().any(|line| line == "frozen 1");
        Ok(Some(FreezerState { asked, frozen }))
    }

    /// Asks for the cgroup to be frozen, or lets it go on. Freezing takes a moment: [`Self::state`] tells when it is done.
    pub fn set(&self, freeze: bool) -> Result<(), CgroupError> {
        let file = self.0.open_file(FREEZE, OFlag::O_WRONLY)?;
        match file.write(if freeze { "1" } else { "0" }) {
            Ok(()) => Ok(()),
            Err(errno @ (Errno::ENOENT | Errno::ENODEV)) => Err(self.0.failed(FREEZE, errno, "write the file")),
            Err(errno) => Err(self.0.error(FREEZE, refused(errno, "write the file"))),
        }
    }

    /// Whether a process is in this cgroup or below it. Works from inside any namespace for the caller's own process.
    ///
    /// Errors: [`CgroupError`] when the cgroup cannot be looked through; what ends meanwhile holds nobody.
    pub fn holds(&self, pid: u32) -> Result<bool, CgroupError> {
        let mut directories = VecDeque::from([self.0.path().to_owned()]);
        while let Some(directory) = directories.pop_front() {
            let gone =
                |error: &std::io::Error| matches!(error.raw_os_error(), Some(nix::libc::ENOENT | nix::libc::ENODEV));
            let processes = match fs::read_to_string(directory.join("cgroup.procs")) {
                Ok(processes) => processes,
                // Threads of a threaded cgroup are listed with their process, further up.
                Err(error) if gone(&error) || error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => String::new(),
                Err(error) => return Err(failed(directory, &error)),
            };
            if processes.lines().any(|line| line.parse() == Ok(pid)) {
                return Ok(true);
            }
            match subdirectories(&directory) {
                Ok(below) => directories.extend(below),
                Err(error) if gone(&error) => {}
                Err(error) => return Err(failed(directory, &error)),
            }
        }
        Ok(false)
    }
}

fn subdirectories(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn failed(file: PathBuf, error: &std::io::Error) -> CgroupError {
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO));
    CgroupError {
        file,
        reason: refused(errno, "look for processes"),
    }
}
