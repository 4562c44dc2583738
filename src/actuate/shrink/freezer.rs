//! Freezes a cgroup for the moment of one write, and always thaws it.
//!
//! - The write succeeds, is refused or takes too long: [`Frozen`] thaws when it is dropped.
//! - A thread panics: the panic hook thaws every frozen cgroup that has a marker ([`Freezer::thaw_on_panic`]).
//! - SIGTERM: the agent ends after the passes that run.
//! - SIGKILL: the marker lets the next start of the agent thaw the cgroup ([`Freezer::thaw_left_behind`]). Until then the
//!   cgroup stays frozen.
//!
//! The agent leaves a cgroup alone that another process has frozen, or that the agent itself runs in.
//!
//! Each marker is a file. It names a cgroup that the agent has frozen, or whose limits a runtime may change. The agent writes it
//! before it freezes the cgroup or calls the runtime, and removes it after it has restored the cgroup, or after a later call where
//! the runtime did not answer in time. The file outlives the process, not the machine: a reboot ends the cgroup as well, so the
//! agent does not sync it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::commit::StepError;
use crate::cgroup::{CgroupError, Dir, FreezeFile};
use crate::failpoint::failpoint;

/// The agent thaws a cgroup that is not frozen within this time, and tries again later.
pub const FREEZE_BOUND: Duration = Duration::from_millis(100);
/// How long a panic waits for the thaw of all frozen cgroups.
const PANIC_BOUND: Duration = Duration::from_secs(1);
/// How often the agent tries to thaw a cgroup.
const THAW_TRIES: usize = 5;
/// The time between two reads of the freezer's state. The kernel notifies no more often than every 10 ms.
const POLL: Duration = Duration::from_micros(200);
/// The directory of the markers.
const DIRECTORY: &str = "frozen";
/// The extension of a marker's name while it is written.
const NEW: &str = "new";
/// The end of the name of a marker with limits.
const LIMITS: &str = "-limits";

/// Freezes cgroups, and leaves markers for the next start of the agent.
#[derive(Debug, Clone)]
pub struct Freezer {
    directory: PathBuf,
}

/// A cgroup that is frozen for as long as this value lives.
#[derive(Debug)]
pub(super) struct Frozen<'d> {
    /// Open since before the freeze: the agent may lack a descriptor when it thaws the cgroup.
    file: FreezeFile<'d>,
    marker: Marker,
    since: Instant,
}

/// The marker of one cgroup.
#[derive(Debug)]
pub(in crate::actuate) struct Marker(PathBuf);

/// The content of a marker.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    /// The cgroup's directory in the file system.
    cgroup: PathBuf,
    /// The directory's inode number: a later cgroup at the same path has another one.
    number: u64,
    /// The values of the cgroup's limits before a call to the runtime. With these the cgroup was not frozen.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, String>,
}

