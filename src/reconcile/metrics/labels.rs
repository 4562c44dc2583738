//! The labels of pods, passes, limits and problems.

use crate::observe::metrics::labels;

labels! {
    /// What becomes of a memory limit that is about to be reached.
    pub(crate) enum GrowthOutcome {
        Applied = "applied",
        Ceiling = "ceiling",
        Node = "node",
        PodBudget = "pod_budget",
        NodeBudget = "node_budget",
        Failed = "failed",
    }

    /// A part of the way from a decision to verified files.
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

    /// What became of one pass over a pod.
    pub(crate) enum ResizeOutcome {
        Applied = "applied",
        Unchanged = "unchanged",
        RuntimeOwed = "runtime_owed",
        Withheld = "withheld",
        Refused = "refused",
        RolledBack = "rolled_back",
        Incomplete = "incomplete",
    }

    /// What became of one pass that was to lower memory limits, and of the limits afterwards.
    pub(crate) enum ShrinkOutcome {
        Refused = "refused",
        Lowered = "lowered",
        Kept = "kept",
        Undone = "undone",
    }

    /// What became of one hook.
    pub(crate) enum HookResult {
        Ran = "ran",
        Failed = "failed",
    }

    /// What became of one step.
    pub(crate) enum StepOutcome {
        Verified = "verified",
        Refused = "refused",
        Gone = "gone",
        Failed = "failed",
    }

    /// What something degraded has to do with.
    pub(crate) enum ProblemKind {
        Manifests = "manifests",
        Node = "node",
        State = "state",
        Kills = "kills",
    }

    /// The state that a pod is in.
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
