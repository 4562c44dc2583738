//! Learns when anybody writes a cgroup's files, without polling.
//!
//! In come open cgroups; out come [`Notice`]s of which of their files was written, by this process too: whoever reads a
//! notice reads the file and compares. One inotify descriptor serves all cgroups; it becomes readable when
//! [`Watch::drain`] has something, so an event loop can wait for it.
//!
//! Measured on Linux 6.18 (v1) and 7.2 (v2): every `write` by another process to `cpu.max`, `cpu.weight`, `memory.max`,
//! `cpu.shares`, `cpu.cfs_quota_us`, `cpu.cfs_period_us`, `memory.limit_in_bytes` and `memory.memsw.limit_in_bytes` is
//! one IN_MODIFY, a refused write included. Removal of the cgroup is told (IN_DELETE_SELF, IN_IGNORED) by 7.2 only, and
//! there only for files nobody holds open; 6.18 tells nothing, ever. So [`Notice::Removed`] is a hint: the end of a
//! cgroup is learned for certain from the runtime, or from the next read failing.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use super::file::Dir;
use super::{Cgroup, CgroupError, Reason};
use crate::model::ControlFile;

/// A watched cgroup, until it is removed from its [`Watch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

/// A change that inotify reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notice {
    /// A file was written; its value may or may not have changed.
    Modified { token: Token, file: ControlFile },
    /// The cgroup was removed. Some kernels never say so.
    Removed { token: Token },
    /// The kernel dropped notices (`fs.inotify.max_queued_events`): check everything.
    Overflow,
}

/// Watches the files of cgroups.
#[derive(Debug)]
pub struct Watch {
    inotify: Inotify,
    files: HashMap<WatchDescriptor, (Token, ControlFile)>,
    next: u64,
}

impl Watch {
    /// Opens the one descriptor.
    ///
    /// Errors: EMFILE when `fs.inotify.max_user_instances` are in use by this user.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            inotify: Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?,
            files: HashMap::new(),
            next: 0,
        })
    }

    /// Watches every file that an open cgroup has. The watch is on what was opened, not on its path. A cgroup is watched
    /// once: added again, its notices carry the new token.
    ///
    /// Errors: [`CgroupError`]: the cgroup is gone, it has none of the files, or ENOSPC when `fs.inotify.max_user_watches`
    /// is reached; then nothing of it is watched.
    pub fn add(&mut self, cgroup: &Cgroup) -> Result<Token, CgroupError> {
        let token = Token(self.next);
        self.next += 1;
        let (mut watched, mut absent) = (false, None);
        for (dir, file) in cgroup
            .dirs()
            .flat_map(|dir| dir.files().iter().map(move |file| (dir, *file)))
        {
            match self.add_file(dir.dir(file.resource()), file) {
                Ok(watch) => {
                    watched = true;
                    self.files.insert(watch, (token, file));
                }
                Err(error) if error.reason == Reason::Absent => absent = Some(error),
                Err(error) => {
                    self.remove(token);
                    return Err(error);
                }
            }
        }
        match absent {
            Some(error) if !watched => Err(error),
            _ => Ok(token),
        }
    }

    /// Names the file by the directory's descriptor, so that it is a file of what was opened.
    fn add_file(&self, dir: &Dir, file: ControlFile) -> Result<WatchDescriptor, CgroupError> {
        let path = PathBuf::from(format!("/proc/self/fd/{}/{file}", dir.as_fd().as_raw_fd()));
        self.inotify
            .add_watch(&path, AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF)
            .map_err(|errno| dir.failed(file.name(), errno, "watch the file"))
    }

    /// Stops watching a cgroup. Notices about it that are already queued are not reported any more.
    pub fn remove(&mut self, token: Token) {
        let inotify = &self.inotify;
        self.files.retain(|watch, (of, _)| {
            if *of != token {
                return true;
            }
            match inotify.rm_watch(*watch) {
                // The kernel has already forgotten the watch, with its file.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(errno) => tracing::warn!(?watch, %errno, "cannot remove an inotify watch"),
            }
            false
        });
    }

    /// Takes everything that has happened, without waiting. Several writes to one file may be one notice.
    ///
    /// Errors: what the kernel says, other than "nothing" (EAGAIN).
    pub fn drain(&mut self) -> Result<Vec<Notice>, Errno> {
        let mut notices = Vec::new();
        loop {
            match self.inotify.read_events() {
                Ok(events) => notices.extend(events.iter().filter_map(|event| self.notice(event))),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        notices.dedup();
        Ok(notices)
    }

    /// Lets tokio wait for the descriptor.
    ///
    /// Errors: what registering the descriptor with the reactor says.
    ///
    /// Panics: outside of a tokio runtime with I/O enabled.
    pub fn into_async(self) -> io::Result<AsyncFd<Self>> {
        #[expect(
            deprecated,
            reason = "the unsafe constructor wants a descriptor that stays open and the same: this one is owned for life"
        )]
        AsyncFd::try_new(self).map_err(io::Error::from)
    }

    fn notice(&mut self, event: &InotifyEvent) -> Option<Notice> {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return Some(Notice::Overflow);
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.files.remove(&event.wd);
            return None;
        }
        let (token, file) = *self.files.get(&event.wd)?;
        Some(if event.mask.contains(AddWatchFlags::IN_DELETE_SELF) {
            Notice::Removed { token }
        } else {
            Notice::Modified { token, file }
        })
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.inotify.as_fd().as_raw_fd()
    }
}
