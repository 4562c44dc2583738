//! The messages to and from the guard.

use std::sync::Arc;
use std::time::Duration;

use super::budgets::{Budget, RefusalKind};
use crate::actuate::{Growable, Grown, Node};
use crate::model::objects::{PodId, PodUid};
use crate::model::{Bytes, CgroupPath, LivePod, MilliCpu};

/// The pods that the guard watches. Each list replaces the one before.
#[derive(Debug, Clone)]
pub struct Watchlist {
    pub node: Arc<Node>,
    pub settings: Settings,
    /// The pods with a limit that may grow.
    pub pods: Vec<GuardedPod>,
    /// The requests of every pod of the node.
    pub claims: Vec<Claim>,
}

/// The configuration of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Available memory that the guard never grants.
    pub reserve: Bytes,
    pub budget: Budget,
    /// How long a container with a temporary limit has to be quiet before the controller reviews the limit.
    pub quiet: Duration,
}

/// A pod with a limit that may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedPod {
    pub live: Arc<LivePod>,
    pub growable: Growable,
    pub containers: Vec<Terms>,
}

/// How the limits of one container may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub container: String,
    /// The highest memory limit; `None` if it may not grow.
    pub memory: Option<Bytes>,
    /// `None` if the cpu limit may not grow.
    pub cpu: Option<CpuTerms>,
    /// The part of the highest memory limit that is kept for evidence, where the container has a hook that leaves evidence
    /// before a limit that cannot grow.
    pub evidence: Option<Bytes>,
}

/// How a cpu limit may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTerms {
    pub limit: MilliCpu,
    pub ceiling: MilliCpu,
    /// Whether the present limit is a temporary one.
    pub lent: bool,
}

/// The memory request of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub uid: PodUid,
    pub path: CgroupPath,
    pub request: Bytes,
}

/// A message from the guard to the controller about one container.
#[derive(Debug)]
pub struct Report {
    pub of: Guarded,
    pub event: GuardEvent,
}

/// The guard's action for a container, or its observation.
#[derive(Debug)]
pub enum GuardEvent {
    /// The guard grew a limit, or tried to.
    Grew {
        /// Memory in use without page cache.
        used: Bytes,
        to: Bytes,
        why: String,
        grown: Box<Grown>,
    },
    /// A limit should grow and must not. Reported once, until the reason changes.
    Refused { kind: RefusalKind, why: String },
    /// A limit will be reached and cannot grow, and the container's hook shall leave evidence. Reported once, until the
    /// terms have been without evidence.
    Pressure {
        limit: Bytes,
        /// The temporary limit for the evidence; the same as `limit` where the guard could not grow it.
        lent: Bytes,
    },
    /// The kernel has throttled the container for so long that its cpu limit should rise to `to`.
    Throttled { from: MilliCpu, to: MilliCpu, why: String },
    /// A container with a temporary cpu limit has not been throttled for the quiet time.
    Unthrottled,
    /// A container with a temporary memory limit has been quiet for the quiet time.
    Quiet {
        /// The most memory that was in use meanwhile, without page cache.
        peak: Bytes,
    },
}

/// A container, among all of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guarded {
    pub pod: PodId,
    pub container: String,
}
