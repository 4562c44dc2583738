//! Lowers memory limits: makes room first, writes without the risk of a kill, and watches the pod afterwards.
//!
//! In come a plan whose steps lower limits, and the pod's open cgroups. Out come the same [`StepRecord`]s as of any other step,
//! a refusal with the numbers, and the limits to [watch](watch()). A pass without such steps does not use this module.
//! [`crate::plan::shrink`] decides each action; this module carries it out.
//!
//! [`StepRecord`]: crate::model::StepRecord

mod check;
mod commit;
mod freezer;
mod watch;

pub use check::SeenBefore;
pub use commit::{StepError, lower};
pub use freezer::{FREEZE_BOUND, Freezer};
pub use watch::{Verdict, watch};

pub(super) use check::{ShrinkChecks, reclaim_below_limits};
pub(super) use freezer::Marker;

use crate::model::{Bytes, MemoryLimit, StepRecord, Target};
use crate::plan::shrink::Before;

/// A limit that a pass lowered, for the watch afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowering {
    pub target: Target,
    pub from: MemoryLimit,
    pub to: Bytes,
    /// The cgroup's memory use and refaults before.
    pub before: Before,
}

/// How a pass lowered limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// The limits that are lower now.
    pub lowered: Vec<Lowering>,
    /// The cgroups whose memory limits the pass wrote, and those whose watched limits another writer has raised to the wanted
    /// ones.
    pub touched: Vec<Target>,
    /// The pass could not lower a limit now.
    pub refused: bool,
    /// How long each freeze of a cgroup lasted.
    pub freezes: Vec<std::time::Duration>,
    /// The memory use that the pass has read, for the next try.
    pub seen: SeenBefore,
}

impl ShrinkReport {
    /// Removes the limits that a failed pass has not written, or has put back. A limit that it wrote before it was interrupted
    /// stays: no later pass has a reason to write that limit, so it must be watched now.
    pub(super) fn retain_written(&mut self, records: &[StepRecord]) {
        let holds = |target: &Target| {
            let mut of_target = records.iter().rev().filter(|record| record.target == *target);
            let last = of_target
                .find(|record| (record.error.is_none() || record.rollback) && record.change.memory_limit().is_some());
            last.is_some_and(|last| !last.rollback || last.error.is_some())
        };
        self.lowered.retain(|lowering| holds(&lowering.target));
        self.touched.retain(holds);
    }
}

#[cfg(test)]
mod tests;
