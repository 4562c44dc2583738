//! A rotated file of lines with bounded size.
//!
//! Each line is appended whole. A file that would become too long is renamed (`audit.jsonl` → `audit.jsonl.1` →
//! `audit.jsonl.2` …) and the oldest is removed. Blocks.
//!
//! An appended line survives the end of the process at once, and a power cut after the next [`RotatedFile::sync`]. A file
//! is synced before another takes its place.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::{Error, anyhow};

use super::AuditOptions;
use super::line::of_count;
use crate::files;

/// The current file and its rotated predecessors.
#[derive(Debug)]
pub(super) struct RotatedFile {
    pub(super) options: AuditOptions,
    open: Option<Open>,
    /// The number of lines that could not be appended.
    pub(super) lost: u64,
}

#[derive(Debug)]
struct Open {
    file: File,
    bytes: u64,
    /// Device and inode, which another process may change by rotating the file.
    inode: (u64, u64),
    /// Whether the disk may lack lines.
    unsynced: bool,
    /// Whether the file may end with part of a line. Opening the file again mends that.
    torn: bool,
}

impl Open {
    /// Waits until the disk has all lines.
    fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.file.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }
}

impl RotatedFile {
    pub(super) const fn new(options: AuditOptions) -> Self {
        Self {
            options,
            open: None,
            lost: 0,
        }
    }

    /// Waits until the disk has all lines.
    ///
    /// Errors: a power cut may lose the lines since the last success.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        let synced = self.open.as_mut().map_or(Ok(()), Open::sync);
        synced.map_err(|error| self.failed("sync", &error))
    }

    /// Appends these lines, each with its newline, as far as the disk takes them, after the count of lost lines.
    pub(super) fn append_all<'l>(&mut self, lines: impl Iterator<Item = &'l str>) -> Option<Error> {
        let mut error = None;
        if self.lost > 0 {
            error = self.append(&of_count("lost", None, "lines", self.lost)).err();
            self.lost = if error.is_none() { 0 } else { self.lost };
        }
        for line in lines {
            error = error.or_else(|| self.append(line).err());
            self.lost += u64::from(error.is_some());
        }
        error
    }

    fn append(&mut self, line: &str) -> Result<(), Error> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let mut open = self.current()?;
        if open.bytes > 0 && open.bytes.saturating_add(length) > self.options.bytes {
            open.sync().map_err(|error| self.failed("sync", &error))?;
            drop(open);
            self.rotate()?;
            open = self.current()?;
        }
        let written = open.file.write_all(line.as_bytes());
        open.bytes += length;
        open.unsynced = true;
        open.torn = written.is_err();
        self.open = Some(open);
        written.map_err(|error| self.failed("write", &error))
    }

    /// Opens the file at the path, unless it is open.
    fn current(&mut self) -> Result<Open, Error> {
        let there = fs::metadata(&self.options.path).map(|there| (there.dev(), there.ino()));
        match (self.open.take(), there) {
            (Some(open), Ok(inode)) if open.inode == inode && !open.torn => Ok(open),
            (left, _) => {
                if let Some(mut left) = left {
                    left.sync().map_err(|error| self.failed("sync", &error))?;
                }
                self.open_file().map_err(|error| self.failed("open", &error))
            }
        }
    }

    fn open_file(&self) -> io::Result<Open> {
        let path = &self.options.path;
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let metadata = file.metadata()?;
        let mut bytes = metadata.len();
        if bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        // The directory holds the names of this file and of the rotated ones.
        files::sync_directory_of(path)?;
        Ok(Open {
            file,
            bytes,
            inode: (metadata.dev(), metadata.ino()),
            unsynced: false,
            torn: false,
        })
    }

    /// Removes the oldest files and renames the others, so that the path is free.
    fn rotate(&self) -> Result<(), Error> {
        // An agent with more `auditLogFiles` may have left files beyond them.
        let mut end = self.options.files;
        while self.numbered(end).is_file() {
            end += 1;
        }
        for number in (0..end).rev() {
            let (from, next) = (self.numbered(number), number + 1);
            let moved = if next < self.options.files {
                fs::rename(from, self.numbered(next))
            } else {
                fs::remove_file(from)
            };
            match moved {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.failed("rotate", &error)),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// The path of a file; the current one is 0.
    fn numbered(&self, number: usize) -> PathBuf {
        let mut name = self.options.path.clone().into_os_string();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.into()
    }

    fn failed(&self, action: &'static str, error: &io::Error) -> Error {
        let path = self.options.path.display();
        anyhow!("cannot {action} {path}: {error}; check that it is writable and has free space (auditLog)")
    }
}

#[cfg(test)]
mod tests;
