//! The file of the log and the directory around it. All of it blocks.
//!
//! Frames are appended; a frame that could not be written whole is cut off again. To drop what is no longer needed, the
//! rest is written into a new file, which replaces the old one after an fsync. The length kept here is the truth: bytes
//! beyond it were never promised to anyone.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::frame::{self, Header};
use crate::files::replace_atomically;

/// The first bytes of the log: the magic and the version of the format. A change that an older agent
/// would misread raises the version.
pub(super) const HEADER: Header = *b"vskills\x01";
const MAGIC_LENGTH: usize = HEADER.len() - 1;
const FILE: &str = "kills.log";
const SET_ASIDE: &str = "kills.log.set-aside";
const LOCK: &str = "kills.lock";

/// An operation on a file of the log failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}", path = .path.display())]
pub(crate) struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The directory of the log, locked against a second agent.
#[derive(Debug)]
pub(super) struct LogDirectory {
    path: PathBuf,
    _lock: File,
}

/// A log that is to replace the one in use.
#[derive(Debug)]
pub(super) struct NewLog<'a> {
    file: &'a mut BufWriter<File>,
    length: u64,
}

#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    path: PathBuf,
    length: u64,
    dirty: bool,
}

impl LogDirectory {
    /// Creates the directory, private to the agent, and locks it. The kernel releases the lock when this process ends.
    pub(super) fn lock(directory: &Path) -> Result<Self, FileError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("create", directory))?;
        let path = directory.join(LOCK);
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
            path: directory.to_owned(),
            _lock: lock,
        })
    }

    /// Opens the log, if there is one, and reads all of it. A log of a newer version is an error and stays untouched.
    pub(super) fn read(&self) -> Result<Option<(LogFile, Vec<u8>)>, FileError> {
        let path = self.path.join(FILE);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut &file, &mut bytes).map_err(failed("read", &path))?;
        if let Some(version) = newer_version(&bytes) {
            let message = format!(
                "a newer vscaled wrote it (format {version}, this one knows up to {}); it is left alone",
                HEADER[MAGIC_LENGTH]
            );
            return Err(failed("use", &path)(io::Error::other(message)));
        }
        let log = LogFile {
            file,
            path,
            length: wide(bytes.len()),
            dirty: false,
        };
        Ok(Some((log, bytes)))
    }

    /// Renames the log so that no agent writes it; a log that was set aside earlier is overwritten.
    pub(super) fn set_aside(&self) -> Result<PathBuf, FileError> {
        let path = self.path.join(FILE);
        let aside = self.path.join(SET_ASIDE);
        fs::rename(&path, &aside).map_err(failed("set aside", &path))?;
        Ok(aside)
    }

    /// Replaces the log by one of these frames, after an fsync. After an error either of them may be in place: the new one,
    /// if only the fsync of the directory failed.
    pub(super) fn replace(&self, write: impl FnOnce(&mut NewLog<'_>) -> io::Result<()>) -> Result<LogFile, FileError> {
        let path = self.path.join(FILE);
        let mut length = 0;
        let file = replace_atomically(&path, |file| {
            let mut new = NewLog { file, length: 0 };
            new.write(&HEADER)?;
            write(&mut new)?;
            length = new.length;
            Ok(())
        });
        Ok(LogFile {
            file: file.map_err(failed("replace", &path))?,
            path,
            length,
            dirty: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl NewLog<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += wide(bytes.len());
        self.file.write_all(bytes)
    }
}

/// A file that frames are appended to.
pub(super) trait AppendFrame {
    type Error;

    /// Appends a frame of this payload and returns the offset of the payload.
    fn append_frame(&mut self, payload: &[u8]) -> Result<u64, Self::Error>;
}

impl AppendFrame for NewLog<'_> {
    type Error = io::Error;

    fn append_frame(&mut self, payload: &[u8]) -> io::Result<u64> {
        let at = self.length + wide(frame::OVERHEAD);
        self.write(&frame::frame(payload).ok_or(io::ErrorKind::FileTooLarge)?)?;
        Ok(at)
    }
}

impl AppendFrame for LogFile {
    type Error = FileError;

    /// After an error nothing was appended.
    fn append_frame(&mut self, payload: &[u8]) -> Result<u64, FileError> {
        match frame::frame(payload) {
            Some(frame) => Ok(self.append(&frame)? + wide(frame::OVERHEAD)),
            None => Err(failed("write", &self.path)(io::ErrorKind::FileTooLarge.into())),
        }
    }
}

impl LogFile {
    /// Appends bytes and returns their offset. After an error nothing was appended.
    fn append(&mut self, bytes: &[u8]) -> Result<u64, FileError> {
        let at = self.length;
        if let Err(error) = self.file.write_all_at(bytes, at) {
            // Part of it may be there. What cannot be cut off is a torn end: the next append overwrites it.
            if let Err(also) = self.file.set_len(at) {
                tracing::warn!(path = %self.path.display(), error = %also, "half a write could not be taken back");
            }
            return Err(failed("write", &self.path)(error));
        }
        self.length += wide(bytes.len());
        self.dirty = true;
        Ok(at)
    }

    /// Cuts off the bytes from this offset on.
    pub(super) fn truncate(&mut self, length: u64) -> Result<(), FileError> {
        self.file
            .set_len(length)
            .map_err(failed("cut off the end of", &self.path))?;
        self.length = length;
        Ok(())
    }

    /// Waits until the disk has everything that was appended. Returns whether there was anything to wait for.
    pub(super) fn sync(&mut self) -> Result<bool, FileError> {
        if !self.dirty {
            return Ok(false);
        }
        self.file.sync_data().map_err(failed("sync", &self.path))?;
        self.dirty = false;
        Ok(true)
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(super) fn read_at(&self, at: u64, length: usize) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(failed("read", &self.path))?;
        Ok(bytes)
    }

    /// Whether the path still leads to this file, so that the next agent finds what is appended: false after another file
    /// replaced it, or somebody removed it.
    pub(super) fn is_in_place(&self) -> bool {
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let there = fs::metadata(&self.path).map(identity);
        let this = self.file.metadata().map(identity);
        matches!((there, this), (Ok(there), Ok(this)) if there == this)
    }

    pub(super) const fn length(&self) -> u64 {
        self.length
    }
}

/// The version in the header of a log that a newer agent wrote.
fn newer_version(bytes: &[u8]) -> Option<u8> {
    let version = *bytes.get(MAGIC_LENGTH)?;
    (bytes[..MAGIC_LENGTH] == HEADER[..MAGIC_LENGTH] && version > HEADER[MAGIC_LENGTH]).then_some(version)
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError {
        action,
        path: path.clone(),
        source,
    }
}

/// A length in memory is at most 64 bits wide.
pub(super) const fn wide(length: usize) -> u64 {
    length as u64
}
