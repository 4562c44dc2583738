//! Lowers memory limits: makes room first, writes in a way that cannot kill, watches afterwards.
//!
//! In comes a plan whose steps lower limits, and the pod's open cgroups; out come the same [`StepRecord`]s as of any other
//! step, a refusal with the numbers, and what is to be [watched](watch()). A pass without such steps does not come here.
//! What to do is decided in [`crate::plan::shrink`]; here it is done.
//!
//! [`StepRecord`]: super::StepRecord

mod commit;
mod freezer;
mod ground;
mod marker;
mod watch;

pub use commit::{LowerError, Lowered, lower};
pub use freezer::{FREEZE_BOUND, FreezeError, Freezer, thaw_all, thaw_on_panic};
pub use ground::SeenBefore;
pub use marker::{LeftBehind, Markers};
pub use watch::{Verdict, watch};

pub(super) use ground::{Grounds, Next, lowerings};

use crate::plan::Target;
use crate::plan::shrink::Before;
use crate::resources::{Bytes, MemoryLimit};

/// A limit that was lowered, as it is to be watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowering {
    /// Whose limit.
    pub target: Target,
    /// What it was.
    pub from: MemoryLimit,
    /// What it is.
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
