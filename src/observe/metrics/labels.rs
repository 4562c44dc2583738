//! Label values that are known in advance, all of them.

use crate::runtime::{Problem, RuntimeError};

macro_rules! labels {
    ($($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$meaning])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The label's text.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    )*};
}

labels! {
    /// What becomes of a memory limit that is about to be reached.
    GrowthOutcome {
        /// It was grown.
        Applied = "applied",
        /// It is as high as its VPA lets it be.
        Ceiling = "ceiling",
        /// The node has no memory left for it.
        Node = "node",
        /// Its pod was given enough lately.
        PodBudget = "pod_budget",
        /// All pods together were given enough lately.
        NodeBudget = "node_budget",
        /// What the node has left could not be read, or the limit not be written.
        Failed = "failed",
    }
    /// A part of the way from a decision to verified files.
    Stage {
        /// Matching and mathematics.
        Decide = "decide",
        /// At the API server, where the kubelet resizes in place.
        Ask = "ask",
        /// Reading what the files and the runtime hold.
        Observe = "observe",
        /// Ordering steps.
        Plan = "plan",
        /// Making room for lower memory limits, waiting in between included.
        Prepare = "prepare",
        /// Writing files and reading them back.
        Write = "write",
        /// Calls to the container runtime.
        Runtime = "runtime",
        /// From the decision seen to all files verified, waiting for a worker included and making room not.
        Total = "total",
    }

    /// What became of one pass over a pod.
    ResizeOutcome {
        /// Everything was written and verified.
        Applied = "applied",
        /// Everything was there already.
        Unchanged = "unchanged",
        /// The files are verified; the runtime's stored spec is still to follow.
        RuntimeOwed = "runtime_owed",
        /// The API server holds what is wanted, and the kubelet does not let the pod have it yet, or at all.
        Withheld = "withheld",
        /// Nothing was written, because a rule forbids it.
        Refused = "refused",
        /// A step failed, and the values before are back.
        RolledBack = "rolled_back",
        /// A step failed, and not everything before is back.
        Incomplete = "incomplete",
    }

    /// What became of one pass that was to lower memory limits, and of the limits afterwards.
    ShrinkOutcome {
        /// Too much is in use: nothing was changed.
        Refused = "refused",
        /// The limits are lower, and watched.
        Lowered = "lowered",
        /// Watching ended, and they stay.
        Kept = "kept",
        /// Somebody suffered, and they went up again.
        Undone = "undone",
    }

    /// What became of one step.
    StepOutcome {
        /// Written, and read back as it should be.
        Verified = "verified",
        /// The kernel, the runtime or systemd said no.
        Refused = "refused",
        /// What was to be written to has gone.
        Gone = "gone",
        /// Anything else.
        Failed = "failed",
    }

    /// What became of one call to the container runtime.
    CallOutcome {
        /// It answered.
        Ok = "ok",
        /// It said no, with a reason of its own or the kernel's.
        Refused = "refused",
        /// It does not know the container.
        NotFound = "not_found",
        /// It did not answer in time.
        Timeout = "timeout",
        /// Nobody was there to answer.
        Unavailable = "unavailable",
        /// The call was not made, or its answer was not that of a runtime known here.
        Unusable = "unusable",
    }

    /// What something degraded has to do with.
    ProblemKind {
        /// The directory of manifests.
        Manifests = "manifests",
        /// The node: cgroups, the runtime, systemd.
        Node = "node",
        /// What an earlier agent left.
        State = "state",
        /// Watching for kills, and keeping what was seen.
        Kills = "kills",
    }

    /// How a watch of the API server ended.
    WatchEnd {
        /// Its time was over, or nothing was ever heard on it.
        Over = "over",
        /// What keeps coming on a watch ceased, though the connection stood.
        Silent = "silent",
        /// The API server does not know any more what came since.
        Forgotten = "forgotten",
        /// It was refused, or the connection broke.
        Failed = "failed",
    }

    /// What became of a report for one destination.
    ReportOutcome {
        /// It was sent.
        Sent = "sent",
        /// It was sent once more: whether it had arrived was not known.
        SentAgain = "sent_again",
        /// The destination has it, or it was dealt with otherwise.
        Acknowledged = "acknowledged",
        /// It is none that the destination is to be told.
        Withheld = "withheld",
        /// The destination will never take it.
        Refused = "refused",
    }

    /// What became of an attempt to reach a destination of reports.
    LinkOutcome {
        /// It answers.
        Established = "established",
        /// It does not, or not any more.
        Failed = "failed",
    }

    /// How a pod stands.
    PodState {
        /// Nobody asks for anything but its spec.
        NotManaged = "not_managed",
        /// Everything holds what it should.
        InSync = "in_sync",
        /// A pass is under way or due.
        Working = "working",
        /// The runtime's stored spec is still to follow.
        Owed = "owed",
        /// What it should have is refused.
        Refused = "refused",
        /// The kubelet has no room for what it should have.
        Deferred = "deferred",
        /// The kubelet can never let it have what it should.
        Infeasible = "infeasible",
        /// Somebody else keeps changing its values.
        Foreign = "foreign",
        /// It has no running containers here.
        NotRunning = "not_running",
    }
}

impl CallOutcome {
    /// What became of this call.
    #[must_use]
    pub fn of<T>(answer: Result<T, &RuntimeError>) -> Self {
        match answer.map_err(|error| &error.problem) {
            Ok(_) => Self::Ok,
            Err(Problem::NoSocket | Problem::Unavailable { .. }) => Self::Unavailable,
            Err(Problem::Deadline { .. }) => Self::Timeout,
            Err(Problem::NotFound) => Self::NotFound,
            Err(Problem::Refused { .. }) => Self::Refused,
            Err(
                Problem::Unimplemented
                | Problem::Nonsense { .. }
                | Problem::NotCri { .. }
                | Problem::UnknownRuntime { .. }
                | Problem::Invalid { .. },
            ) => Self::Unusable,
        }
    }
}
