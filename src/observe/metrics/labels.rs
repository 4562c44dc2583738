//! Label values that are known in advance, all of them; docs/metrics.md says what each means.

use super::Labels;
use crate::runtime::{Problem, RuntimeError};

macro_rules! labels {
    ($($(#[$about:meta])* $name:ident { $($variant:ident = $text:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "` in docs/metrics.md.")] $variant,)*
        }

        impl $name {
            /// All values of this label.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The series of a family with this label alone.
            pub fn series(label: &'static str) -> impl Iterator<Item = Labels<1>> {
                Self::ALL.iter().map(move |value| [(label, value.as_str())])
            }

            /// The text that series have for this value.
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
        Applied = "applied",
        Ceiling = "ceiling",
        Node = "node",
        PodBudget = "pod_budget",
        NodeBudget = "node_budget",
        Failed = "failed",
    }
    /// A part of the way from a decision to verified files.
    Stage {
        Decide = "decide",
        Ask = "ask",
        Observe = "observe",
        Plan = "plan",
        Prepare = "prepare",
        Write = "write",
        Runtime = "runtime",
        Total = "total",
    }

    /// What became of one pass over a pod.
    ResizeOutcome {
        Applied = "applied",
        Unchanged = "unchanged",
        RuntimeOwed = "runtime_owed",
        Withheld = "withheld",
        Refused = "refused",
        RolledBack = "rolled_back",
        Incomplete = "incomplete",
    }

    /// What became of one pass that was to lower memory limits, and of the limits afterwards.
    ShrinkOutcome {
        Refused = "refused",
        Lowered = "lowered",
        Kept = "kept",
        Undone = "undone",
    }

    /// What became of one step.
    StepOutcome {
        Verified = "verified",
        Refused = "refused",
        Gone = "gone",
        Failed = "failed",
    }

    /// What became of one call to the container runtime.
    CallOutcome {
        Ok = "ok",
        Refused = "refused",
        NotFound = "not_found",
        Timeout = "timeout",
        Unavailable = "unavailable",
        Unusable = "unusable",
    }

    /// What something degraded has to do with.
    ProblemKind {
        Manifests = "manifests",
        Node = "node",
        State = "state",
        Kills = "kills",
    }

    /// How a watch of the API server ended.
    WatchEnd {
        Over = "over",
        Silent = "silent",
        Forgotten = "forgotten",
        Failed = "failed",
    }

    /// What became of a report for one destination.
    ReportOutcome {
        Sent = "sent",
        SentAgain = "sent_again",
        Acknowledged = "acknowledged",
        Withheld = "withheld",
        Refused = "refused",
    }

    /// What became of an attempt to reach a destination of reports.
    LinkOutcome {
        Established = "established",
        Failed = "failed",
    }

    /// The state that a pod is in.
    PodState {
        NotManaged = "not_managed",
        InSync = "in_sync",
        Working = "working",
        Owed = "owed",
        Refused = "refused",
        Deferred = "deferred",
        Infeasible = "infeasible",
        Foreign = "foreign",
        NotRunning = "not_running",
    }
}

impl CallOutcome {
    /// The outcome of a call to the runtime.
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
