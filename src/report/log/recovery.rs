//! Takes in the log that an earlier agent left in the state directory.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::frame;
use super::state::State;
use super::{FILE, HEADER, KillLog};
use crate::files::remove_if_present;

impl KillLog {
    /// Reads the log in the state directory, which it creates if need be, private to the agent. The agent has locked the
    /// directory: no other agent writes there. Waits for no write: the first [`KillLog::sync`] or commit writes a new log.
    ///
    /// Errors: also for a file of a newer version, which stays untouched.
    pub(super) fn recover(&mut self) -> Result<()> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        created.with_context(|| format!("cannot create {}", self.directory.display()))?;
        let path = self.directory.join(FILE);
        let bytes = read(&path).with_context(|| format!("cannot use {}", path.display()))?;
        let mut found = State::new(self.state.most_latest, usize::MAX);
        let damage = frame::read(&HEADER, &bytes.unwrap_or_default(), |payload| {
            found.replay_entry(payload)
        });
        self.forgotten += self.state.take_in(found, self.selected);
        for destination in self.selected {
            // The reports that were on the way when the agent ended are among the oldest.
            self.state.send_after(destination, 0, destination.window());
        }
        if let Some(damage) = damage {
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
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let [magic @ .., version] = HEADER;
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
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
    let mut aside = path.as_os_str().to_owned();
    aside.push(".set-aside");
    let aside = PathBuf::from(aside);
    let linked = remove_if_present(&aside).and_then(|()| fs::hard_link(path, &aside));
    linked.with_context(|| format!("cannot set aside {}", path.display()))?;
    Ok(aside)
}
