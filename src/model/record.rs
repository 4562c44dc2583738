//! What was done to a pod, by whom and why, and how long each stage took.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::objects::PodId;
use crate::model::{Change, Reason, Resource, Step, Target};

/// Who or what asked for a pass.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Cause {
    #[display("recommendation of VPA {vpa} ({reason})")]
    Recommendation {
        vpa: String,
        /// Which version of it; empty where its source has none.
        resource_version: String,
        /// Why it was acted on.
        reason: Reason,
    },
    /// The pod has started: what a container was given only for that is taken back.
    #[display("startup boost of VPA {vpa} ended")]
    BoostEnded { vpa: String },
    /// An operator at the socket.
    #[display("operator (uid {uid}, pid {pid}){}", after_colon(reason))]
    Operator {
        uid: u32,
        pid: i32,
        /// What the caller gave as a reason.
        reason: String,
    },
    /// An operator at the socket ended an override.
    #[display("override released (uid {uid}, pid {pid}){}", after_colon(reason))]
    Released {
        uid: u32,
        pid: i32,
        /// What the caller gave as a reason.
        reason: String,
    },
    /// The time of an operator's override was over.
    #[display("override ended")]
    OverrideEnded,
    /// A limit was about to be reached and was grown, or could not be.
    #[display("guard: container {container} {}{}", guarded(*resource), why.as_ref().map(|why| format!(" (it {why})")).unwrap_or_default())]
    Guard {
        container: String,
        resource: Resource,
        /// What was seen of it, in the words of a sentence about the container; none where that is said beside this.
        why: Option<String>,
    },
    /// A limit that was grown in an emergency is not needed any more, or not all of it.
    #[display("guard: container {container} does not need all the {resource} any more that it was lent")]
    TemporaryLimitEnded { container: String, resource: Resource },
    /// A limit that was grown in an emergency is taken back because the API server denies it.
    #[display("guard: what was lent to container {container} is taken back, the API server denies it ({why})")]
    TemporaryLimitDenied { container: String, why: String },
    /// The pod's cgroup allows less memory than its containers' do together.
    #[display("the pod's cgroup was left below its containers (kubernetes/kubernetes#138760)")]
    PodLevel,
    /// A container was to be told that its memory limit changes.
    #[display("hook {moment} in container {container}")]
    Hook { moment: &'static str, container: String },
    /// Something else changed a value.
    #[display("drift: something else changed a value")]
    Drift,
    /// The kubelet answered a resize.
    #[display("the kubelet answered")]
    Kubelet,
    /// The API server answers again.
    #[display("the API server is back")]
    ApiServerReturned,
    /// What was set while the API server was away does not count any more.
    #[display("what was set while the API server was away is lost")]
    ChangeLost,
    /// A container of the pod appeared.
    #[display("container started")]
    ContainerStarted,
    /// The agent started and checks what it finds.
    #[display("agent started")]
    AgentStarted,
    #[display("periodic check")]
    Sweep,
    /// An earlier pass did not succeed.
    #[display("retry")]
    Retry,
    /// A memory limit was lowered that should not have been.
    #[display("undoing a shrink: {why}")]
    Regret { why: String },
}

fn after_colon(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    }
}

const fn guarded(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "was about to reach its memory limit",
        Resource::Cpu => "is held back by its cpu limit",
    }
}

/// What became of a hook, which changes nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookEnd {
    /// Why it did not do what it should have; else how it ended.
    pub how: Result<String, String>,
    /// The beginning of what it printed, whatever that is: for people who ask, and nowhere else.
    pub output: String,
    /// What it left behind, where it ran because a limit was about to be reached.
    pub evidence: Option<Evidence>,
}

/// What a hook left behind before its container reached a limit that could not grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The file that it named. The container's own words.
    pub path: Option<String>,
    /// How its command ended, if it did.
    pub exit_code: Option<i32>,
}

impl HookEnd {
    /// A hook that did not run, or failed before it printed anything.
    #[must_use]
    pub const fn failed(why: String) -> Self {
        Self {
            how: Err(why),
            output: String::new(),
            evidence: None,
        }
    }
}

/// Why the cgroups are not given what the spec says.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Withheld {
    /// The kubelet has no room for it now.
    Deferred(String),
    Infeasible(String),
    /// The kubelet tried and failed.
    #[strum(serialize = "ResizeError")]
    Failed(String),
    /// The kubelet has not answered, and whether the node has room is not known here.
    Unanswered(String),
    /// The kubelet was not asked yet, because what is wanted changes from one moment to the next.
    Postponed(String),
    /// The API server is away. What an operator set, the cgroups have all the same.
    SpecLater(String),
}

impl Withheld {
    pub fn word(&self) -> &'static str {
        self.into()
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Deferred(why)
            | Self::Infeasible(why)
            | Self::Failed(why)
            | Self::Unanswered(why)
            | Self::Postponed(why)
            | Self::SpecLater(why) => why,
        }
    }
}

