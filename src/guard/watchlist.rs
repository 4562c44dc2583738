//! What the guard is told, and what it tells.

use std::sync::Arc;
use std::time::Duration;

use super::budgets::{Budget, Refusal};
use crate::actuate::{Growable, Grown, Node};
use crate::model::objects::PodId;
use crate::model::{Bytes, CgroupPath, LivePod, MilliCpu};

/// Everything the guard works on. Replaced whole.
#[derive(Debug, Clone)]
pub struct Watchlist {
    /// The node; nothing is guarded until it is known.
    pub node: Option<Arc<Node>>,
    pub settings: Settings,
    /// The pods of which any limit may grow.
    pub pods: Vec<GuardedPod>,
    /// What every pod of the node has requested.
    pub claims: Vec<Claim>,
}

/// The configuration of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Available memory that is never given out.
    pub reserve: Bytes,
    /// What may be given out within a window.
    pub budget: Budget,
    /// How long a container that was grown has to be quiet before that is looked at again.
    pub quiet: Duration,
}

/// A pod of which any limit may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedPod {
    pub live: Arc<LivePod>,
    /// What its containers should have.
    pub growable: Growable,
    pub containers: Vec<Terms>,
}

/// What may be done for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub container: String,
    /// The highest memory limit it may have; none may not grow.
    pub memory: Option<Bytes>,
    /// How its cpu limit may grow, if it may.
    pub cpu: Option<CpuTerms>,
}

/// How a cpu limit may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTerms {
    pub limit: MilliCpu,
    /// The highest it may have.
    pub ceiling: MilliCpu,
    /// Whether some of it is lent.
    pub lent: bool,
}

/// What a pod has requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub uid: String,
    pub path: CgroupPath,
    /// Memory the pod requests of its node.
    pub request: Bytes,
}

/// A message of the guard to the controller.
#[derive(Debug)]
pub enum Report {
    /// A limit was to grow; how that went is in `grown`.
    Grew {
        of: Guarded,
        /// The limit it was to have.
        to: Bytes,
        why: String,
        grown: Box<Grown>,
    },
    /// A limit should grow and must not. Said once, until that has changed.
    Refused {
        of: Guarded,
        /// By which rule; none where the node's memory could not be read.
        refused: Option<Refusal>,
        why: String,
    },
    /// A container is throttled for so long that its cpu limit should be this.
    Throttled {
        of: Guarded,
        from: MilliCpu,
        /// The limit it should have.
        to: MilliCpu,
        why: String,
    },
    /// A container that was lent cpu has not been throttled for a while.
    Unthrottled { of: Guarded },
    /// A container that was lent memory has been quiet for a while.
    Quiet {
        of: Guarded,
        /// The most that was in use meanwhile, page cache aside.
        peak: Bytes,
    },
}

/// A container, among all of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guarded {
    pub pod: PodId,
    pub container: String,
}

impl Report {
    /// The container it is about.
    pub const fn of(&self) -> &Guarded {
        match self {
            Self::Grew { of, .. }
            | Self::Refused { of, .. }
            | Self::Throttled { of, .. }
            | Self::Unthrottled { of }
            | Self::Quiet { of, .. } => of,
        }
    }
}