impl Freezer {
    /// A freezer with its markers below a state directory. Makes the directory of the markers if it is missing.
    ///
    /// Errors: the directory cannot be made.
    pub fn below(state_directory: &Path) -> io::Result<Self> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// Freezes a cgroup and waits until the kernel has stopped every process in it, for [`FREEZE_BOUND`] at most. After that
    /// time the cgroup is thawed again, and the answer is how long the kernel held processes of it.
    ///
    /// Errors: the cgroup cannot be frozen, and is not.
    pub(super) fn freeze<'d>(&self, cgroup: &'d Dir) -> Result<Result<Frozen<'d>, Duration>, StepError> {
        let refused = |why: &str| Err(StepError::NotShrinkable(why.to_owned()));
        let Some(state) = cgroup.freezer_state().map_err(not_frozen)? else {
            return refused("this kernel has no freezer for cgroups (from Linux 5.2)");
        };
        if state.requested || state.frozen {
            return refused("another process has frozen the cgroup; it is left alone until it runs again");
        }
        if cgroup.contains(std::process::id()).map_err(not_frozen)? {
            return refused("the agent itself runs in the cgroup and would freeze with it");
        }
        let file = cgroup.open_freezer().map_err(not_frozen)?;
        // Without a marker, an agent that is killed would leave the cgroup frozen for good.
        let marker = match self.place_marker(cgroup, BTreeMap::new()) {
            Ok(marker) => marker,
            Err(error) => return refused(&format!("cannot leave a marker for the next start: {error}")),
        };
        failpoint("freeze.marked");
        let since = Instant::now();
        let frozen = Frozen { file, marker, since };
        frozen.file.set_frozen(true).map_err(not_frozen)?;
        failpoint("freeze.asked");
        loop {
            // Read the clock before the state: an agent that is not scheduled in between must not call a frozen cgroup slow.
            let elapsed = since.elapsed();
            let state = cgroup.freezer_state().map_err(not_frozen)?;
            if state.is_some_and(|state| state.frozen) {
                return Ok(Ok(frozen));
            }
            if elapsed > FREEZE_BOUND {
                return Ok(Err(frozen.thaw()));
            }
            sleep(POLL);
        }
    }

    /// Writes a marker for a cgroup that is about to be frozen, or, with `limits`, whose limits a runtime may change.
    pub(in crate::actuate) fn place_marker(
        &self,
        cgroup: &Dir,
        limits: BTreeMap<String, String>,
    ) -> io::Result<Marker> {
        let path = self.path(cgroup, if limits.is_empty() { "" } else { LIMITS });
        let content = Content {
            cgroup: cgroup.path().to_owned(),
            number: cgroup.number(),
            limits,
        };
        // A full disk must not take the limits of a marker that is there.
        let new = path.with_extension(NEW);
        let placed = fs::write(&new, serde_json::to_vec(&content)?).and_then(|()| fs::rename(&new, &path));
        // Where the removal fails, too, the next start removes it.
        placed.inspect_err(|_| drop(fs::remove_file(&new)))?;
        Ok(Marker(path))
    }

    /// The marker that an update of the runtime has left, because it may still change these limits.
    pub(in crate::actuate) fn limits_left(&self, cgroup: &Dir) -> Option<(Marker, BTreeMap<String, String>)> {
        let marker = Marker(self.path(cgroup, LIMITS));
        let content = marker.content().ok()?;
        Some((marker, content.limits))
    }

    fn path(&self, cgroup: &Dir, kind: &str) -> PathBuf {
        self.directory.join(format!("{:x}{kind}.json", cgroup.number()))
    }

    /// The markers of frozen cgroups, then those of limits: the kernel may reclaim memory for a limit, and no process waits for it.
    fn markers(&self) -> io::Result<Vec<Marker>> {
        let entries = fs::read_dir(&self.directory)?;
        let mut markers: Vec<_> = entries.flatten().map(|entry| Marker(entry.path())).collect();
        let has_limits = |name: &OsStr| name.as_encoded_bytes().ends_with(LIMITS.as_bytes());
        markers.sort_by_key(|marker| marker.0.file_stem().is_some_and(has_limits));
        Ok(markers)
    }

    /// Thaws every cgroup that an agent had frozen when it was killed, puts back the limits that a runtime changed meanwhile,
    /// and removes the markers. Keeps the marker of a cgroup where that fails. Returns the cgroups that were still frozen, and a sentence
    /// for each marker that cannot be read and each cgroup that cannot be restored.
    pub fn thaw_left_behind(&self) -> Vec<Result<PathBuf, String>> {
        let named = |path: &Path, problem: String| format!("{}: {problem}", path.display());
        let markers = match self.markers() {
            Ok(markers) => markers.into_iter(),
            Err(error) => return vec![Err(named(&self.directory, error.to_string()))],
        };
        let restored = markers.map(|marker| marker.restore().map_err(|problem| named(&marker.0, problem)));
        restored.filter_map(Result::transpose).collect()
    }

    /// Makes every panic thaw the frozen cgroups first: a process that a panic ends drops no value. The markers stay for the
    /// next start.
    pub fn thaw_on_panic(&self) {
        let (freezer, report) = (self.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            let (freezer, (done, thawed)) = (freezer.clone(), channel());
            // A disk that hangs keeps the markers, and must not keep the process.
            let thaw = move || {
                freezer.thaw_all();
                done.send(())
            };
            if Builder::new().spawn(thaw).is_ok() {
                thawed.recv_timeout(PANIC_BOUND).unwrap_or(());
            }
            report(panic);
        }));
    }

    fn thaw_all(&self) {
        let markers = self.markers().into_iter().flatten();
        let contents = markers.filter_map(|marker| marker.content().ok());
        for content in contents.filter(|content| content.limits.is_empty()) {
            if let Err(error) = content.restore() {
                tracing::error!(%error, "a cgroup could not be thawed; the next start of the agent tries again");
            }
        }
    }
}

