//! Lowers memory limits: makes room first, writes in a way that cannot kill, watches afterwards.
//!
//! In comes a plan whose steps lower limits, and the pod's open cgroups; out come the same [`StepRecord`]s as of any other
//! step, a refusal with the numbers, and what is to be [watched](watch()). A pass without such steps does not come here.
//! What to do is decided in [`crate::plan::shrink`]; here it is done.
//!
//! [`StepRecord`]: crate::model::StepRecord

mod check;
mod commit;
mod freezer;
mod marker;
mod watch;

pub use check::SeenBefore;
pub use commit::{LowerError, lower};
pub use freezer::{FREEZE_BOUND, FreezeError, Freezer, thaw_all, thaw_on_panic};
pub use marker::{LeftBehind, Markers};
pub use watch::{Verdict, watch};

pub(super) use check::{Next, ShrinkChecks, reclaim_below_limits};

use crate::model::{Bytes, MemoryLimit, StepRecord, Target};
use crate::plan::shrink::Before;

/// A limit that was lowered, as it is to be watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowering {
    pub target: Target,
    pub from: MemoryLimit,
    pub to: Bytes,
    /// What is known from before.
    pub before: Before,
}

/// What a pass did about lower limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// Limits that are lower now.
    pub lowered: Vec<Lowering>,
    /// Whose memory limits were written at all.
    pub touched: Vec<Target>,
    /// A limit could not be lowered now.
    pub refused: bool,
    /// For how long cgroups stood still, each time one did.
    pub freezes: Vec<std::time::Duration>,
    /// What was seen on the way, for the next try.
    pub seen: SeenBefore,
}

impl ShrinkReport {
    /// Leaves out what a pass that did not come to its end has not written, or has put back. What it wrote before it was
    /// interrupted holds, and is to be watched like any other lower limit: no later pass finds a reason to write it.
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
