//! Lowers one memory limit without the risk of a kill, even if the processes allocate meanwhile.
//!
//! v1's kernel lowers the limit and reclaims, or refuses (EBUSY) and keeps the limit. The agent tries a few times only, because
//! each try costs page cache.
//!
//! v2's kernel takes any limit, reclaims, and kills where that is not enough. So the agent freezes the processes while it
//! compares the memory in use and writes the limit. The write is also non-blocking, so that Linux 6.16 and newer neither
//! reclaim nor kill for it. After the write the agent compares once more, and takes the limit back if it does not fit.

use std::thread::sleep;
use std::time::Duration;

use super::freezer::{FREEZE_BOUND, Freezer};
use crate::cgroup::systemd::SystemdError;
use crate::cgroup::{Cgroup, CgroupError, Reason};
use crate::failpoint::failpoint;
use crate::model::{Bytes, CgroupVersion, MemoryLimit, Outcome, Setting, Target};
use crate::plan::shrink::{RECLAIM_STEP, Reclaim, slack};

/// How often a pass tries to lower one limit.
const TRIES: u32 = 5;
/// The pause after the first try; later ones are longer. A process that needs memory for a moment only frees it meanwhile.
const PAUSE: Duration = Duration::from_millis(7);

/// Why a step failed. A limit that was not lowered has its earlier value.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The kernel refuses, or a file cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The cgroup cannot be frozen, or uses too much memory: the reason, in a sentence.
    #[error("not shrinkable now: {0}")]
    NotShrinkable(String),
    /// Too much memory is in use to lower a limit: its cgroup and the reason, a sentence.
    #[error("{0}")]
    NoRoom(String),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error("{0} has no open cgroup")]
    NoCgroup(Target),
}

impl StepError {
    /// Whether the cgroup has ended.
    pub const fn is_gone(&self) -> bool {
        match self {
            Self::Cgroup(error) => error.is_gone(),
            Self::NoCgroup(_) => true,
            Self::NotShrinkable(_) | Self::NoRoom(_) | Self::Systemd(_) => false,
        }
    }

    /// Whether systemd has refused a call, or cannot be reached.
    pub(in crate::actuate) const fn is_of_systemd(&self) -> bool {
        matches!(self, Self::Systemd(_))
    }

    /// How a pass ends with this error: it has `failed`, unless a cgroup has ended.
    pub(in crate::actuate) fn ends(&self, failed: fn(String) -> Outcome) -> Outcome {
        let reason = self.to_string();
        if self.is_gone() {
            Outcome::Interrupted(reason)
        } else {
            failed(reason)
        }
    }

    /// Whether a memory limit could not be lowered now.
    pub(in crate::actuate) const fn is_not_shrinkable(&self) -> bool {
        match self {
            Self::Cgroup(error) => matches!(error.reason, Reason::BelowUsage { .. } | Reason::Busy { .. }),
            Self::NotShrinkable(_) | Self::NoRoom(_) => true,
            Self::Systemd(_) | Self::NoCgroup(_) => false,
        }
    }
}

/// Lowers a memory limit. Blocks for some tens of milliseconds, longer where v1 has to write out reclaimed pages. Adds the
/// duration of each freeze to `freezes`, also when it fails.
///
/// Errors: [`StepError`]; the limit is then unchanged.
pub fn lower(
    cgroup: &Cgroup,
    wanted: Setting,
    freezer: &Freezer,
    freezes: &mut Vec<Duration>,
) -> Result<(), StepError> {
    if has(cgroup, wanted)? {
        return Ok(());
    }
    match (cgroup.outer().version(), wanted.memory()) {
        (CgroupVersion::V2, Some(MemoryLimit::Bytes(bytes))) => {
            while_frozen(cgroup, wanted, Bytes::new(bytes), freezer, freezes)
        }
        (CgroupVersion::V1 | CgroupVersion::V2, _) => by_the_write(cgroup, wanted),
    }
}

