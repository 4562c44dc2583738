//! The file of the log. All of it blocks.
//!
//! The agent appends frames. To drop reports, it writes the others into a new file, which replaces the old one after an fsync.
//! The length that the agent remembers is the truth: it relies on no bytes beyond it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::mem::take;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use super::{FILE, HEADER, KillLog};
use crate::files::replace_atomically;

/// A shorter file is not worth rewriting.
const SMALL: u64 = 4 << 20;

impl KillLog {
    /// Writes the state into a new file, which replaces the old one after an fsync. If that fails, the old file stays, or, if
    /// only the fsync of the directory failed, the new one; the log writes nothing more until [`Self::sync`] succeeds.
    pub(super) fn rewrite(&mut self) {
        if !self.is_recovered || !self.set_aside() {
            return;
        }
        let write = |new: &mut BufWriter<File>| {
            new.write_all(&HEADER)?;
            self.state.frames().try_for_each(|frame| new.write_all(&frame?))
        };
        let replaced = replace_atomically(&self.directory.join(FILE), write);
        match replaced.and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((length, file)) => {
                let most = self.bounds.max_bytes;
                self.rewrite_above = length.saturating_mul(4).clamp(SMALL.min(most / 4), most);
                (self.file, self.length, self.is_dirty) = (Some(file), length, false);
                self.totals.syncs.inc();
                if self.fault.take().is_some() {
                    tracing::info!("reports of OOM kills are kept on disk again");
                }
            }
            Err(error) => self.fail("replace", &error),
        }
    }

    /// Appends a frame that the state has taken in; rewrites the file where the frame finds no room, or most of the file is
    /// about reports that no destination needs any more. After a failure part of the frame may be there, a torn end: the log
    /// writes nothing more until [`Self::sync`] succeeds.
    pub(super) fn append(&mut self, frame: io::Result<Vec<u8>>, has_reports: bool) {
        if self.is_in_memory_only() {
            return;
        }
        let frame = frame
            .ok()
            .filter(|frame| self.length + frame.len() as u64 <= self.rewrite_above);
        let (Some(frame), Some(file)) = (frame, self.file_in_place()) else {
            return self.rewrite();
        };
        match file.write_all_at(&frame, self.length) {
            Ok(()) => {
                self.length += frame.len() as u64;
                self.is_dirty |= has_reports;
            }
            Err(error) => self.fail("write", &error),
        }
    }

    /// The file, if its path still leads to it: the next agent must find what this one appends.
    fn file_in_place(&self) -> Option<&File> {
        let identity = |file: &fs::Metadata| (file.dev(), file.ino());
        let there = fs::metadata(self.directory.join(FILE)).ok()?;
        let is_there = |file: &&File| file.metadata().is_ok_and(|this| identity(&this) == identity(&there));
        self.file.as_ref().filter(is_there)
    }

    /// Waits until the disk has everything. Returns whether it does; if not, [`Self::problem`] says why.
    pub fn sync(&mut self) -> bool {
        match &self.file {
            // The kernel forgets which pages it could not write (fsync(2)): after an error only a new file can be trusted.
            Some(file) if !self.is_in_memory_only() => {
                if take(&mut self.is_dirty) {
                    match file.sync_data() {
                        Ok(()) => drop(self.totals.syncs.inc()),
                        Err(error) => self.fail("sync", &error),
                    }
                }
            }
            Some(_) | None => {
                self.recover_once();
                self.rewrite();
            }
        }
        !self.is_in_memory_only()
    }

    pub(super) fn fail(&mut self, action: &str, error: &io::Error) {
        let path = self.directory.join(FILE);
        let fault = format!("cannot {action} {}: {error}", path.display());
        if self.fault.replace(fault).is_none() {
            tracing::error!(problem = self.problem(), "reports of OOM kills are not kept on disk");
        }
    }
}
