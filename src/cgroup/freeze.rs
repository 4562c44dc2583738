//! The freezer of cgroup v2: stops every process of a cgroup where it stands, and lets it go on.
//!
//! In comes a directory; out come its freezer's state and its identity. Whoever freezes must thaw, whatever happens:
//! seeing to that is [`crate::actuate`]'s, this is only the file.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::CgroupError;
use super::file::{Dir, directories_in, errno_of, if_present, is_gone, refused};

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
    /// The file says that this cgroup is to be frozen.
    pub requested: bool,
    /// Every process in it stands still, for that or because an ancestor is frozen.
    pub frozen: bool,
}

impl CgroupFreezer {
    /// Opens the freezer of the cgroup at this path of the file system.
    ///
    /// Errors: [`Vanished`](super::Reason::Vanished) when there is none.
    pub fn open(directory: &Path) -> Result<Self, CgroupError> {
        Dir::open(directory.to_owned()).map(Self)
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// The number that makes this cgroup that one and no later one of the same path.
    pub const fn number(&self) -> u64 {
        self.0.inode().number()
    }

    /// What its files say; `None` where the kernel has no freezer here (v1, v2 before 5.2, the root).
    pub fn state(&self) -> Result<Option<FreezerState>, CgroupError> {
        let read = |name| self.0.open_file(name, OFlag::O_RDONLY).and_then(|open| open.text());
        let Some(requested) = if_present(read(FREEZE))? else {
            return Ok(None);
        };
        let frozen = read(EVENTS)?.lines().any(|line| line == "frozen 1");
        Ok(Some(FreezerState {
            requested: requested.trim() == "1",
            frozen,
        }))
    }

    /// Asks for the cgroup to be frozen, or lets it go on. Freezing takes a moment: [`Self::state`] tells when it is done.
    pub fn set(&self, freeze: bool) -> Result<(), CgroupError> {
        let file = self.0.open_file(FREEZE, OFlag::O_WRONLY)?;
        file.set(if freeze { "1" } else { "0" })
    }

    /// Whether a process is in this cgroup or below it. Works from inside any namespace for the caller's own process.
    ///
    /// Errors: [`CgroupError`] when the cgroup cannot be looked through; what ends meanwhile holds nobody.
    pub fn contains(&self, pid: u32) -> Result<bool, CgroupError> {
        let mut directories = VecDeque::from([self.0.path().to_owned()]);
        while let Some(directory) = directories.pop_front() {
            let failed = |errno| CgroupError {
                file: directory.clone(),
                reason: refused(errno, "look for processes"),
            };
            let processes = match fs::read_to_string(directory.join("cgroup.procs")).map_err(|error| errno_of(&error)) {
                Ok(processes) => processes,
                // Threads of a threaded cgroup are listed with their process, further up.
                Err(errno) if is_gone(errno) || errno == Errno::EOPNOTSUPP => String::new(),
                Err(errno) => return Err(failed(errno)),
            };
            if processes.lines().any(|line| line.parse() == Ok(pid)) {
                return Ok(true);
            }
            let below = directories_in(&directory).map_err(|error| failed(errno_of(&error)))?;
            directories.extend(below.into_iter().map(|name| directory.join(name)));
        }
        Ok(false)
    }
}
