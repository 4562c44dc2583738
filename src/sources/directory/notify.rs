//! inotify on the directory. A file written in place counts as being written from its first change until it is closed, or
//! until its writer pauses: half a manifest may be a valid one.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::descriptors::{InotifyFd, inotify};

/// More than the pause between two writes of one manifest.
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes of names, of content, of permissions, and of the directory itself.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_MODIFY)
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// The kernel's notifications about one directory.
#[derive(Debug)]
pub(super) struct Notifier {
    inotify: AsyncFd<InotifyFd>,
    directory: PathBuf,
    /// The watch, or why there is none.
    watched: Result<WatchDescriptor, Errno>,
    /// The time of the last change of each file that is being written.
    writing: HashMap<OsString, Instant>,
    /// The pause of a writer after which its file is read.
    pub(super) patience: Duration,
}

impl Notifier {
    /// Opens inotify. Watches nothing before [`Self::arm`].
    ///
    /// Errors: EMFILE when this user has `fs.inotify.max_user_instances`.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            inotify: inotify()?,
            directory: directory.to_owned(),
            watched: Err(Errno::ENOENT),
            writing: HashMap::new(),
            patience: PATIENCE,
        })
    }

    /// Watches the present inode at the directory's path, which keeps its watch if it has one. Must precede reading, so that no
    /// change falls in between.
    pub(super) fn arm(&mut self) {
        let inotify = &self.inotify.get_ref().0;
        let watched = inotify.add_watch(&self.directory, CHANGES);
        if watched == self.watched {
            return;
        }
        if let Ok(before) = self.watched {
            // EINVAL: the kernel has dropped the watch with its inode.
            inotify.rm_watch(before).ok();
        }
        // The reader reports a missing directory.
        if let Err(errno) = watched
            && ![Errno::ENOENT, Errno::ENOTDIR].contains(&errno)
        {
            tracing::warn!(path = %self.directory.display(), %errno, "cannot be watched: reading at intervals");
        }
        self.watched = watched;
    }

    pub(super) fn is_armed(&self) -> bool {
        self.watched.is_ok()
    }

    /// Waits for a relevant change. Cancel-safe: there is no await between reading events and noting them.
    ///
    /// Errors: inotify failed and is of no further use.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        while !self.drain()? {
            self.inotify.readable().await?.clear_ready();
        }
        Ok(())
    }

    /// Reads waiting events; returns whether one of them is relevant.
    ///
    /// Errors: inotify failed and is of no further use.
    pub(super) fn drain(&mut self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            match self.inotify.get_ref().0.read_events() {
                Ok(events) => events.iter().for_each(|event| changed |= self.note(event)),
                Err(Errno::EAGAIN) => return Ok(changed),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The files that are being written, without those whose writers have paused for too long.
    pub(super) fn being_written(&mut self, now: Instant) -> HashSet<OsString> {
        let patience = self.patience;
        self.writing.retain(|_, changed| *changed + patience > now);
        self.writing.keys().cloned().collect()
    }

    /// When the next writer will have paused for too long.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.writing.values().min().map(|changed| *changed + self.patience)
    }

    /// Notes an event; returns whether it is relevant.
    fn note(&mut self, event: &InotifyEvent) -> bool {
        let has = |flag| event.mask.contains(flag);
        if has(AddWatchFlags::IN_Q_OVERFLOW) {
            self.writing.clear();
            return true;
        }
        // An event of the directory that was here before.
        if Ok(event.wd) != self.watched {
            return false;
        }
        if has(AddWatchFlags::IN_IGNORED) {
            self.watched = Err(Errno::ENOENT);
        }
        match &event.name {
            // An event for the close of the file follows.
            Some(name) if has(AddWatchFlags::IN_MODIFY) => {
                self.writing.insert(name.clone(), Instant::now());
                return false;
            }
            // A change of permissions says nothing about a writer.
            Some(name) if !has(AddWatchFlags::IN_ATTRIB) => drop(self.writing.remove(name)),
            Some(_) | None => {}
        }
        true
    }
}
