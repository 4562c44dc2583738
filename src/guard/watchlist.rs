//! What the guard is told, and what it tells.

use std::sync::Arc;
use std::time::Duration;

use super::ledger::{Budget, Refusal};
use crate::actuate::{Growable, Grown, Node};
use crate::model::objects::PodId;
use crate::model::{Bytes, CgroupPath, LivePod, MilliCpu};

/// Everything the guard works on. Replaced whole.
#[derive(Debug, Clone)]
pub struct Watchlist {
    /// The node; nothing is guarded until it is known.
    pub node: Option<Arc<Node>>,
    /// How to guard.
    pub settings: Settings,
    /// The pods of which any limit may grow.
    pub pods: Vec<GuardedPod>,
    /// What every pod of the node has requested.
    pub claims: Vec<Claim>,
}

/// How to guard.
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
    /// Where it lives.
    pub live: Arc<LivePod>,
    /// What its containers should have.
    pub growable: Growable,
    /// Its guarded containers.
    pub containers: Vec<Terms>,
}

/// What may be done for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Its name.
    pub container: String,
    /// The highest memory limit it may have; none may not grow.
    pub memory: Option<Bytes>,
    /// How its cpu limit may grow, if it may.
    pub cpu: Option<CpuTerms>,
}

/// How a cpu limit may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTerms {
    /// The limit now.
    pub limit: MilliCpu,
    /// The highest it may have.
    pub ceiling: MilliCpu,
    /// Whether some of it is lent.
    pub lent: bool,
}

/// What a pod has requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The pod's UID.
    pub uid: String,
    /// Its cgroup.
    pub path: CgroupPath,
    /// Memory the pod requests of its node.
    pub request: Bytes,
}

/// What the guard tells.
#[derive(Debug)]
pub enum Report {
    /// A limit was to grow; how that went is in `grown`.
    Grew {
        /// Whose.
        of: Guarded,
        /// The limit it was to have.
        to: Bytes,
        /// Why, in a sentence.
        why: String,
        /// What was done.
        grown: Box<Grown>,
    },
    /// A limit should grow and must not. Said once, until that has changed.
    Refused {
        /// Whose.
        of: Guarded,
        /// By which rule; none where the node's memory could not be read.
        refused: Option<Refusal>,
        /// Why, in a sentence.
        why: String,
    },
    /// A container is throttled for so long that its cpu limit should be this.
    Throttled {
        /// Which one.
        of: Guarded,
        /// The limit now.
        from: MilliCpu,
        /// The limit it should have.
        to: MilliCpu,
        /// Why, in a sentence.
        why: String,
    },
    /// A container that was lent cpu has not been throttled for a while.
    Unthrottled {
        /// Which one.
        of: Guarded,
    },
    /// A container that was lent memory has been quiet for a while.
    Quiet {
        /// Which one.
        of: Guarded,
        /// The most that was in use meanwhile, page cache aside.
        peak: Bytes,
    },
}

/// A container, among all of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guarded {
    /// Its pod.
    pub pod: PodId,
    /// Its name.
    pub container: String,
}

impl Report {
    /// The container it is about.
    #[must_use]
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
