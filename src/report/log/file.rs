//! The file of the log. All of it blocks.
//!
//! The agent appends frames. To drop reports, it writes the others into a new file, which replaces the old one after an fsync.
//! The length that the agent remembers is the truth: it relies on no bytes beyond it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::mem::take;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use super::{FILE, HEADER, KillLog, wide};
use crate::files::replace_atomically;

/// A shorter file is not worth rewriting.
const SMALL: u64 = 4 << 20;

impl KillLog {
    /// Writes the state into a new file, which replaces the old one after an fsync. If that fails, the old file stays, or, if
    /// only the fsync of the directory failed, the new one; the log writes nothing more until [`Self::restore`] succeeds.
    pub(super) fn rewrite(&mut self) {
        if !self.is_recovered {
            return;
        }
        let write = |new: &mut BufWriter<File>| {
            new.write_all(&HEADER)?;
            self.state.frames().try_for_each(|frame| new.write_all(&frame?))
        };
        let replaced = replace_atomically(&self.directory.join(FILE), write);
        match replaced.and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((length, file)) => {
                (self.file, self.length) = (Some(file), length);
                (self.is_dirty, self.fault) = (false, None);
                self.totals.syncs += 1;
            }
            Err(error) => self.fail("replace", &error),
        }
    }

    /// Appends a frame that the state has taken in; rewrites the file where the frame finds no room. After a failure part of the
    /// frame may be there, a torn end: the log writes nothing more until [`Self::restore`] succeeds.
    pub(super) fn append(&mut self, frame: io::Result<Vec<u8>>, has_reports: bool) {
        if self.is_in_memory_only() {
            return;
        }
        let frame = frame.ok().filter(|frame| self.may_append(frame.len()));
        let (Some(frame), Some(file)) = (frame, &self.file) else {
            return self.rewrite();
        };
        match file.write_all_at(&frame, self.length) {
            Ok(()) => {
                self.length += wide(frame.len());
                self.is_dirty |= has_reports;
            }
            Err(error) => self.fail("write", &error),
        }
    }

    /// Whether to append so many bytes: the path must still lead to this file, so that the next agent finds them; the file must
    /// not become too long, nor be mostly about reports that no destination needs any more.
    fn may_append(&self, bytes: usize) -> bool {
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let there = fs::metadata(self.directory.join(FILE)).ok().map(identity);
        let this = self.file.as_ref().and_then(|file| file.metadata().ok());
        let length = self.length + wide(bytes);
        let is_needed = || {
            let reports: u64 = self.state.slots.values().map(|slot| u64::from(slot.length)).sum();
            let others = self.state.checkpoint.as_ref().map_or(0, Vec::len) + 16 * self.state.seen.ids.len();
            length / 4 <= reports + wide(others)
        };
        let is_short = length <= SMALL.min(self.bounds.max_bytes / 4);
        there == this.map(identity) && length <= self.bounds.max_bytes && (is_short || is_needed())
    }

    /// Waits until the disk has every report.
    pub fn sync(&mut self) {
        let Some(file) = &self.file else {
            return self.rewrite();
        };
        // The kernel forgets which pages it could not write (fsync(2)): after an error only a new file can be trusted.
        if take(&mut self.is_dirty) {
            match file.sync_data() {
                Ok(()) => self.totals.syncs += 1,
                Err(error) => self.fail("sync", &error),
            }
        }
    }

    fn fail(&mut self, action: &str, error: &io::Error) {
        let path = self.directory.join(FILE);
        self.fault = Some(format!("cannot {action} {}: {error}", path.display()));
    }
}
