//! The values of the labels.

use crate::observe::metrics::labels;

labels! {
    /// The end of a memory limit that was about to be reached.
    pub(crate) enum GrowthOutcome {
        Applied = "applied",
        Ceiling = "ceiling",
        Node = "node",
        PodBudget = "pod_budget",
        NodeBudget = "node_budget",
        Failed = "failed",
    }

    /// A stage between a decision and verified files.
    pub(crate) enum Stage {
        Decide = "decide",
        Ask = "ask",
        Observe = "observe",
        Plan = "plan",
        Prepare = "prepare",
        Write = "write",
        Runtime = "runtime",
        Total = "total",
    }

    /// The end of a pass over a pod.
    pub(crate) enum ResizeOutcome {
        Applied = "applied",
        Unchanged = "unchanged",
        RuntimeOwed = "runtime_owed",
        Withheld = "withheld",
        Refused = "refused",
        RolledBack = "rolled_back",
        Incomplete = "incomplete",
    }

    /// The end of a pass that was to lower memory limits, and of the watch after it.
    pub(crate) enum ShrinkOutcome {
        Refused = "refused",
        Lowered = "lowered",
        Kept = "kept",
        Undone = "undone",
    }

    /// The end of a hook.
    pub(crate) enum HookResult {
        Ran = "ran",
        Failed = "failed",
    }

    /// The end of a step.
    pub(crate) enum StepOutcome {
        Verified = "verified",
        Refused = "refused",
        Gone = "gone",
        Failed = "failed",
    }

    /// The part of the agent that a problem is about.
    pub(crate) enum ProblemKind {
        Manifests = "manifests",
        Node = "node",
        State = "state",
        Kills = "kills",
    }

    /// The state of a pod.
    #[derive(derive_more::Display)]
    pub(crate) enum PodStatus {
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
