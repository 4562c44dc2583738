//! The freezer of cgroup v2: stops every process of a cgroup where it stands, and lets it go on.
//!
//! In comes a directory; out come its freezer's state and its identity. Whoever freezes must thaw, whatever happens:
//! seeing to that is [`crate::actuate`]'s, this is only the file.

use std::collections::VecDeque;
use std::fs;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::CgroupError;
use super::file::{Dir, directories_in, errno_of, is_gone, refused};

/// Whether a cgroup is to be frozen: written.
const FREEZE: &str = "cgroup.freeze";
/// Whether it is: read. Includes that an ancestor is.
const EVENTS: &str = "cgroup.events";

/// What a freezer's files say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreezerState {
    /// The file says that this cgroup is to be frozen.
    pub requested: bool,
    /// Every process in it stands still, for that or because an ancestor is frozen.
    pub frozen: bool,
}

impl Dir {
    /// What its freezer's files say; `None` where the kernel has no freezer here (v1, v2 before 5.2, the root).
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

    /// Asks for the cgroup to be frozen, or lets it go on. Freezing takes a moment: [`Self::freezer_state`] tells when it
    /// is done.
    pub fn set_frozen(&self, freeze: bool) -> Result<(), CgroupError> {
        let file = self.open_file(FREEZE, OFlag::O_WRONLY)?;
        file.set(if freeze { "1" } else { "0" })
    }

    /// Whether a process is in this cgroup or below it. Works from inside any namespace for the caller's own process.
    ///
    /// Errors: [`CgroupError`] when the cgroup cannot be looked through; what ends meanwhile holds nobody.
    pub fn contains(&self, pid: u32) -> Result<bool, CgroupError> {
        let mut directories = VecDeque::from([self.path().to_owned()]);
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
