//! Reports writes to a cgroup's files, without polling.
//!
//! In come open cgroups, each with a key; out come the keys of those whose files a process wrote, this process included: the receiver
//! reads the files and compares. One inotify descriptor serves all cgroups. It becomes readable when [`Watch::drain`] has keys, so
//! an event loop can wait for it.
//!
//! Measured on Linux 6.18 (v1) and 7.2 (v2): every `write` by another process to `cpu.max`, `cpu.weight`, `memory.max`,
//! `cpu.shares`, `cpu.cfs_quota_us`, `cpu.cfs_period_us`, `memory.limit_in_bytes` and `memory.memsw.limit_in_bytes` is
//! one IN_MODIFY, a refused write included. Only 7.2 reports the removal of a cgroup (IN_DELETE_SELF, IN_IGNORED), and only
//! for files that no process holds open: the runtime's events and the next failed read show the end of a cgroup for certain.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use super::file::Dir;
use super::{Cgroup, CgroupError, Reason};
use crate::descriptors::async_fd;

/// Watches files of cgroups, each with a key of the caller. A key may have several files, and a file several keys.
#[derive(Debug)]
pub struct Watch<K> {
    inotify: Inotify,
    files: HashMap<WatchDescriptor, Vec<K>>,
    /// The files of each key, also those that are gone.
    watches: BTreeMap<K, Vec<WatchDescriptor>>,
}

impl<K: Clone + Ord> Watch<K> {
    /// Opens the inotify descriptor.
    ///
    /// Errors: EMFILE when this user has `fs.inotify.max_user_instances` descriptors.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            inotify: Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?,
            files: HashMap::new(),
            watches: BTreeMap::new(),
        })
    }

    /// Watches every file of an open cgroup. The watch follows the opened directory, not its path.
    ///
    /// Errors: the cgroup is gone, it has none of the files, or ENOSPC when `fs.inotify.max_user_watches` is reached. Then not all
    /// files of the cgroup are watched.
    pub fn add(&mut self, cgroup: &Cgroup, key: &K) -> Result<(), CgroupError> {
        let (mut watched, mut absent) = (false, None);
        for dir in cgroup.dirs() {
            for file in dir.files() {
                match self.add_file(dir.dir(file.resource()), file.name(), key) {
                    Ok(()) => watched = true,
                    Err(error) if error.reason == Reason::Absent => absent = Some(error),
                    Err(error) => return Err(error),
                }
            }
        }
        match absent {
            Some(error) if !watched => Err(error),
            _ => Ok(()),
        }
    }

    /// Watches one file. Names it by the directory's descriptor, so that the file belongs to the opened cgroup.
    ///
    /// Errors: as of [`Watch::add`].
    pub fn add_file(&mut self, dir: &Dir, name: &str, key: &K) -> Result<(), CgroupError> {
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.fd.as_raw_fd()));
        let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF;
        let watch = self.inotify.add_watch(&path, flags);
        let watch = watch.map_err(|errno| dir.failed(name, errno, "watch the file"))?;
        let keys = self.files.entry(watch).or_default();
        if !keys.contains(key) {
            keys.push(key.clone());
            self.watches.entry(key.clone()).or_default().push(watch);
        }
        Ok(())
    }

    /// Stops watching the files with this key, and drops their queued events.
    pub fn remove(&mut self, key: &K) {
        for watch in self.watches.remove(key).into_iter().flatten() {
            let Entry::Occupied(mut keys) = self.files.entry(watch) else {
                continue;
            };
            keys.get_mut().retain(|of| of != key);
            if !keys.get().is_empty() {
                continue;
            }
            keys.remove();
            match self.inotify.rm_watch(watch) {
                // The kernel has already forgotten the watch, with its file.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(errno) => tracing::warn!(?watch, %errno, "cannot remove an inotify watch"),
            }
        }
    }

    /// Returns the keys of the files that a process has written since the latest call, perhaps with the same values, or whose cgroup was
    /// removed; `None` where the kernel dropped events (`fs.inotify.max_queued_events`): check everything. Does not wait.
    ///
    /// Errors: the kernel's errno, except EAGAIN (there is no event).
    pub fn drain(&mut self) -> Result<Option<BTreeSet<K>>, Errno> {
        let mut written = Some(BTreeSet::new());
        loop {
            match self.inotify.read_events() {
                Ok(events) => events.iter().for_each(|event| self.note(event, &mut written)),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(written)
    }

    /// Lets tokio wait for the descriptor.
    ///
    /// Errors: the reactor refuses the descriptor.
    ///
    /// Panics: outside of a tokio runtime with I/O enabled.
    pub fn into_async(self) -> io::Result<AsyncFd<Self>> {
        async_fd(self)
    }

    fn note(&mut self, event: &InotifyEvent, written: &mut Option<BTreeSet<K>>) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            *written = None;
        } else if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.files.remove(&event.wd);
        } else if let (Some(written), Some(keys)) = (written, self.files.get(&event.wd)) {
            written.extend(keys.iter().cloned());
        }
    }
}

impl<K> AsFd for Watch<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl<K> AsRawFd for Watch<K> {
    fn as_raw_fd(&self) -> RawFd {
        self.inotify.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_removed_key_leaves_the_files_of_others() {
        let root = tempfile::tempdir().unwrap();
        let write_all = || ["own", "shared"].map(|name| fs::write(root.path().join(name), "1\n").unwrap());
        write_all();
        let dir = Dir::open(root.path().to_owned()).unwrap();
        let mut watch = Watch::new().unwrap();
        for (name, key) in [("own", 1), ("shared", 1), ("shared", 2)] {
            watch.add_file(&dir, name, &key).unwrap();
        }
        watch.remove(&1);
        write_all();
        assert_eq!(watch.drain(), Ok(Some(BTreeSet::from([2]))));
        assert_eq!([watch.files.len(), watch.watches.len()], [1, 1]);
        watch.remove(&2);
        assert!(watch.files.is_empty() && watch.watches.is_empty());
    }
}
