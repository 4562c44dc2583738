//! The file of the log and the directory around it. All of it blocks.
//!
//! The agent appends frames, and cuts off a frame that the disk did not take whole. To drop reports, it writes the others into
//! a new file, which replaces the old one after an fsync. [`LogFile::length`] is the truth: no caller relies on bytes beyond it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::frame::Header;
use super::wide;
use crate::files::replace_atomically;

/// The first bytes of the log: [`MAGIC`] and [`VERSION`].
pub(super) const HEADER: Header = *b"vskills\x01";
const MAGIC: &[u8] = b"vskills";
/// A change that an older agent would misread raises the version.
const VERSION: u8 = 1;
const FILE: &str = "kills.log";

#[derive(Debug, Default)]
pub(super) struct LogFile {
    pub(super) directory: PathBuf,
    path: PathBuf,
    /// Whether the directory exists and the agent has read the log in it, if there is one.
    pub(super) is_open: bool,
    file: Option<File>,
    pub(super) length: u64,
    /// Whether a power cut could take a report that was appended.
    pub(super) is_dirty: bool,
}

impl LogFile {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            path: directory.join(FILE),
            ..Self::default()
        }
    }

    /// Creates the directory, private to the agent, and reads the log, if there is one. The agent has locked the state
    /// directory: no other agent writes here.
    ///
    /// Errors: also for a log of a newer version, which stays untouched.
    pub(super) fn open(&mut self) -> Result<Option<Vec<u8>>> {
        let mut directory = DirBuilder::new();
        let created = directory.recursive(true).mode(0o700).create(&self.directory);
        created.with_context(|| format!("cannot create {}", self.directory.display()))?;
        let bytes = self.read();
        self.is_open = bytes.is_ok();
        bytes.with_context(|| format!("cannot use {}", self.path.display()))
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>> {
        let mut file = match OpenOptions::new().read(true).write(true).open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if let Some([version, ..]) = bytes.strip_prefix(MAGIC)
            && *version > VERSION
        {
            bail!("a newer vscaled wrote it (format {version}, this one knows up to {VERSION}); it is left alone");
        }
        (self.file, self.length) = (Some(file), wide(bytes.len()));
        Ok(Some(bytes))
    }

    /// Renames the log so that no agent writes it; overwrites a log that was set aside earlier. After an error
    /// the log is not open.
    pub(super) fn set_aside(&mut self) -> Result<PathBuf> {
        let aside = aside(&self.path);
        let renamed = fs::rename(&self.path, &aside).inspect_err(|_| self.is_open = false);
        renamed.with_context(|| format!("cannot set aside {}", self.path.display()))?;
        Ok(aside)
    }

    /// Replaces the log, after an fsync, by the header and these frames.
    ///
    /// Errors: the old file is in place, or the new one, if only the fsync of the directory failed.
    pub(super) fn replace(&mut self, mut frames: impl Iterator<Item = io::Result<Vec<u8>>>) -> Result<()> {
        let write = |new: &mut BufWriter<File>| {
            new.write_all(&HEADER)?;
            frames.try_for_each(|frame| new.write_all(&frame?))
        };
        let replaced = replace_atomically(&self.path, write).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = replaced.with_context(|| format!("cannot replace {}", self.path.display()))?;
        (self.file, self.length, self.is_dirty) = (Some(file), length, false);
        Ok(())
    }

    /// Appends a frame.
    ///
    /// Errors: nothing was appended.
    pub(super) fn append(&mut self, frame: &[u8]) -> Result<()> {
        let file = self.file.as_ref().context("no log of OOM kills is open")?;
        if let Err(error) = file.write_all_at(frame, self.length) {
            // Part of the frame may be there. If it stays, it is a torn end, and the next append overwrites it.
            if let Err(also) = file.set_len(self.length) {
                tracing::warn!(path = %self.path.display(), error = %also, "half a write could not be taken back");
            }
            return Err(error).with_context(|| format!("cannot write {}", self.path.display()));
        }
        self.length += wide(frame.len());
        Ok(())
    }

    /// Cuts off the bytes from this offset on.
    pub(super) fn truncate(&mut self, length: usize) -> Result<()> {
        self.length = wide(length);
        let cut = self.file.as_ref().map_or(Ok(()), |file| file.set_len(self.length));
        cut.with_context(|| format!("cannot cut off the end of {}", self.path.display()))
    }

    /// Waits until the disk has every report that was appended. Returns whether there was anything to wait for.
    pub(super) fn sync(&mut self) -> Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.is_dirty) else {
            return Ok(false);
        };
        // After an error only a new file can be trusted, so a second sync of this one saves nothing.
        self.is_dirty = false;
        file.sync_data()
            .with_context(|| format!("cannot sync {}", self.path.display()))?;
        Ok(true)
    }

    /// Whether the path still leads to this file, so that the next agent finds new frames: false after another process
    /// replaced or removed the file.
    pub(super) fn is_in_place(&self) -> bool {
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let there = fs::metadata(&self.path).ok().map(identity);
        let this = self.file.as_ref().and_then(|file| file.metadata().ok());
        there.is_some() && there == this.map(identity)
    }
}

/// The path to which the agent renames a damaged file.
pub(super) fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".set-aside");
    name.into()
}
