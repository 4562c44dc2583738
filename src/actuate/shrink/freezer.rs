//! Freezes a cgroup for the moment of one write, and always thaws it.
//!
//! - The write succeeds, is refused or takes too long: [`Frozen`] thaws when it is dropped.
//! - A thread panics: unwinding drops [`Frozen`]; where panics end the process instead, the panic hook runs [`thaw_all`].
//! - SIGTERM: the agent ends after the passes that run.
//! - SIGKILL: the marker lets the next start of the agent thaw the cgroup ([`Freezer::thaw_left_behind`]). Until then the
//!   cgroup stays frozen.
//!
//! The agent leaves a cgroup alone that another process has frozen, or that the agent itself runs in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::marker::Marker;
use crate::cgroup::{CgroupError, Dir};
use crate::failpoint::failpoint;

/// The agent thaws a cgroup that is not frozen within this time, and tries again later.
pub const FREEZE_BOUND: Duration = Duration::from_millis(100);
/// The time between two reads of the freezer's state. The kernel notifies no more often than every 10 ms.
const POLL: Duration = Duration::from_micros(200);
/// How often the agent tries to thaw. No cause of a failure is known.
const THAW_TRIES: u32 = 5;

/// The cgroups that this process has frozen.
static FROZEN: Mutex<Vec<Arc<Dir>>> = Mutex::new(Vec::new());

/// Freezes cgroups, and leaves markers for the next start of the agent.
#[derive(Debug)]
pub struct Freezer {
    /// The directory of the markers.
    pub(super) directory: PathBuf,
}

/// A cgroup that is frozen for as long as this value lives.
#[derive(Debug)]
pub(super) struct Frozen {
    cgroup: Arc<Dir>,
    marker: Option<Marker>,
    since: Instant,
}

/// Why a cgroup was not frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The kernel has no freezer for this cgroup.
    #[error("this kernel has no freezer for cgroups (from Linux 5.2)")]
    NoFreezer,
    /// The cgroup or an ancestor was frozen already.
    #[error("somebody else has frozen the cgroup; it is left alone until it runs again")]
    FrozenByOther,
    /// The agent runs in the cgroup, and would freeze itself.
    #[error("the agent itself runs in the cgroup and would freeze with it")]
    HoldsAgent,
    /// Freezing took longer than [`FREEZE_BOUND`].
    #[error("the cgroup did not stand still within {} ms and was let go", FREEZE_BOUND.as_millis())]
    TooSlow {
        /// How long the kernel held processes of the cgroup.
        stood: Duration,
    },
    /// Without a marker, an agent that is killed would leave the cgroup frozen for good.
    #[error("cannot leave a marker for the next start: {0}")]
    NoMarker(std::io::Error),
}

impl Freezer {
    /// Freezes a cgroup and waits until the kernel has stopped every process in it, for [`FREEZE_BOUND`] at most.
    pub(super) fn freeze(&self, cgroup: Arc<Dir>) -> Result<Frozen, FreezeError> {
        let state = cgroup.freezer_state()?.ok_or(FreezeError::NoFreezer)?;
        if state.requested || state.frozen {
            return Err(FreezeError::FrozenByOther);
        }
        if cgroup.contains(std::process::id())? {
            return Err(FreezeError::HoldsAgent);
        }
        let marker = self
            .place_marker(&cgroup, BTreeMap::new())
            .map_err(FreezeError::NoMarker)?;
        failpoint("freeze.marked");
        registry().push(Arc::clone(&cgroup));
        let frozen = Frozen {
            cgroup,
            marker: Some(marker),
            since: Instant::now(),
        };
        frozen.cgroup.set_frozen(true)?;
        failpoint("freeze.asked");
        loop {
            // Read the clock before the state: an agent that is not scheduled in between must not call a frozen cgroup slow.
            let elapsed = frozen.since.elapsed();
            if frozen.cgroup.freezer_state()?.is_some_and(|state| state.frozen) {
                return Ok(frozen);
            }
            if elapsed > FREEZE_BOUND {
                return Err(FreezeError::TooSlow { stood: frozen.thaw() });
            }
            sleep(POLL);
        }
    }
}

impl Frozen {
    /// Thaws the cgroup; returns the time since the request to freeze it.
    pub(super) fn thaw(self) -> Duration {
        let since = self.since;
        drop(self);
        since.elapsed()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let mut thawed = self.cgroup.set_frozen(false);
        for _ in 1..THAW_TRIES {
            if thawed.is_ok() {
                break;
            }
            sleep(Duration::from_millis(1));
            thawed = self.cgroup.set_frozen(false);
        }
        registry().retain(|frozen| !Arc::ptr_eq(frozen, &self.cgroup));
        match thawed {
            Err(error) if !error.is_gone() => {
                // The marker stays.
                tracing::error!(%error, "a cgroup could not be thawed; the next start of the agent tries again");
            }
            Ok(()) | Err(_) => {
                failpoint("freeze.thawed");
                if let Some(marker) = self.marker.take() {
                    marker.remove();
                }
            }
        }
    }
}

fn registry() -> std::sync::MutexGuard<'static, Vec<Arc<Dir>>> {
    FROZEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Thaws every cgroup that this process has frozen. For the panic hook: a process that a panic ends drops no value.
pub fn thaw_all() {
    // The panicking thread may hold the lock; then the markers stay for the next start.
    let Ok(frozen) = FROZEN.try_lock() else { return };
    for cgroup in &*frozen {
        if let Err(error) = cgroup.set_frozen(false) {
            tracing::error!(%error, "a cgroup could not be thawed; the next start of the agent tries again");
        }
    }
}

/// Makes every panic thaw the frozen cgroups first.
pub fn thaw_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        thaw_all();
        report(panic);
    }));
}

#[cfg(test)]
mod tests;
