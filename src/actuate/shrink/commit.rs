//! Lowers one memory limit in a way that cannot kill, whatever the processes under it do meanwhile.
//!
//! v1 does that by itself: it lowers the limit and reclaims, or refuses (EBUSY) and leaves it. It is asked a few times only,
//! because each time costs page cache.
//!
//! v2 takes any limit, reclaims, and kills where that is not enough. So the processes stand still while what is in use is
//! compared and the limit is written. Beyond that the write asks the kernel not to wait, which makes Linux 6.16 and newer
//! neither reclaim nor kill for it; and what was written is compared once more and taken back if it does not fit.

use std::thread::sleep;
use std::time::Duration;

use super::freezer::{FreezeError, Freezer};
use crate::cgroup::{Cgroup, CgroupError, Reason};
use crate::failpoint::failpoint;
use crate::model::{Bytes, CgroupVersion, MemoryLimit, Setting};
use crate::plan::shrink::{RECLAIM_STEP, Reclaim, slack};

/// How often one limit is tried in one pass.
const TRIES: u32 = 5;
/// What is let pass between two tries, longer each time: whoever holds memory for a moment only has given it back.
const PAUSE: Duration = Duration::from_millis(7);

/// Why a limit was not lowered. It is what it was.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// The files, or the kernel refuses.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The cgroup cannot be made to stand still.
    #[error("not shrinkable now: {0}")]
    Freeze(FreezeError),
    /// At none of several moments there was room enough.
    #[error(
        "not shrinkable now: {usage} bytes were in use at {tries} moments one after the other, too close to the wanted limit of \
         {wanted} bytes: choose a higher one, or wait until less is in use"
    )]
    TooMuch {
        /// Bytes in use at last.
        usage: u64,
        /// Bytes wanted as the limit.
        wanted: u64,
        /// How often it was tried.
        tries: u32,
    },
}

impl LowerError {
    /// Whether the cgroup has ended.
    pub const fn is_gone(&self) -> bool {
        match self {
            Self::Cgroup(error) | Self::Freeze(FreezeError::Cgroup(error)) => error.is_gone(),
            Self::Freeze(_) | Self::TooMuch { .. } => false,
        }
    }
}

/// Lowers a memory limit; blocks for some tens of milliseconds, more where v1 has to write out what it reclaims. For how long
/// the cgroup stood still, each time it did, is added to `freezes` also when it fails.
///
/// Errors: [`LowerError`]; the limit is then what it was.
pub fn lower(
    cgroup: &Cgroup,
    wanted: Setting,
    freezer: &Freezer,
    freezes: &mut Vec<Duration>,
) -> Result<(), LowerError> {
    let Some(MemoryLimit::Bytes(bytes)) = wanted.memory() else {
        return Ok(cgroup.write(wanted).map(drop)?);
    };
    match cgroup.outer().version() {
        CgroupVersion::V1 => by_the_write(cgroup, wanted),
        CgroupVersion::V2 => while_frozen(cgroup, wanted, Bytes::new(bytes), freezer, freezes),
    }
}

fn by_the_write(cgroup: &Cgroup, wanted: Setting) -> Result<(), LowerError> {
    for tries in 1.. {
        match cgroup.write(wanted) {
            Err(CgroupError {
                reason: Reason::Busy { .. },
                ..
            }) if tries < TRIES => sleep(PAUSE * tries),
            written => return Ok(written.map(drop)?),
        }
    }
    Ok(())
}

fn while_frozen(
    cgroup: &Cgroup,
    wanted: Setting,
    bytes: Bytes,
    freezer: &Freezer,
    freezes: &mut Vec<Duration>,
) -> Result<(), LowerError> {
    let outer = cgroup.outer();
    let roof = bytes.saturating_sub(slack(bytes));
    let reclaim = outer.reclaim_way()?;
    let mut usage = outer.memory_usage()?;
    for tries in 1..=TRIES {
        if usage > roof && reclaim == Reclaim::OnRequest {
            outer.reclaim(usage.saturating_sub(roof).min(RECLAIM_STEP))?;
            usage = outer.memory_usage()?;
        }
        // Nobody is stopped only to find out what can be seen from here.
        if usage <= roof {
            match freezer.freeze(outer.memory_dir()?) {
                Ok(frozen) => {
                    usage = outer.memory_usage()?;
                    failpoint("shrink.frozen");
                    let written = (usage <= roof).then(|| cgroup.write(wanted));
                    failpoint("shrink.written");
                    freezes.push(frozen.thaw());
                    match written {
                        Some(Err(CgroupError {
                            reason: Reason::BelowUsage { .. },
                            ..
                        }))
                        | None => {}
                        Some(written) => return Ok(written.map(drop)?),
                    }
                }
                Err(FreezeError::TooSlow { stood }) if tries < TRIES => freezes.push(stood),
                Err(error) => return Err(LowerError::Freeze(error)),
            }
        }
        sleep(PAUSE * tries);
        usage = outer.memory_usage()?;
    }
    Err(LowerError::TooMuch {
        usage: usage.get(),
        wanted: bytes.get(),
        tries: TRIES,
    })
}
