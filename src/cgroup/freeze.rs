//! The freezer of cgroup v2, which stops and resumes every process of a cgroup.
//!
//! In comes a directory; out comes the state of its freezer. [`crate::actuate`] makes sure that every frozen cgroup is thawed;
//! this module only reads and writes the files.

use std::collections::VecDeque;
use std::fs;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::CgroupError;
use super::file::{ControlFd, Dir, directories_in, errno_of, is_gone, refused};

/// The agent writes here whether the kernel shall freeze the cgroup.
const FREEZE: &str = "cgroup.freeze";
/// The kernel shows here whether the cgroup is frozen, also by an ancestor.
const EVENTS: &str = "cgroup.events";

/// The content of a freezer's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreezerState {
    /// A freeze of this cgroup was requested.
    pub requested: bool,
    /// Every process of the cgroup is stopped, by this freezer or by an ancestor's.
    pub frozen: bool,
}

/// The open file in which the kernel takes requests to freeze a cgroup and to thaw it.
#[derive(Debug)]
pub struct FreezeFile<'d>(ControlFd<'d>);

impl FreezeFile<'_> {
    /// Freezes or thaws the cgroup. Freezing takes a moment: [`Dir::freezer_state`] shows when it is done.
    pub fn set_frozen(&self, freeze: bool) -> Result<(), CgroupError> {
        self.0.set(if freeze { "1" } else { "0" })
    }
}

impl Dir {
    /// Reads the freezer's files; `None` where the kernel has no freezer here (v1, v2 before 5.2, the root).
    pub fn freezer_state(&self) -> Result<Option<FreezerState>, CgroupError> {
        let Some(requested) = self.text(FREEZE)? else {
            return Ok(None);
        };
        let events = self.open_file(EVENTS, OFlag::O_RDONLY)?.text()?;
        Ok(Some(FreezerState {
            requested: requested.trim() == "1",
            frozen: events.lines().any(|line| line == "frozen 1"),
        }))
    }

    /// Opens the file that freezes and thaws the cgroup.
    pub fn open_freezer(&self) -> Result<FreezeFile<'_>, CgroupError> {
        Ok(FreezeFile(self.open_file(FREEZE, OFlag::O_WRONLY)?))
    }

    /// Whether a process is in this cgroup or below it. Works from inside any namespace for the caller's own process.
    ///
    /// Errors: the kernel refuses to list a cgroup. A cgroup that ends meanwhile holds no process.
    pub fn contains(&self, pid: u32) -> Result<bool, CgroupError> {
        let mut directories = VecDeque::from([self.path().to_owned()]);
        while let Some(directory) = directories.pop_front() {
            let failed = |errno| CgroupError {
                file: directory.clone(),
                reason: refused(errno, "look for processes"),
            };
            let processes = match fs::read_to_string(directory.join("cgroup.procs")).map_err(|error| errno_of(&error)) {
                Ok(processes) => processes,
                // The kernel lists threads of a threaded cgroup with their process, in a parent.
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
