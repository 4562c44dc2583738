//! inotify on the directory, and on its name in its parent, so that a directory that is deleted, recreated or replaced by a
//! symbolic link is noticed. A file written in place counts as being written from its first change until it is closed, or
//! until its writer pauses: half a manifest may be a valid one.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// More than the pause between two writes of one manifest.
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes of names: a file or directory appears, disappears, or is replaced.
const NAMES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_ONLYDIR);

/// Changes of content, of permissions, and of the directory itself.
const CONTENT: AddWatchFlags = AddWatchFlags::IN_MODIFY
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF);

/// The kernel's notifications about one directory.
#[derive(Debug)]
pub(super) struct Notifier {
    inotify: AsyncFd<Instance>,
    directory: PathBuf,
    watched: Option<WatchDescriptor>,
    /// The watch on the parent; none for the root directory.
    parent: Option<WatchDescriptor>,
    /// The time of the last change of each file that is being written.
    writing: HashMap<OsString, Instant>,
    /// The pause of a writer after which its file is read.
    pub(super) patience: Duration,
}

/// nix's inotify has no `AsRawFd`, which [`AsyncFd`] needs.
#[derive(Debug)]
struct Instance(Inotify);

impl AsRawFd for Instance {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Notifier {
    /// Opens inotify. Watches nothing before [`Self::arm`].
    ///
    /// Errors: EMFILE when this user has `fs.inotify.max_user_instances`.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let inotify = Instance(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?);
        #[expect(
            deprecated,
            reason = "the unsafe constructor wants a descriptor that stays open and the same: this one is owned for life"
        )]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self {
            inotify,
            directory: directory.to_owned(),
            watched: None,
            parent: None,
            writing: HashMap::new(),
            patience: PATIENCE,
        })
    }

    /// Watches the present inode at the directory's path. Must precede reading, so that no change falls in between.
    pub(super) fn arm(&mut self) {
        if let Some(parent) = self.directory.parent() {
            self.parent = self.watch(parent, NAMES, self.parent);
        }
        self.watched = self.watch(&self.directory, NAMES | CONTENT, self.watched);
    }

    /// Replaces a watch. A path that is watched already keeps its watch.
    fn watch(&self, path: &Path, mask: AddWatchFlags, before: Option<WatchDescriptor>) -> Option<WatchDescriptor> {
        let inotify = &self.inotify.get_ref().0;
        let descriptor = inotify.add_watch(path, mask);
        if let Err(errno) = descriptor
            && before.is_some()
            // The reader reports a missing directory.
            && ![Errno::ENOENT, Errno::ENOTDIR].contains(&errno)
        {
            tracing::warn!(path = %path.display(), %errno, "cannot be watched: reading at intervals");
        }
        // EINVAL: the kernel has dropped the watch with its inode.
        if let Some(before) = before.filter(|before| descriptor != Ok(*before))
            && let Err(errno) = inotify.rm_watch(before)
            && errno != Errno::EINVAL
        {
            tracing::warn!(path = %path.display(), %errno, "cannot end an inotify watch");
        }
        descriptor.ok()
    }

    /// Whether the directory is watched.
    pub(super) fn is_armed(&self) -> bool {
        self.watched.is_some()
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
        if Some(event.wd) != self.watched {
            return event.name.is_some() && event.name.as_deref() == self.directory.file_name();
        }
        if has(AddWatchFlags::IN_IGNORED) {
            self.watched = None;
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
