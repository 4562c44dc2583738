//! Takes in the files that earlier agents left in the state directory: the log, and the files of the version before.
//!
//! vscaled 0.1 kept the reports that were not acknowledged in `spool/reports.journal`, and the latest kills with the
//! checkpoint in `oom.journal`. The agent removes both when the log has their content on disk. In place of
//! `oom.journal` it leaves a file that an agent of the version before does not understand: that agent reports that, and
//! leaves the log alone. It writes new files of its own, which the next newer agent takes in again.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::frame::{self, Header};
use super::state::State;
use super::{FILE, HEADER, KillLog};
use crate::files::{remove_if_present, replace_atomically};

type Replay = fn(&mut State, &[u8]) -> Result<()>;

/// Each file, the version of it that this agent reads, and how the state takes in a payload. Of a kill in several files
/// the first has the acknowledgements; the last has the checkpoint.
const FILES: [(&str, Header, Replay); 3] = [
    (FILE, HEADER, State::replay_entry),
    (SPOOL, *b"vscspl\x00\x01", State::replay_entry),
    (JOURNAL, *b"vscoom\x00\x01", State::replay_kills),
];
const SPOOL: &str = "spool/reports.journal";
const JOURNAL: &str = "oom.journal";
/// In place of the journal, with a version that its reader refuses.
const JOURNAL_MOVED: &[u8] = b"vscoom\x00\x02kills are in kills.log";
/// Files that no agent needs any more.
const LEFTOVERS: [&str; 6] = [
    SPOOL,
    "spool/reports.lock",
    "spool/reports.journal.new",
    "oom.lock",
    "kills.lock",
    "oom.journal.new",
];

impl KillLog {
    /// Reads all files in the state directory, which it creates if need be, private to the agent. The agent has locked the
    /// directory: no other agent writes there. Waits for no write: the first [`KillLog::sync`] or commit writes a new log.
    ///
    /// Errors: also for a file of a newer version, which stays untouched.
    pub(super) fn recover(&mut self) -> Result<()> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        created.with_context(|| format!("cannot create {}", self.directory.display()))?;
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        for (name, header, replay) in FILES {
            let path = self.directory.join(name);
            let bytes = match read(&path, header) {
                Err(error) if name != FILE && error.is::<io::Error>() => {
                    let renamed = fs::rename(&path, aside_of(&path));
                    tracing::error!(
                        path = %path.display(), %error, ?renamed,
                        "a file of an earlier version cannot be read, and is set aside"
                    );
                    None
                }
                bytes => bytes.with_context(|| format!("cannot use {}", path.display()))?,
            };
            let mut state = State::new(self.state.most_latest, usize::MAX);
            let damage = frame::read(&header, &bytes.unwrap_or_default(), |payload| {
                replay(&mut state, payload)
            });
            damaged.extend(damage.map(|damage| (path, damage)));
            found.push(state);
        }
        self.forgotten += self.state.take_in(found, self.selected);
        for destination in self.selected {
            // The reports that were on the way when the agent ended are among the oldest.
            self.state.send_after(destination, 0, destination.window());
        }
        for (path, damage) in damaged {
            let aside = set_aside(&path)?;
            self.totals.lost += 1;
            self.opening = Some(format!(
                "the log of OOM kills was damaged {damage}; what came before is kept, the file is now {}",
                aside.display()
            ));
        }
        self.make_room();
        (self.is_recovered, self.is_dirty) = (true, true);
        Ok(())
    }
}

/// The content of a file, if there is one.
fn read(path: &Path, [magic @ .., version]: Header) -> Result<Option<Vec<u8>>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(bytes) if bytes == JOURNAL_MOVED => return Ok(None),
        bytes => bytes?,
    };
    if let Some([newer, ..]) = bytes.strip_prefix(&magic)
        && *newer > version
    {
        bail!("a newer vscaled wrote it (format {newer}, this one knows up to {version}); it is left alone");
    }
    Ok(Some(bytes))
}

/// Gives a damaged file a second name, which an earlier one loses. Takes no room on a full disk.
fn set_aside(path: &Path) -> Result<PathBuf> {
    let aside = aside_of(path);
    let linked = remove_if_present(&aside).and_then(|()| fs::hard_link(path, &aside));
    linked.with_context(|| format!("cannot set aside {}", path.display()))?;
    Ok(aside)
}

fn aside_of(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".set-aside");
    aside.into()
}

/// Removes the files of the version before, after the log has their content on disk.
pub(super) fn retire_earlier_files(directory: &Path) {
    let warn = |name, retired: io::Result<()>| {
        if let Err(error) = retired {
            tracing::warn!(name, %error, "a file of an earlier version is in the way");
        }
    };
    let journal = directory.join(JOURNAL);
    if !fs::read(&journal).is_ok_and(|bytes| bytes == JOURNAL_MOVED) {
        // The next start would prefer the journal's checkpoint: it goes even if there is no room for what replaces it.
        warn(JOURNAL, remove_if_present(&journal));
        let marked = replace_atomically(&journal, |new| new.write_all(JOURNAL_MOVED));
        warn(JOURNAL, marked.map(drop));
    }
    for name in LEFTOVERS {
        warn(name, remove_if_present(&directory.join(name)));
    }
    // An error: it holds a file that was set aside, or it is not there.
    fs::remove_dir(directory.join("spool")).unwrap_or(());
}
