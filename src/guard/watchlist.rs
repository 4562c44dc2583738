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
    /// What of the highest memory limit is kept for evidence, where the container is to leave some before it reaches a limit that
    /// cannot grow.
    pub evidence: Option<Bytes>,
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

/// A message of the guard to the controller: what it did or saw of a container.
#[derive(Debug)]
pub struct Report {
    pub of: Guarded,
    pub event: GuardEvent,
}

/// What the guard did for a container, or saw of it.
#[derive(Debug)]
pub enum GuardEvent {
    /// A limit was to grow; how that went is in `grown`.
    Grew {
        /// What was in use, page cache aside.
        used: Bytes,
        /// The limit it was to have.
        to: Bytes,
        why: String,
        grown: Box<Grown>,
    },
    /// A limit should grow and must not. Said once, until that has changed.
    Refused {
        /// By which rule; none where the node's memory could not be read.
        refused: Option<Refusal>,
        why: String,
    },
    /// A limit will be reached and cannot grow, and the container is to leave evidence. Said once, until its terms have been
    /// without it.
    Pressure {
        limit: Bytes,
        /// The limit it was lent for that, which is the same where it could be lent nothing.
        lent: Bytes,
    },
    /// It is throttled for so long that its cpu limit should be this.
    Throttled {
        from: MilliCpu,
        /// The limit it should have.
        to: MilliCpu,
        why: String,
    },
    /// It was lent cpu and has not been throttled for a while.
    Unthrottled,
    /// It was lent memory and has been quiet for a while.
    Quiet {
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
