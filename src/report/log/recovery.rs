//! Takes in the log that an earlier agent left in the state directory.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, Result, bail};

use super::frame;
use super::state::State;
use super::{FILE, HEADER, KillLog};
use crate::files::remove_if_present;

impl KillLog {
    /// Reads the log in the state directory, which the agent has locked: no other agent writes there. Writes nothing: the first
    /// [`KillLog::sync`] or commit writes a new log. Returns how many reports have no selected destination any more.
    ///
    /// Errors: also for a file of a newer version, which stays untouched.
    pub(super) fn recover(&mut self) -> Result<usize> {
        let path = self.directory.join(FILE);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            bytes => bytes.with_context(|| format!("cannot use {}", path.display()))?,
        };
        let [magic @ .., version] = HEADER;
        if let Some([newer, ..]) = bytes.strip_prefix(&magic)
            && *newer > version
        {
            bail!(
                "cannot use {}: a newer vscaled wrote it (format {newer}, this one knows up to {version}); it is left alone",
                path.display()
            );
        }
        let mut found = State::default();
        let damage = frame::read(&HEADER, &bytes, |payload| found.replay_entry(payload));
        let forgotten = self.state.take_in(found, self.selected);
        if let Some(damage) = damage {
            let aside = set_aside(&path)?;
            self.totals.lost.inc();
            self.opening = Some(format!(
                "the kill log was damaged {damage}; what came before is kept, the file is now {}",
                aside.display()
            ));
        }
        (self.is_recovered, self.is_dirty) = (true, true);
        self.make_room();
        Ok(forgotten)
    }
}

/// Gives a damaged file a second name, which an earlier one loses. Takes no room on a full disk.
fn set_aside(path: &Path) -> Result<PathBuf> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".set-aside");
    let aside = PathBuf::from(aside);
    let linked = remove_if_present(&aside).and_then(|()| fs::hard_link(path, &aside));
    linked.with_context(|| format!("cannot set aside {}", path.display()))?;
    Ok(aside)
}