/// The end of a pass over a pod, or of a hook.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Outcome {
    /// Every value is what it should be, as read back; at least one was changed.
    Applied,
    /// Every value already was what it should be.
    Unchanged,
    /// The kernel holds every value, but the runtime could not be told yet.
    RuntimeOwed { reason: String },
    /// The API server holds what is wanted, and the kubelet does not let the pod have it, yet or at all: every level
    /// holds what it let it have before.
    Withheld(Withheld),
    /// Nothing was written: a check before the first step failed.
    Refused {
        /// What failed, with the numbers.
        reason: String,
    },
    /// A cgroup ended under our hands; what is left is planned anew.
    Interrupted { reason: String },
    /// A step failed and everything done before it was undone.
    RolledBack { reason: String },
    /// A step failed and undoing it failed as well; the next pass starts from what is there.
    Incomplete {
        /// What failed, and what could not be undone.
        reason: String,
    },
    /// A hook ended.
    Hook(HookEnd),
}

impl Outcome {
    /// Whether the kernel holds every value that is wanted.
    pub const fn holds(&self) -> bool {
        matches!(self, Self::Applied | Self::Unchanged | Self::RuntimeOwed { .. })
    }

    /// Whether the kernel holds every value it was to hold: those wanted, or those that the kubelet granted.
    pub const fn is_kept(&self) -> bool {
        self.holds() || matches!(self, Self::Withheld(_))
    }

    /// The API server denied what is wanted, and the kernel was to be given what was granted before.
    pub(crate) fn deny(&mut self, why: &str) {
        let mut reason = why.to_owned();
        if let Some(more) = self.reason() {
            reason.push_str("; what was granted before is not there yet: ");
            reason.push_str(more);
        }
        *self = match self {
            Self::Incomplete { .. } => Self::Incomplete { reason },
            Self::Interrupted { .. } => Self::Interrupted { reason },
            _ => Self::Refused { reason },
        };
    }

    /// Something that was done before a step failed could not be undone.
    pub(crate) fn not_undone(&mut self, why: &str) {
        match self {
            Self::RolledBack { reason } => {
                let reason = format!("{reason}; and it could not be undone: {why}");
                *self = Self::Incomplete { reason };
            }
            _ => self.add(why),
        }
    }

    /// Adds to the reason, where there is one.
    pub(crate) fn add(&mut self, more: &str) {
        if let Self::RuntimeOwed { reason }
        | Self::Refused { reason }
        | Self::Interrupted { reason }
        | Self::RolledBack { reason }
        | Self::Incomplete { reason } = self
        {
            reason.push_str("; ");
            reason.push_str(more);
        }
    }

    /// One word, for metrics and tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Withheld(withheld) => withheld.word(),
            Self::Hook(HookEnd { how: Ok(_), .. }) => "HookRan",
            Self::Hook(HookEnd { how: Err(_), .. }) => "HookFailed",
            other => other.into(),
        }
    }

    /// Why it is not simply applied, if it is not.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Applied | Self::Unchanged => None,
            Self::Withheld(withheld) => Some(withheld.reason()),
            Self::RuntimeOwed { reason }
            | Self::Refused { reason }
            | Self::Interrupted { reason }
            | Self::RolledBack { reason }
            | Self::Incomplete { reason } => Some(reason),
            Self::Hook(HookEnd {
                how: Ok(how) | Err(how),
                ..
            }) => Some(how),
        }
    }
}

/// One step as it was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRecord {
    pub target: Target,
    /// The values asked for, which are what was read back unless `error` is set.
    pub change: Change,
    /// From the write to the value read back.
    pub took: Duration,
    /// What went wrong, if anything did.
    pub error: Option<String>,
    /// Whether this step undid an earlier one.
    pub rollback: bool,
}

impl StepRecord {
    /// A step before it is carried out.
    pub fn planned(step: &Step) -> Self {
        Self {
            target: step.target.clone(),
            change: step.change.clone(),
            took: Duration::ZERO,
            error: None,
            rollback: false,
        }
    }

    /// A step that took this long and ended like this.
    pub fn carried_out<T, E: std::fmt::Display>(step: &Step, took: Duration, result: &Result<T, E>) -> Self {
        Self {
            took,
            error: result.as_ref().err().map(ToString::to_string),
            ..Self::planned(step)
        }
    }
}

/// A duration in whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How long each stage of a pass took; zero for stages that were not entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// Matching and mathematics, where a decision led to the pass.
    pub decide: Duration,
    /// Waiting for a worker, from the moment the decision was made.
    pub queued: Duration,
    /// At the API server, where it was asked.
    pub ask: Duration,
    pub observe: Duration,
    pub plan: Duration,
    /// Making room for lower memory limits: looking, reclaiming, and waiting in between.
    pub prepare: Duration,
    /// Writing files and systemd properties, and reading them back.
    pub write: Duration,
    /// Telling the runtime, and reading the files again.
    pub runtime: Duration,
    /// From the decision until the kernel's files were verified; the runtime comes after.
    pub verified: Duration,
}

/// One pass over one pod, as history keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRecord {
    /// Counts up from 1 since the agent started.
    pub sequence: u64,
    pub at: Timestamp,
    pub pod: PodId,
    pub cause: Cause,
    pub outcome: Outcome,
    /// What was done, in order.
    pub steps: Vec<StepRecord>,
    pub stages: Stages,
}

impl ChangeRecord {
    /// Nothing was done, and that is how it ended. When and which is said by whoever keeps it.
    pub fn new(pod: PodId, cause: Cause, outcome: Outcome) -> Self {
        Self {
            sequence: 0,
            at: Timestamp::UNIX_EPOCH,
            pod,
            cause,
            outcome,
            steps: Vec::new(),
            stages: Stages::default(),
        }
    }
}
