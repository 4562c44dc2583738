//! Carries the files of the version before over into the log, once.
//!
//! vscaled 0.1 kept the reports that were not acknowledged in `spool/reports.journal`, and the latest kills with the checkpoint in
//! `oom.journal`. The agent removes both when the log has their content on disk. In place of `oom.journal` it leaves a file that
//! an agent of the version before does not understand: that agent says so, and leaves the log alone. It writes new files of its
//! own, which the next newer agent carries over again.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Result;

use super::file::aside;
use super::frame::{self, Header};
use super::state::{Slot, State};
use super::{IdHash, KillLog};
use crate::oom::OomReport;
use crate::report::content::Report;
use crate::report::destination::Destinations;

const SPOOL_HEADER: Header = *b"vscspl\x00\x01";
const SPOOL: &str = "spool/reports.journal";
const JOURNAL_HEADER: Header = *b"vscoom\x00\x01";
const JOURNAL: &str = "oom.journal";
/// In place of the journal, with a version that its reader refuses.
const JOURNAL_MOVED: &[u8] = b"vscoom\x00\x02kills are in kills.log";
/// Files that no agent needs any more.
const LEFTOVERS: [&str; 5] = [
    "spool/reports.lock",
    "spool/reports.journal.new",
    "oom.lock",
    "kills.lock",
    "oom.journal.new",
];

/// The files that the version before left, and what they hold.
#[derive(Debug, Default)]
pub(super) struct EarlierFiles {
    /// The files, and the damage of each.
    files: Vec<(PathBuf, Option<String>)>,
    /// Reports, oldest first, and the destinations that have not acknowledged them.
    reports: Vec<(Report, Destinations)>,
    checkpoint: Option<Vec<u8>>,
    known_ids: Vec<u8>,
}

impl EarlierFiles {
    /// Reads the files in this state directory. The spool comes first: of a kill in both files it knows the acknowledgements.
    pub(super) fn read(directory: &Path) -> Self {
        let mut files = Self::default();
        files.read_file(directory.join(SPOOL), Self::read_spool);
        files.read_file(directory.join(JOURNAL), Self::read_journal);
        files.reports.sort_by_key(|(report, _)| report.last());
        files
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn read_file(&mut self, path: PathBuf, read: fn(&mut Self, &[u8]) -> Option<String>) {
        match fs::read(&path) {
            Ok(bytes) if bytes == JOURNAL_MOVED => {}
            Ok(bytes) => {
                let damage = read(self, &bytes);
                self.files.push((path, damage));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "the file of an earlier version cannot be read");
            }
        }
    }

    fn read_spool(&mut self, bytes: &[u8]) -> Option<String> {
        let mut spool = State::new(0, usize::MAX);
        let (_, damage) = spool.replay(&SPOOL_HEADER, bytes);
        let slots = spool.slots.into_values();
        self.reports.extend(slots.map(|slot| (slot.report, slot.pending)));
        self.known_ids = spool.seen.to_bytes();
        damage
    }

    /// Each frame holds lines of JSON: the checkpoint, which is empty if it stays as it was, then kills.
    fn read_journal(&mut self, bytes: &[u8]) -> Option<String> {
        let (_, damage) = frame::read(&JOURNAL_HEADER, bytes, |payload| {
            let mut lines = payload.split(|byte| *byte == b'\n');
            let checkpoint = lines.next().filter(|checkpoint| !checkpoint.is_empty());
            let kills: Vec<OomReport> = lines.map(serde_json::from_slice).collect::<Result<_, _>>()?;
            let kills = kills.into_iter().map(|kill| (kill.into(), Destinations::NONE));
            self.reports.extend(kills);
            self.checkpoint = checkpoint.map(<[u8]>::to_vec).or(self.checkpoint.take());
            Ok(())
        });
        damage
    }

    /// Removes the files, after the log has their content on disk, sets damaged ones aside, and leaves a file that an agent of
    /// the version before does not understand.
    pub(super) fn retire(&self, directory: &Path) {
        for (path, damage) in &self.files {
            let retired = match damage {
                Some(_) => fs::rename(path, aside(path)),
                None => fs::remove_file(path),
            };
            warn_of(path, retired);
        }
        for leftover in LEFTOVERS.map(|name| directory.join(name)) {
            warn_of(&leftover, fs::remove_file(&leftover));
        }
        let spool = directory.join("spool");
        warn_of(&spool, fs::remove_dir(&spool));
        let journal = directory.join(JOURNAL);
        if !journal.exists() {
            warn_of(&journal, fs::write(&journal, JOURNAL_MOVED));
        }
    }
}

impl KillLog {
    /// Takes in the content of earlier files. The log knows the ids of what an interrupted attempt has taken in.
    pub(super) fn carry_over(&mut self, earlier: &EarlierFiles) {
        for (report, pending) in &earlier.reports {
            if self.state.seen.insert(IdHash::of(&report.id())) {
                let number = self.state.next_number();
                self.state.insert(number, Slot::measured(report.clone(), *pending));
            }
        }
        self.state.seen.insert_bytes(&earlier.known_ids);
        if let Some(checkpoint) = &earlier.checkpoint {
            self.state.checkpoint.clone_from(checkpoint);
        }
        for (path, damage) in &earlier.files {
            if let Some(damage) = damage {
                self.totals.lost += 1;
                self.opening = Some(format!(
                    "{} of an earlier version was damaged {damage}; what came before is kept, the file is now {}",
                    path.display(),
                    aside(path).display()
                ));
            }
        }
    }
}

fn warn_of(path: &Path, result: io::Result<()>) {
    use io::ErrorKind::{DirectoryNotEmpty, NotFound};
    if let Err(error) = result
        && !matches!(error.kind(), NotFound | DirectoryNotEmpty)
    {
        tracing::warn!(path = %path.display(), %error, "a file of an earlier version is in the way");
    }
}
