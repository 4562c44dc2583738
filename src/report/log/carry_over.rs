//! The files of the version before → the log, once.
//!
//! vscaled 0.1 kept what was not acknowledged in `spool/reports.journal`, and the latest kills with the checkpoint in
//! `oom.journal`. Both are removed when the log has their content on disk. In place of `oom.journal` lies a file that an
//! agent of the version before does not understand: it says so, and leaves the log alone. Such an agent writes new files of
//! its own; they are carried over again.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::frame::{self, Header, Tail};
use super::state::{Slot, State};
use super::{IdHash, KillLog, length_of};
use crate::oom::OomReport;
use crate::report::content::Report;
use crate::report::destination::Destinations;

const SPOOL_HEADER: Header = *b"vscspl\x00\x01";
const SPOOL: &str = "spool/reports.journal";
const JOURNAL_HEADER: Header = *b"vscoom\x00\x01";
const JOURNAL: &str = "oom.journal";
/// In place of the journal, with a version that its reader refuses.
const JOURNAL_MOVED: &[u8] = b"vscoom\x00\x02kills are in kills.log";
/// What else is of no use any more.
const LEFTOVERS: [&str; 5] = [
    "spool/reports.lock",
    "spool/reports.journal.new",
    "oom.lock",
    "kills.lock",
    "oom.journal.new",
];

/// A file that the version before left.
#[derive(Debug, Default)]
pub(super) struct Left {
    path: PathBuf,
    /// Reports, and the destinations that have not acknowledged them.
    reports: Vec<(Report, Destinations)>,
    checkpoint: Option<Vec<u8>>,
    known_ids: Vec<u8>,
    /// Why it was not read to its end.
    damage: Option<String>,
}

/// Reads the files in this state directory, the spool first.
pub(super) fn read(directory: &Path) -> Vec<Left> {
    let files = [(SPOOL, read_spool as fn(&[u8]) -> Left), (JOURNAL, read_journal)];
    let read = files.into_iter().filter_map(|(name, read)| {
        let path = directory.join(name);
        let bytes = fs::read(&path).inspect_err(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::error!(path = %path.display(), %error, "the file of an earlier version cannot be read");
            }
        });
        let bytes = bytes.ok().filter(|bytes| *bytes != JOURNAL_MOVED)?;
        Some(Left { path, ..read(&bytes) })
    });
    read.collect()
}

fn read_spool(bytes: &[u8]) -> Left {
    let spool = State::new(0, usize::MAX).replay(&SPOOL_HEADER, bytes);
    Left {
        known_ids: spool.state.seen.to_bytes(),
        reports: spool
            .state
            .slots
            .into_values()
            .map(|slot| (slot.report, slot.pending))
            .collect(),
        damage: spool.damage,
        ..Left::default()
    }
}

/// Each frame holds lines of JSON: the checkpoint, which is empty if it stays as it was, then kills.
fn read_journal(bytes: &[u8]) -> Left {
    let mut left = Left::default();
    let scanned = frame::scan(&JOURNAL_HEADER, bytes);
    if scanned.tail == Tail::Damaged {
        left.damage = Some(format!("at byte {}: not what was written", scanned.end));
    }
    for payload in scanned.payloads {
        let at = payload.start;
        let mut lines = bytes[payload].split(|byte| *byte == b'\n');
        let checkpoint = lines.next().filter(|checkpoint| !checkpoint.is_empty());
        let kills: Vec<OomReport> = match lines.map(serde_json::from_slice).collect() {
            Ok(kills) => kills,
            Err(error) => {
                left.damage = Some(format!("at byte {at}: {error}"));
                break;
            }
        };
        let kills = kills.into_iter().map(|kill| (Report::from(kill), Destinations::NONE));
        left.reports.extend(kills);
        left.checkpoint = checkpoint.map(<[u8]>::to_vec).or(left.checkpoint);
    }
    left
}

impl KillLog {
    /// Takes in what the version before left. What an interrupted attempt has taken in already is known by its id; of a kill
    /// in both files the spool says who has it.
    pub(super) fn carry_over(&mut self, files: &[Left]) {
        let mut reports: Vec<_> = files.iter().flat_map(|left| &left.reports).collect();
        reports.sort_by_key(|(report, _)| report.last());
        for (report, pending) in reports {
            if self.state.seen.insert(IdHash::of(&report.id())) {
                let number = self.state.next_number();
                let length = serde_json::to_vec(report).map_or(0, |json| length_of(&json));
                self.state.insert(number, Slot::new(report.clone(), *pending, length));
            }
        }
        for left in files {
            self.state.seen.insert_bytes(&left.known_ids);
            if let Some(checkpoint) = &left.checkpoint {
                self.state.checkpoint.clone_from(checkpoint);
            }
            if let Some(damage) = &left.damage {
                self.totals.lost += 1;
                self.troubles.opening = Some(format!(
                    "{} of an earlier version was damaged {damage}; what came before is kept, the file is now {}",
                    left.path.display(),
                    set_aside(&left.path).display()
                ));
            }
        }
    }
}

/// Removes the files, whose content the log has on disk, sets those aside that were damaged, and leaves one that an agent of
/// the version before does not understand.
pub(super) fn retire(files: &[Left], directory: &Path) {
    for Left { path, damage, .. } in files {
        let retired = match damage {
            Some(_) => fs::rename(path, set_aside(path)),
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

fn set_aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".set-aside");
    name.into()
}

fn warn_of(path: &Path, result: io::Result<()>) {
    use io::ErrorKind::{DirectoryNotEmpty, NotFound};
    if let Err(error) = result
        && !matches!(error.kind(), NotFound | DirectoryNotEmpty)
    {
        tracing::warn!(path = %path.display(), %error, "a file of an earlier version is in the way");
    }
}
