//! A journal: a file of checksummed frames ([`frame`]) that are appended. All of it blocks.
//!
//! Frames are appended; a frame that could not be written whole is taken back. To get rid of what is not needed any more, what is
//! left is written into a new file, which takes the old one's place once the disk has it. The length kept here is the
//! truth: what lies beyond it was never promised to anybody.

pub(crate) mod frame;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use frame::Header;

/// What a journal is about: how it begins, and what its files are called.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The first bytes of the journal.
    pub(crate) header: Header,
    /// The journal.
    pub(crate) file: &'static str,
    /// Another that is to take its place.
    pub(crate) new_file: &'static str,
    /// One that is not understood.
    pub(crate) set_aside: &'static str,
    /// Whoever holds this one's lock may write the others.
    pub(crate) lock: &'static str,
}

/// Something went wrong with a journal's files.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}", path = .path.display())]
pub(crate) struct JournalError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The directory of the journal, and the right to write there.
#[derive(Debug)]
pub(crate) struct Home {
    kind: &'static Kind,
    directory: PathBuf,
    _lock: File,
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    length: u64,
    dirty: bool,
}

impl Home {
    /// Makes the directory, private to the agent, and takes the right to write there; the kernel gives it back when this
    /// process ends, however it ends.
    pub(crate) fn enter(kind: &'static Kind, directory: &Path) -> Result<Self, JournalError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("create", directory))?;
        let path = directory.join(kind.lock);
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed("lock", &path)(io::Error::other("another vscaled uses it")),
            TryLockError::Error(error) => failed("lock", &path)(error),
        })?;
        Ok(Self {
            kind,
            directory: directory.to_owned(),
            _lock: lock,
        })
    }

    /// Opens the journal, if there is one, and reads all of it.
    pub(crate) fn read(&self) -> Result<Option<(Journal, Vec<u8>)>, JournalError> {
        let path = self.directory.join(self.kind.file);
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut &file, &mut bytes).map_err(failed("read", &path))?;
        let journal = Journal {
            file,
            path,
            length: wide(bytes.len()),
            dirty: false,
        };
        Ok(Some((journal, bytes)))
    }

    /// Gives the journal another name, under which nobody touches it; one set aside earlier goes.
    pub(crate) fn set_aside(&self) -> Result<PathBuf, JournalError> {
        let path = self.directory.join(self.kind.file);
        let aside = self.directory.join(self.kind.set_aside);
        fs::rename(&path, &aside).map_err(failed("set aside", &path))?;
        Ok(aside)
    }

    /// Begins a new journal beside the one in use.
    pub(crate) fn begin(&self) -> Result<Journal, JournalError> {
        let path = self.directory.join(self.kind.new_file);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("create", &path))?;
        let mut journal = Journal {
            file,
            path,
            length: 0,
            dirty: false,
        };
        journal.append(&self.kind.header)?;
        Ok(journal)
    }

    /// Puts a new journal in the place of the one in use, once the disk has it. If that fails, either of them may be there:
    /// the new one, if only the directory could not be synced.
    pub(crate) fn replace(&self, mut journal: Journal) -> Result<Journal, JournalError> {
        journal.sync()?;
        let path = self.directory.join(self.kind.file);
        fs::rename(&journal.path, &path).map_err(failed("replace", &path))?;
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed("sync", &self.directory))?;
        journal.path = path;
        Ok(journal)
    }

    /// Takes back a new journal that was not finished.
    pub(crate) fn abandon(&self) {
        let path = self.directory.join(self.kind.new_file);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "an unfinished file could not be removed");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

impl Journal {
    /// Appends bytes and says where they begin. If that fails, nothing was appended.
    fn append(&mut self, bytes: &[u8]) -> Result<u64, JournalError> {
        let at = self.length;
        if let Err(error) = self.file.write_all_at(bytes, at) {
            // Part of it may be there. If it cannot be cut off, it is a torn end: the length kept here goes on from before.
            if let Err(also) = self.file.set_len(at) {
                tracing::warn!(path = %self.path.display(), error = %also, "half a write could not be taken back");
            }
            return Err(failed("write", &self.path)(error));
        }
        self.length += wide(bytes.len());
        self.dirty = true;
        Ok(at)
    }

    /// Cuts off what comes after the last good step.
    pub(crate) fn cut(&mut self, length: u64) -> Result<(), JournalError> {
        self.file
            .set_len(length)
            .map_err(failed("cut off the end of", &self.path))?;
        self.length = length;
        Ok(())
    }

    /// Waits until the disk has everything. Whether there was anything to wait for.
    pub(crate) fn sync(&mut self) -> Result<bool, JournalError> {
        if !self.dirty {
            return Ok(false);
        }
        self.file.sync_data().map_err(failed("sync", &self.path))?;
        self.dirty = false;
        Ok(true)
    }

    /// Whether something is not yet known to be on the disk.
    pub(crate) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Bytes from anywhere in it.
    pub(crate) fn read_at(&self, at: u64, length: usize) -> Result<Vec<u8>, JournalError> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(failed("read", &self.path))?;
        Ok(bytes)
    }

    /// Appends a frame of this payload and says where the frame begins. If that fails, nothing was appended.
    pub(crate) fn append_frame(&mut self, payload: &[u8]) -> Result<u64, JournalError> {
        let Some(frame) = frame::frame(payload) else {
            let message = format!("{} bytes are more than a frame can hold", payload.len());
            return Err(failed("write", &self.path)(io::Error::new(
                io::ErrorKind::FileTooLarge,
                message,
            )));
        };
        self.append(&frame)
    }

    /// Whether its path still leads to it, so that whoever comes later finds what is appended: not if another one took its
    /// place, or somebody removed it. If that cannot be found out, nobody can be sure of it either.
    pub(crate) fn is_in_place(&self) -> bool {
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let there = fs::metadata(&self.path).map(identity);
        let this = self.file.metadata().map(identity);
        matches!((there, this), (Ok(there), Ok(this)) if there == this)
    }

    /// Its length in bytes.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError {
        action,
        path: path.clone(),
        source,
    }
}

/// A length in memory is at most 64 bits wide.
pub(crate) const fn wide(length: usize) -> u64 {
    length as u64
}
