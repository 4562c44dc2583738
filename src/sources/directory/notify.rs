//! What the kernel tells about the directory: inotify, waited for with tokio.
//!
//! The directory is watched, and beside it the name of the directory in its parent, so that one that is deleted, made
//! again or replaced as a symbolic link is noticed. A file that is written in place is known from its first change to
//! its closing, and left alone in between, for a moment at least: half a manifest may well be a valid one.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// More than a writer pauses between two writes of one manifest.
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
    directory: Watched,
    /// Absent for the root directory.
    parent: Option<Watched>,
    /// When each file that is being written was last changed.
    writing: HashMap<OsString, Instant>,
    /// How long a file whose writer pauses is left alone.
    pub(super) patience: Duration,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    mask: AddWatchFlags,
    descriptor: Option<WatchDescriptor>,
}

/// nix's inotify has no `AsRawFd`, which [`AsyncFd`] wants.
#[derive(Debug)]
struct Instance(Inotify);

impl AsRawFd for Instance {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Notifier {
    /// Opens inotify; nothing is watched before [`Self::arm`].
    ///
    /// # Errors
    /// EMFILE when `fs.inotify.max_user_instances` are in use by this user.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let instance = Instance(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?);
        #[expect(
            deprecated,
            reason = "the unsafe constructor wants a descriptor that stays open and the same: this one is owned for life"
        )]
        let inotify = AsyncFd::new(instance)?;
        let watched = |path: &Path, mask| Watched {
            path: path.to_owned(),
            mask,
            descriptor: None,
        };
        Ok(Self {
            inotify,
            directory: watched(directory, NAMES | CONTENT),
            parent: directory.parent().map(|parent| watched(parent, NAMES)),
            writing: HashMap::new(),
            patience: PATIENCE,
        })
    }

    /// Watches what is at the directory's path now. Must come before reading it, so that no change falls in between.
    pub(super) fn arm(&mut self) {
        let inotify = &self.inotify.get_ref().0;
        if let Some(parent) = &mut self.parent {
            parent.arm(inotify);
        }
        self.directory.arm(inotify);
    }

    /// Whether the directory is watched.
    pub(super) fn is_armed(&self) -> bool {
        self.directory.descriptor.is_some()
    }

    /// Waits for a change that is worth reading the directory for. Cancel-safe: nothing is awaited between taking events
    /// and noting them.
    ///
    /// # Errors
    /// When the kernel will tell no more.
    pub(super) async fn happened(&mut self) -> io::Result<()> {
        loop {
            let mut guard = self.inotify.readable().await?;
            match guard.try_io(|inotify| Ok(inotify.get_ref().0.read_events()?)) {
                Ok(events) => {
                    if self.take(&events?) {
                        return Ok(());
                    }
                }
                // There was nothing to read after all.
                Err(_would_block) => {}
            }
        }
    }

    /// Takes what has happened, without waiting, and says whether it is worth reading the directory again.
    ///
    /// # Errors
    /// When the kernel will tell no more.
    pub(super) fn drain(&mut self) -> io::Result<bool> {
        let mut happened = false;
        loop {
            match self.inotify.get_ref().0.read_events() {
                Ok(events) => happened |= self.take(&events),
                Err(Errno::EAGAIN) => return Ok(happened),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The files that are being written, those aside whose writers have paused for too long.
    pub(super) fn being_written(&mut self, now: Instant) -> HashSet<OsString> {
        let patience = self.patience;
        self.writing.retain(|_, changed| *changed + patience > now);
        self.writing.keys().cloned().collect()
    }

    /// When the next of them will have paused for too long.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.writing.values().min().map(|changed| *changed + self.patience)
    }

    fn take(&mut self, events: &[InotifyEvent]) -> bool {
        // Every event counts, also after one that is worth reading for.
        events
            .iter()
            .fold(false, |happened, event| self.take_one(event) | happened)
    }

    fn take_one(&mut self, event: &InotifyEvent) -> bool {
        let name = event.name.as_deref();
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.writing.clear();
            return true;
        }
        if Some(event.wd) != self.directory.descriptor {
            return name.is_some() && name == self.directory.path.file_name();
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.directory.descriptor = None;
        }
        match name {
            Some(name) if event.mask.contains(AddWatchFlags::IN_MODIFY) => self.is_written(name),
            // Says nothing about who has it open.
            Some(_) if event.mask.contains(AddWatchFlags::IN_ATTRIB) => true,
            Some(name) => {
                self.writing.remove(name);
                true
            }
            None => true,
        }
    }

    /// The file's closing will be told as well.
    fn is_written(&mut self, name: &OsStr) -> bool {
        self.writing.insert(name.to_owned(), Instant::now());
        false
    }
}

impl Watched {
    /// Adding a watch again for what is watched already changes nothing and gives the same descriptor.
    fn arm(&mut self, inotify: &Inotify) {
        let descriptor = match inotify.add_watch(&self.path, self.mask) {
            Ok(descriptor) => Some(descriptor),
            // The reader reports what is missing.
            Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            Err(errno) => {
                if self.descriptor.is_some() {
                    tracing::warn!(path = %self.path.display(), %errno, "cannot be watched: reading at intervals");
                }
                None
            }
        };
        if let Some(old) = self.descriptor.filter(|old| Some(*old) != descriptor) {
            match inotify.rm_watch(old) {
                // The kernel has already forgotten the watch, with what it was on.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(errno) => tracing::warn!(path = %self.path.display(), %errno, "cannot end an inotify watch"),
            }
        }
        self.descriptor = descriptor;
    }
}