/// Whether the cgroup has the limit already: an undo takes back every limit that may have been written.
fn has(cgroup: &Cgroup, limit: Setting) -> Result<bool, CgroupError> {
    let mut held = cgroup.dirs().map(|dir| dir.read(limit.file()));
    held.try_fold(true, |all, held| Ok(all && held? == Some(limit)))
}

fn by_the_write(cgroup: &Cgroup, wanted: Setting) -> Result<(), StepError> {
    for tries in 1.. {
        match cgroup.write(wanted) {
            Err(error) if tries < TRIES && matches!(error.reason, Reason::Busy { .. }) => sleep(PAUSE * tries),
            written => return Ok(written.map(drop)?),
        }
    }
    Ok(())
}

/// Tries until the limit is written: has the kernel reclaim what is in use above it, and pauses after each try.
fn while_frozen(
    cgroup: &Cgroup,
    wanted: Setting,
    bytes: Bytes,
    freezer: &Freezer,
    freezes: &mut Vec<Duration>,
) -> Result<(), StepError> {
    let outer = cgroup.outer();
    let roof = bytes.saturating_sub(slack(bytes));
    let reclaim = outer.reclaim_way()?;
    let mut usage = outer.memory_usage()?;
    for tries in 1..=TRIES {
        if usage > roof && reclaim == Reclaim::OnRequest {
            outer.reclaim(usage.saturating_sub(roof).min(RECLAIM_STEP))?;
            usage = outer.memory_usage()?;
        }
        // Freeze only where the limit already fits.
        if usage <= roof {
            match write_frozen(cgroup, wanted, roof, freezer, freezes)? {
                Tried::Written => return Ok(()),
                Tried::NotFrozen if tries == TRIES => {
                    let bound = FREEZE_BOUND.as_millis();
                    let why = format!("the cgroup did not freeze within {bound} ms, so its limit stays");
                    return Err(StepError::NotShrinkable(why));
                }
                Tried::DidNotFit | Tried::NotFrozen => {}
            }
        }
        sleep(PAUSE * tries);
        usage = outer.memory_usage()?;
    }
    Err(StepError::NotShrinkable(format!(
        "{} bytes were in use at {TRIES} moments one after the other, too close to the wanted limit of {} bytes: choose a higher \
         one, or wait until less is in use",
        usage.get(),
        bytes.get()
    )))
}

/// How one try to write a limit under a freeze ended.
#[derive(Debug)]
enum Tried {
    Written,
    /// More memory is in use than the limit has room for.
    DidNotFit,
    /// The cgroup did not freeze in time.
    NotFrozen,
}