/// An error of a cgroup that is to be frozen: its limit cannot be lowered now.
fn not_frozen(error: CgroupError) -> StepError {
    if error.is_gone() {
        StepError::Cgroup(error)
    } else {
        StepError::NotShrinkable(error.to_string())
    }
}

impl Frozen<'_> {
    /// Thaws the cgroup; returns the time since the request to freeze it.
    pub(super) fn thaw(self) -> Duration {
        let since = self.since;
        drop(self);
        since.elapsed()
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let mut thawed = self.file.set_frozen(false);
        for _ in 1..THAW_TRIES {
            if thawed.is_ok() {
                break;
            }
            sleep(Duration::from_millis(1));
            thawed = self.file.set_frozen(false);
        }
        match thawed {
            Err(error) if !error.is_gone() => {
                // The marker stays.
                tracing::error!(%error, "a cgroup could not be thawed; the next start of the agent tries again");
            }
            Ok(()) | Err(_) => {
                failpoint("freeze.thawed");
                self.marker.remove();
            }
        }
    }
}

impl Marker {
    /// Restores the cgroup of a marker that an earlier agent has left, and removes the marker. Returns the cgroup if it was frozen.
    fn restore(&self) -> Result<Option<PathBuf>, String> {
        let is_new = self.0.extension().is_some_and(|extension| extension == NEW);
        let thawed = match self.content() {
            // It was not complete, so the cgroup was not frozen.
            _ if is_new => None,
            Ok(content) => content.restore().map_err(|error| error.to_string())?,
            // The agent was killed while it wrote the marker, before it froze the cgroup.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
                self.remove();
                return Err(format!("not understood, and removed: {error}"));
            }
            Err(error) => return Err(error.to_string()),
        };
        self.remove();
        Ok(thawed)
    }

    fn content(&self) -> io::Result<Content> {
        Ok(serde_json::from_slice(&fs::read(&self.0)?)?)
    }

    /// Removes the marker of a cgroup that is restored. A marker that stays does no harm: at the next start its cgroup is not
    /// frozen, or is another one.
    pub(in crate::actuate) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(marker = %self.0.display(), %error, "the marker of a cgroup could not be removed");
        }
    }
}

impl Content {
    /// Thaws the cgroup or puts its limits back; returns the cgroup if it was frozen. Leaves a later cgroup of that path alone.
    fn restore(self) -> Result<Option<PathBuf>, CgroupError> {
        let was_frozen = CgroupError::unless_gone(self.restore_open())?;
        Ok(was_frozen.unwrap_or_default().then_some(self.cgroup))
    }

    fn restore_open(&self) -> Result<bool, CgroupError> {
        let cgroup = Dir::open(self.cgroup.clone())?;
        if cgroup.number() != self.number {
            return Ok(false);
        }
        if !self.limits.is_empty() {
            let limits = cgroup.still_custom(self.limits.clone())?;
            if cgroup.restore_limits(&limits)? {
                tracing::warn!(cgroup = %self.cgroup.display(), ?limits,
                    "put back limits that the runtime had changed when the agent was killed");
            }
            return Ok(false);
        }
        let was_frozen = cgroup.freezer_state()?.is_some_and(|state| state.requested);
        if was_frozen {
            cgroup.open_freezer()?.set_frozen(false)?;
        }
        Ok(was_frozen)
    }
}

#[cfg(test)]
mod marker_tests;
#[cfg(test)]
mod tests;
