//! Freezes a cgroup for the moment of one write, and thaws it whatever happens.
//!
//! - The write is done, refused or takes too long: the guard [`Frozen`] thaws when it is dropped.
//! - A thread panics: unwinding drops the guard; where panics end the process instead, [`thaw_all`] runs in their hook.
//! - SIGTERM: passes in hand come to their end first.
//! - The process is killed: its marker lets the next start thaw ([`Markers::thaw_left_behind`]). Until then the cgroup
//!   stands still.
//!
//! A cgroup that somebody else has frozen is theirs, and left alone. So is one that the agent itself lives in.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::marker::{Marker, Markers};
use crate::cgroup::{CgroupError, Dir};
use crate::failpoint::failpoint;

/// A cgroup that does not stand still by then is let go, and tried again later.
pub const FREEZE_BOUND: Duration = Duration::from_millis(100);
/// How often it is looked whether it does. The kernel tells of it no more often than every 10 ms.
const LOOK: Duration = Duration::from_micros(200);
/// How often thawing is tried; nothing is known to make it fail.
const THAW_TRIES: u32 = 5;

/// Everything frozen by this process now.
static FROZEN: Mutex<Vec<Arc<Dir>>> = Mutex::new(Vec::new());

/// Freezes cgroups, and remembers it for the next start.
#[derive(Debug)]
pub struct Freezer {
    markers: Markers,
}

/// A cgroup that stands still for as long as this value lives.
#[derive(Debug)]
pub(super) struct Frozen {
    cgroup: Arc<Dir>,
    marker: Option<Marker>,
    since: Instant,
}

/// Why a cgroup was not frozen. It is not.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// There is nothing to freeze it with.
    #[error("this kernel has no freezer for cgroups (from Linux 5.2)")]
    NoFreezer,
    /// It was frozen already, itself or an ancestor of it.
    #[error("somebody else has frozen the cgroup; it is left alone until it runs again")]
    FrozenByOther,
    /// It would be the last thing this process did.
    #[error("the agent itself runs in the cgroup and would freeze with it")]
    HoldsAgent,
    /// It took longer than [`FREEZE_BOUND`].
    #[error("the cgroup did not stand still within {} ms and was let go", FREEZE_BOUND.as_millis())]
    TooSlow {
        /// How long its processes stood still, the first of them at least.
        stood: Duration,
    },
    /// A killed agent would leave it frozen for good.
    #[error("cannot leave a marker for the next start: {0}")]
    NoMarker(std::io::Error),
}

impl Freezer {
    /// With markers below the agent's state directory.
    pub const fn new(markers: Markers) -> Self {
        Self { markers }
    }

    /// What this agent leaves for the next one, should it be killed.
    pub(in crate::actuate) const fn markers(&self) -> &Markers {
        &self.markers
    }

    /// Freezes a cgroup and waits until every process in it stands still, for [`FREEZE_BOUND`] at most.
    pub(super) fn freeze(&self, cgroup: Dir) -> Result<Frozen, FreezeError> {
        let state = cgroup.freezer_state()?.ok_or(FreezeError::NoFreezer)?;
        if state.requested || state.frozen {
            return Err(FreezeError::FrozenByOther);
        }
        if cgroup.contains(std::process::id())? {
            return Err(FreezeError::HoldsAgent);
        }
        let marker = self.markers.place(&cgroup).map_err(FreezeError::NoMarker)?;
        failpoint("freeze.marked");
        let cgroup = Arc::new(cgroup);
        registry().push(Arc::clone(&cgroup));
        let frozen = Frozen {
            cgroup,
            marker: Some(marker),
            since: Instant::now(),
        };
        frozen.cgroup.set_frozen(true)?;
        failpoint("freeze.asked");
        loop {
            // The clock before the state: an agent that is not scheduled in between does not call a cgroup slow that is frozen.
            let elapsed = frozen.since.elapsed();
            if frozen.cgroup.freezer_state()?.is_some_and(|state| state.frozen) {
                return Ok(frozen);
            }
            if elapsed > FREEZE_BOUND {
                return Err(FreezeError::TooSlow { stood: frozen.thaw() });
            }
            sleep(LOOK);
        }
    }
}

impl Frozen {
    /// Lets the cgroup go on; returns how long it was asked to stand still.
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

/// Lets everything go on that this process has frozen. For the hook of panics: a process that ends by one drops nothing.
pub fn thaw_all() {
    // Whoever panics may hold the lock; then the marker is left.
    let Ok(frozen) = FROZEN.try_lock() else { return };
    for cgroup in &*frozen {
        if let Err(error) = cgroup.set_frozen(false) {
            tracing::error!(%error, "a cgroup could not be thawed; the next start of the agent tries again");
        }
    }
}

/// Has every panic thaw first what is frozen.
pub fn thaw_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        thaw_all();
        report(panic);
    }));
}

#[cfg(test)]
mod tests;