/// Freezes the cgroup, and writes the limit if at most `roof` is in use then.
fn write_frozen(
    cgroup: &Cgroup,
    wanted: Setting,
    roof: Bytes,
    freezer: &Freezer,
    freezes: &mut Vec<Duration>,
) -> Result<Tried, StepError> {
    let outer = cgroup.outer();
    let frozen = match freezer.freeze(outer.memory_dir())? {
        Ok(frozen) => frozen,
        Err(stood) => {
            freezes.push(stood);
            return Ok(Tried::NotFrozen);
        }
    };
    // Compared only now: no process of the cgroup allocates between this reading and the write.
    let usage = outer.memory_usage()?;
    failpoint("shrink.frozen");
    let written = (usage <= roof).then(|| cgroup.write(wanted));
    failpoint("shrink.written");
    freezes.push(frozen.thaw());
    match written {
        Some(Err(error)) if matches!(error.reason, Reason::BelowUsage { .. }) => Ok(Tried::DidNotFit),
        Some(written) => Ok(written.map(|_| Tried::Written)?),
        None => Ok(Tried::DidNotFit),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::cgroup::Hierarchy;
    use crate::model::CgroupPath;

    const KIB: u64 = 1 << 10;

    /// A cgroup with this limit and this use, as plain files.
    fn cgroup(root: &Path, limit: &str, used: &str) -> Cgroup {
        let app = root.join("app");
        fs::create_dir(&app).unwrap();
        fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
        let write = |name: &str, text: &str| fs::write(app.join(name), format!("{text}\n")).unwrap();
        write("memory.max", limit);
        write("memory.current", used);
        write("cgroup.freeze", "0");
        write("cgroup.events", "populated 1\nfrozen 0");
        let hierarchy = Hierarchy::of_tree(root).unwrap();
        Cgroup::open(&hierarchy, &CgroupPath::new("/app").unwrap()).unwrap()
    }

    #[test]
    fn a_limit_that_is_there_freezes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = cgroup(root.path(), "8388608", "8380416");
        let freezer = Freezer::below(root.path()).unwrap();
        for (limit, is_lowered) in [(8188 * KIB, false), (8192 * KIB, true)] {
            let (wanted, mut freezes) = (Setting::MemoryMax(MemoryLimit::Bytes(limit)), Vec::new());
            let lowered = lower(&cgroup, wanted, &freezer, &mut freezes);
            assert_eq!((lowered.is_ok(), freezes), (is_lowered, Vec::new()), "{limit}");
        }
    }

    /// Lowers the limit of a cgroup from 16 MiB to 8, beside a kernel in which that uses so much once it is frozen, or never freezes.
    /// Returns how that ended, with the number of freezes.
    fn lowered(root: &Path, used_frozen: Option<u64>) -> (Result<(), StepError>, usize) {
        let cgroup = cgroup(root, "16777216", "4194304");
        let app = root.join("app");
        let write = |name: &str, text: &str| fs::write(app.join(name), text).unwrap();
        let freezer = Freezer::below(root).unwrap();
        let (mut freezes, done) = (Vec::new(), AtomicBool::new(false));
        let ended = thread::scope(|scope| {
            scope.spawn(|| {
                let Some(used_frozen) = used_frozen else { return };
                while !done.load(Ordering::Relaxed) {
                    if fs::read_to_string(app.join("cgroup.freeze")).unwrap().trim() == "1" {
                        write("memory.current", &format!("{used_frozen}\n"));
                        write("cgroup.events", "populated 1\nfrozen 1\n");
                        return;
                    }
                    thread::yield_now();
                }
            });
            let wanted = Setting::MemoryMax(MemoryLimit::Bytes(8192 * KIB));
            let ended = lower(&cgroup, wanted, &freezer, &mut freezes);
            done.store(true, Ordering::Relaxed);
            ended
        });
        (ended, freezes.len())
    }

    #[test]
    fn each_try_to_freeze_counts() {
        let root = tempfile::tempdir().unwrap();
        let (ended, freezes) = lowered(root.path(), None);
        let why = ended.unwrap_err().to_string();
        assert!(why.contains("did not freeze within 100 ms"), "{why}");
        assert_eq!(freezes, 5);
    }

    #[test]
    fn use_counts_while_nothing_can_allocate() {
        // Half a mebibyte stays free.
        for (used_frozen, fits) in [(7680 * KIB, true), (7681 * KIB, false), (9000 * KIB, false)] {
            let root = tempfile::tempdir().unwrap();
            let (ended, freezes) = lowered(root.path(), Some(used_frozen));
            assert_eq!(ended.is_ok(), fits, "{used_frozen}: {ended:?}");
            assert!(ended.is_ok() || ended.is_err_and(|error| error.is_not_shrinkable()));
            assert_eq!(freezes, 1);
            let first_line = |name: &str| {
                let text = fs::read_to_string(root.path().join("app").join(name)).unwrap();
                text.lines().next().unwrap().to_owned()
            };
            assert_eq!(first_line("memory.max"), if fits { "8388608" } else { "16777216" });
            assert_eq!(first_line("cgroup.freeze"), "0");
            assert_eq!(fs::read_dir(root.path().join("frozen")).unwrap().count(), 0);
        }
    }
}
