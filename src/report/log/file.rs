//! The file of the log. All of it blocks.
//!
//! The agent appends frames. To drop reports, it writes the others into a new file, which replaces the old one after an fsync.
//! The length that the agent remembers is the truth: it relies on no bytes beyond it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::mem::take;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use anyhow::{Context as _, Result, bail};

use super::state::State;
use super::{FILE, HEADER, KillLog, frame};
use crate::files::{remove_if_present, replace_atomically};

/// A shorter file is not worth rewriting.
const SMALL: u64 = 4 << 20;

impl KillLog {
    /// Reads the log in the state directory, which the agent has locked: no other agent writes there. The first [`KillLog::sync`]
    /// or commit writes a new log.
    ///
    /// Errors: also for a file of a newer version, which stays untouched.
    pub(super) fn recover(&mut self) -> Result<()> {
        let path = self.path.display();
        let bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            bytes => bytes.with_context(|| format!("cannot use {path}"))?,
        };
        let [magic @ .., version] = HEADER;
        if let Some([newer, ..]) = bytes.strip_prefix(&magic)
            && *newer > version
        {
            bail!(
                "cannot use {path}: a newer vscaled wrote it (format {newer}, this one knows up to {version}); it is left alone"
            );
        }
        let mut found = State::default();
        self.damage = frame::read(&HEADER, &bytes, |payload| found.replay_entry(payload));
        let forgotten = self.state.take_in(found, self.selected);
        if forgotten > 0 {
            tracing::warn!(
                reports = forgotten,
                "reports of OOM kills are dropped: their receiver is no longer configured"
            );
        }
        for destination in self.selected {
            // Most of the reports that were on the way when the agent ended are among the oldest.
            self.next_for(destination, 0, destination.window(), |_, _| true);
        }
        (self.is_recovered, self.is_dirty) = (true, true);
        self.set_aside();
        self.make_room();
        Ok(())
    }

    /// Gives a damaged file a second name, which an earlier one loses. Takes no room on a full disk. Returns whether a new file may
    /// replace the one that was read.
    fn set_aside(&mut self) -> bool {
        let Some(damage) = &self.damage else { return true };
        let aside = self.path.with_file_name(format!("{FILE}.set-aside"));
        match remove_if_present(&aside).and_then(|()| fs::hard_link(&self.path, &aside)) {
            Ok(()) => {
                self.opening = Some(format!(
                    "the kill log was damaged {damage}; what came before is kept, the file is now {}",
                    aside.display()
                ));
            }
            // Somebody has removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                self.fail("set aside", &error);
                return false;
            }
        }
        self.totals.lost.inc();
        self.damage = None;
        true
    }

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
        let replaced = replace_atomically(&self.path, write);
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
        let there = fs::metadata(&self.path).ok()?;
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

    fn fail(&mut self, action: &str, error: &io::Error) {
        let fault = format!("cannot {action} {}: {error}", self.path.display());
        if self.fault.replace(fault).is_none() {
            tracing::error!(problem = self.problem(), "reports of OOM kills are not kept on disk");
        }
    }
}
