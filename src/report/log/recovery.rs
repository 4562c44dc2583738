//! Takes in the log that an earlier agent left in the state directory.

use std::{fs, io};

use anyhow::{Context as _, Result, bail};

use super::frame;
use super::state::State;
use super::{FILE, HEADER, KillLog};
use crate::files::remove_if_present;

impl KillLog {
    /// Reads the log in the state directory, which the agent has locked: no other agent writes there. The first [`KillLog::sync`]
    /// or commit writes a new log.
    ///
    /// Errors: also for a file of a newer version, which stays untouched.
    pub(super) fn recover(&mut self) -> Result<()> {
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
        self.damage = frame::read(&HEADER, &bytes, |payload| found.replay_entry(payload));
        let forgotten = self.state.take_in(found, self.selected);
        if forgotten > 0 {
            tracing::warn!(
                reports = forgotten,
                "reports of OOM kills are dropped: their receiver is no longer configured"
            );
        }
        (self.is_recovered, self.is_dirty) = (true, true);
        self.set_aside();
        self.make_room();
        Ok(())
    }

    /// Gives a damaged file a second name, which an earlier one loses. Takes no room on a full disk. Returns whether a new file may
    /// replace the one that was read.
    pub(super) fn set_aside(&mut self) -> bool {
        let Some(damage) = &self.damage else { return true };
        let path = self.directory.join(FILE);
        let aside = self.directory.join(format!("{FILE}.set-aside"));
        match remove_if_present(&aside).and_then(|()| fs::hard_link(path, &aside)) {
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
}
