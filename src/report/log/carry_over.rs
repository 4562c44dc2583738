//! The files of the version before → the log, once.
//!
//! vscaled 0.1 kept what was not acknowledged in `spool/reports.journal`, and the latest kills with the checkpoint in
//! `oom.journal`. Both are removed when the log has their content on disk. In place of `oom.journal` lies a file that an
//! agent of the version before does not understand: it says so, and leaves the log alone. Such an agent writes new files of
//! its own; they are carried over again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::entry::from_json;
use super::frame::{self, Header, Tail};
use super::index::{Index, Place, Slot};
use super::replay::{Replayed, replay};
use super::{IdHash, KillLog, SeenIds};
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
const LEFTOVERS: [&str; 4] = [
    "spool/reports.lock",
    "spool/reports.journal.new",
    "oom.lock",
    "oom.journal.new",
];

/// The content of the files.
#[derive(Debug)]
pub(super) struct Before {
    /// Reports, and the destinations that have not acknowledged them.
    reports: Vec<(Report, Destinations)>,
    checkpoint: Option<Vec<u8>>,
    known_ids: Vec<u8>,
    files: Vec<PathBuf>,
    /// The files that were damaged, with the reason.
    damaged: Vec<(PathBuf, String)>,
}

/// Reads the files in this state directory; `None` if there are none.
pub(super) fn read(directory: &Path) -> Option<Before> {
    let mut before = Before {
        reports: Vec::new(),
        checkpoint: None,
        known_ids: Vec::new(),
        files: Vec::new(),
        damaged: Vec::new(),
    };
    if let Some(bytes) = before.open(directory.join(SPOOL)) {
        let spool = replay(&SPOOL_HEADER, &bytes, Index::new(0), SeenIds::new(usize::MAX));
        before.add_spool(&spool, &bytes);
        before.note_damage(directory.join(SPOOL), spool.damage);
    }
    if let Some(bytes) = before
        .open(directory.join(JOURNAL))
        .filter(|bytes| *bytes != JOURNAL_MOVED)
    {
        let damage = before.add_journal(&bytes).err();
        before.note_damage(directory.join(JOURNAL), damage);
    } else {
        before.files.retain(|file| !file.ends_with(JOURNAL));
    }
    (!before.files.is_empty()).then_some(before)
}

impl Before {
    fn open(&mut self, path: PathBuf) -> Option<Vec<u8>> {
        match fs::read(&path) {
            Ok(bytes) => {
                self.files.push(path);
                Some(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "the file of an earlier version cannot be read");
                None
            }
        }
    }

    fn note_damage(&mut self, path: PathBuf, damage: Option<String>) {
        self.damaged.extend(damage.map(|damage| (path, damage)));
    }

    fn add_spool(&mut self, spool: &Replayed, bytes: &[u8]) {
        for number in spool.index.numbers() {
            let report = spool.index.get(number).and_then(|slot| {
                let Place::File(at) = slot.place else { return None };
                let (at, length) = (usize::try_from(at).ok()?, usize::try_from(slot.length).ok()?);
                Some((from_json(bytes.get(at..at + length)?).ok()?, slot.pending))
            });
            self.reports.extend(report);
        }
        self.known_ids = spool.seen.to_bytes();
    }

    /// Each frame holds lines of JSON: the checkpoint, which is empty if it stays as it was, then kills.
    fn add_journal(&mut self, bytes: &[u8]) -> Result<(), String> {
        let scanned = frame::scan(&JOURNAL_HEADER, bytes);
        for payload in scanned.payloads {
            let at = payload.start;
            let mut lines = bytes[payload].split(|byte| *byte == b'\n');
            let checkpoint = lines.next().unwrap_or_default();
            let kills: Vec<OomReport> = lines
                .map(serde_json::from_slice)
                .collect::<Result<_, _>>()
                .map_err(|error| format!("at byte {at}: {error}"))?;
            for kill in kills {
                if !self.reports.iter().any(|(known, _)| known.id() == kill.id) {
                    self.reports.push((kill.into(), Destinations::NONE));
                }
            }
            if !checkpoint.is_empty() {
                self.checkpoint = Some(checkpoint.to_owned());
            }
        }
        match scanned.tail {
            Tail::Damaged => Err(format!("at byte {}: not what was written", scanned.end)),
            Tail::Clean | Tail::Torn => Ok(()),
        }
    }

    /// Removes the files, whose content the log has on disk; those that were damaged are set aside.
    pub(super) fn retire(self, directory: &Path) {
        let damaged = |file: &PathBuf| self.damaged.iter().any(|(path, _)| path == file);
        for file in &self.files {
            let retired = if damaged(file) {
                fs::rename(file, set_aside(file))
            } else {
                fs::remove_file(file)
            };
            warn_of(file, retired);
        }
        for leftover in LEFTOVERS.map(|name| directory.join(name)) {
            warn_of(&leftover, fs::remove_file(&leftover));
        }
        let spool = directory.join("spool");
        if fs::read_dir(&spool).is_ok_and(|mut files| files.next().is_none()) {
            warn_of(&spool, fs::remove_dir(&spool));
        }
    }
}

/// Puts a file that an agent of the version before does not understand in the place of its journal.
pub(super) fn warn_version_before(directory: &Path) {
    let journal = directory.join(JOURNAL);
    if !journal.exists() {
        warn_of(&journal, fs::write(&journal, JOURNAL_MOVED));
    }
}

impl KillLog {
    /// Takes in what the version before left. What an interrupted attempt has taken in already is known by its id. Returns
    /// how many reports were given up.
    pub(super) fn carry_over(&mut self, before: &Before) -> usize {
        let mut reports: Vec<_> = before.reports.iter().collect();
        reports.sort_by_key(|(report, _)| report.last());
        let mut forgotten = 0;
        for (report, pending) in reports {
            if !self.seen.insert(IdHash::of(&report.id())) {
                continue;
            }
            let still = pending.both(self.selected);
            forgotten += usize::from(still.is_empty() && !pending.is_empty());
            let Ok(json) = super::entry::to_json(report) else {
                self.totals.lost += 1;
                continue;
            };
            let slot = Slot::new(still, &json, Place::Memory(Arc::from(json.as_slice())));
            let number = self.index.next_number();
            self.index.insert(number, slot, matches!(report, Report::Kill(_)));
        }
        self.seen.insert_bytes(&before.known_ids);
        if let Some(checkpoint) = &before.checkpoint {
            self.checkpoint.clone_from(checkpoint);
        }
        for (path, damage) in &before.damaged {
            self.troubles.opening = Some(format!(
                "{} of an earlier version was damaged {damage}; what came before is kept, the file is now {}",
                path.display(),
                set_aside(path).display()
            ));
        }
        forgotten
    }
}

fn set_aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".set-aside");
    name.into()
}

fn warn_of(path: &Path, result: io::Result<()>) {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a file of an earlier version is in the way");
        }
        Ok(()) | Err(_) => {}
    }
}
