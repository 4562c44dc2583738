//! The record of a pass over a pod: its cause, its steps, its outcome, and the time that each stage took.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::objects::PodId;
use crate::model::{Change, Reason, Resource, Step, Target};

/// Why a pass ran.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Cause {
    /// Of this VPA, with this resource version. The version is empty if the source has none.
    #[display("recommendation of VPA {vpa} ({reason})")]
    Recommendation {
        vpa: String,
        version: String,
        reason: Reason,
    },
    /// The pod has started, and a container loses its startup boost.
    #[display("startup boost of VPA {vpa} ended")]
    BoostEnded { vpa: String },
    /// An operator at the socket, with this UID and PID, gave this reason.
    #[display("operator {}", caller(*uid, *pid, reason))]
    Operator { uid: u32, pid: i32, reason: String },
    /// An operator at the socket, with this UID and PID, ended an override for this reason.
    #[display("override released {}", caller(*uid, *pid, reason))]
    Released { uid: u32, pid: i32, reason: String },
    /// The time of an operator's override is over.
    #[display("override ended")]
    OverrideEnded,
    /// Another client has changed the spec, which gets the amounts of this operator's override again.
    #[display("another client's resize undone by the override {}", caller(*uid, *pid, reason))]
    OverrideKept { uid: u32, pid: i32, reason: String },
    /// A container was about to reach a limit. The guard raised the limit, or could not. `why` is the guard's
    /// observation, as part of a sentence about the container, or None if the message has it elsewhere.
    #[display("guard: container {container} {}{}", guarded(*resource), why.as_ref().map(|why| format!(" (it {why})")).unwrap_or_default())]
    Guard {
        container: String,
        resource: Resource,
        why: Option<String>,
    },
    /// A temporary limit is not needed any more, or not all of it.
    #[display("guard: temporary {resource} limit of container {container} lowered")]
    TemporaryLimitEnded { container: String, resource: Resource },
    /// The agent takes a temporary limit back because the API server denies it.
    #[display("guard: temporary limit of container {container} ended because the API server denies it ({why})")]
    TemporaryLimitDenied { container: String, why: String },
    /// The pod's cgroup allows less memory than its containers' cgroups do together.
    #[display("the pod's cgroup allowed less memory than its containers' cgroups (kubernetes/kubernetes#138760)")]
    PodLevel,
    /// A hook notifies a container of a change of its memory limit.
    #[display("hook {moment} in container {container}")]
    Hook { moment: &'static str, container: String },
    /// Nothing asks any more for a resize that the kubelet has not allocated: the spec gets the amounts from before.
    #[display("the pending resize is no longer wanted: it is withdrawn")]
    Withdrawn,
    /// Another process changed a value.
    #[display("drift: another program changed a value")]
    Drift,
    /// Another process, most likely the kubelet, changed a value while the kubelet resized the pod.
    #[display("drift: another program changed a value while the kubelet resized the pod")]
    DriftInFlight,
    /// The kubelet answered a resize.
    #[display("the kubelet answered")]
    Kubelet,
    /// The API server answers again.
    #[display("the API server is back")]
    ApiServerReturned,
    /// The change that was made while the API server was away is lost.
    #[display("a change made while the API server was unreachable was overwritten")]
    ChangeLost,
    #[display("container started")]
    ContainerStarted,
    /// The agent started and checks every pod.
    #[display("agent started")]
    AgentStarted,
    #[display("periodic check")]
    Sweep,
    #[display("retry")]
    Retry,
    /// The agent raises a memory limit again after a failed shrink.
    #[display("undoing a shrink: {why}")]
    FailedShrink { why: String },
}

impl Cause {
    /// Whether a container may be out of memory in a moment, so nothing that takes long comes before the write.
    pub const fn is_emergency(&self) -> bool {
        match self {
            Self::FailedShrink { .. } => true,
            Self::Guard { resource, .. } => matches!(resource, Resource::Memory),
            _ => false,
        }
    }
}

/// A caller, and its reason if it gave one. A process of another PID namespace has no number here.
fn caller(uid: u32, pid: i32, reason: &str) -> String {
    let pid = if pid > 0 { format!(", pid {pid}") } else { String::new() };
    let colon = if reason.is_empty() { "" } else { ": " };
    format!("(uid {uid}{pid}){colon}{reason}")
}

const fn guarded(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "was about to reach its memory limit",
        Resource::Cpu => "is held back by its cpu limit",
    }
}

/// How a hook ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookEnd {
    /// How the hook ended, or why it failed.
    pub how: Result<String, String>,
    /// The beginning of the hook's output, which only `vscalectl` shows.
    pub output: String,
    /// The evidence of the hook, if it ran because its container was about to reach a limit.
    pub evidence: Option<Evidence>,
}

/// The evidence that a hook left before its container reached a limit that could not grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The file that the hook named. The text comes from the container.
    pub path: Option<String>,
    /// The exit code of the hook's command, if it ended.
    pub exit_code: Option<i32>,
}

impl HookEnd {
    /// A hook that did not run, or failed before it printed anything.
    pub const fn failed(why: String) -> Self {
        Self {
            how: Err(why),
            output: String::new(),
            evidence: None,
        }
    }
}

/// Why the cgroups do not get the amounts of the spec.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Withheld {
    /// The kubelet has no room for the resize now, and tries again when that changes. Holds the kubelet's message.
    Deferred(String),
    /// This node can never hold the resize. The kubelet waits for another spec. Holds the kubelet's message.
    Infeasible(String),
    /// The kubelet tried to write the amounts and failed, and tries again. Holds the kubelet's message.
    #[strum(serialize = "ResizeError")]
    Failed(String),
    /// The kubelet has not answered, and the agent does not know whether the node has room.
    Unanswered(String),
    /// The agent has not asked the kubelet yet, because the targets still change from one moment to the next.
    Postponed(String),
    /// The API server is away. The cgroups get an operator's values all the same.
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

/// How a pass over a pod, or a hook, ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, strum::IntoStaticStr)]
pub enum Outcome {
    /// Every value is the desired one, as read back. The pass changed at least one.
    Applied,
    /// Every value was the desired one already.
    #[default]
    Unchanged,
    /// Every cgroup file has the desired value, but the runtime's stored spec is still the old one.
    RuntimeOwed(String),
    /// The API server has the wanted amounts, but the kubelet does not grant them, yet or at all. The
    /// cgroups keep the earlier grant.
    Withheld(Withheld),
    /// The pass wrote nothing: a check before the first step failed. The text says which, with the numbers.
    Refused(String),
    /// During the pass a cgroup ended, or the kubelet or the guard wrote the same files. The next pass plans the rest anew.
    Interrupted(String),
    /// A step failed, and the pass undid all steps before it.
    RolledBack(String),
    /// A step failed, and so did undoing the steps before it. The next pass starts from the values of the files.
    /// The text names the failure, and the step that was not undone.
    Incomplete(String),
    Hook(HookEnd),
}

impl Outcome {
    /// Whether the cgroups have every wanted value.
    pub const fn holds(&self) -> bool {
        matches!(self, Self::Applied | Self::Unchanged | Self::RuntimeOwed(_))
    }

    /// Whether the cgroups have the wanted values, or those that the kubelet granted.
    pub const fn is_kept(&self) -> bool {
        self.holds() || matches!(self, Self::Withheld(_))
    }

    /// Notes that the API server denied the wanted amounts, and that the pass was to restore the earlier grant.
    pub(crate) fn deny(&mut self, why: &str) {
        let reason = match self.reason() {
            Some(more) => format!("{why}; the earlier values are not restored yet: {more}"),
            None => why.to_owned(),
        };
        *self = match self {
            Self::Incomplete(_) => Self::Incomplete(reason),
            Self::Interrupted(_) => Self::Interrupted(reason),
            _ => Self::Refused(reason),
        };
    }

    /// Notes that a failed pass could not undo a step.
    pub(crate) fn not_undone(&mut self, why: &str) {
        match self {
            Self::RolledBack(reason) => {
                let reason = format!("{reason}; this could not be undone: {why}");
                *self = Self::Incomplete(reason);
            }
            _ => self.add(why),
        }
    }

    /// Adds to the reason, if there is one.
    pub(crate) fn add(&mut self, more: &str) {
        if let Self::RuntimeOwed(reason)
        | Self::Refused(reason)
        | Self::Interrupted(reason)
        | Self::RolledBack(reason)
        | Self::Incomplete(reason) = self
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

    /// Why the pass ended like this. None if it succeeded.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Applied | Self::Unchanged => None,
            Self::Withheld(withheld) => Some(withheld.reason()),
            Self::RuntimeOwed(reason)
            | Self::Refused(reason)
            | Self::Interrupted(reason)
            | Self::RolledBack(reason)
            | Self::Incomplete(reason) => Some(reason),
            Self::Hook(HookEnd {
                how: Ok(how) | Err(how),
                ..
            }) => Some(how),
        }
    }
}

/// A step with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRecord {
    pub target: Target,
    /// The change that was tried. Without an `error`, the values that were read back are the new ones.
    pub change: Change,
    /// From the write until the value was read back.
    pub took: Duration,
    pub error: Option<String>,
    /// Whether this step undid an earlier one.
    pub rollback: bool,
}

impl StepRecord {
    /// The record of a step that has not run yet.
    pub fn planned(step: &Step) -> Self {
        Self {
            target: step.target.clone(),
            change: step.change.clone(),
            took: Duration::ZERO,
            error: None,
            rollback: false,
        }
    }

    /// The record of a step that has run.
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

/// How long each stage of a pass took. Zero for stages that did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// To decide, if a decision led to the pass.
    pub decide: Duration,
    /// From the decision until a worker was free.
    pub queued: Duration,
    /// To call the API server.
    pub ask: Duration,
    pub observe: Duration,
    pub plan: Duration,
    /// To make room for lower memory limits: readings, reclaims, and the waits between them.
    pub prepare: Duration,
    /// To write files and systemd properties, and to read them back.
    pub write: Duration,
    /// To update the runtime, and to read the files again.
    pub runtime: Duration,
    /// From the decision until the files were verified, before the runtime's update.
    pub verified: Duration,
}

/// The record of one pass over one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRecord {
    /// Counts up from 1 since the agent started.
    pub sequence: u64,
    pub at: Timestamp,
    pub pod: PodId,
    pub cause: Cause,
    pub outcome: Outcome,
    /// The kernel has the amounts and the API server the request, but the kubelet has not carried it out yet.
    pub in_flight: bool,
    /// The steps that ran, in order.
    pub steps: Vec<StepRecord>,
    pub stages: Stages,
}

impl ChangeRecord {
    /// A record without steps. `History` sets the sequence and the time.
    pub fn new(pod: PodId, cause: Cause, outcome: Outcome) -> Self {
        Self {
            sequence: 0,
            at: Timestamp::UNIX_EPOCH,
            pod,
            cause,
            outcome,
            in_flight: false,
            steps: Vec::new(),
            stages: Stages::default(),
        }
    }

    /// Whether the pass sent the API server a request.
    pub fn has_request(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step.change, Change::Resize { .. }))
    }

    /// The word for the outcome once spec, status and kernel agree; before, `InFlight`.
    pub fn word(&self) -> &'static str {
        if self.in_flight {
            "InFlight"
        } else {
            self.outcome.word()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Requirements;

    fn text(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn each_cause_is_told_in_words() {
        let operator = |reason: &str| Cause::Operator {
            uid: 1,
            pid: 2,
            reason: text(reason),
        };
        let (uid, pid, reason) = (1, 0, text("done"));
        let released = Cause::Released { uid, pid, reason };
        let reason = text("test");
        let kept = Cause::OverrideKept { uid, pid, reason };
        let guard = |resource, why: Option<&str>| Cause::Guard {
            container: text("app"),
            resource,
            why: why.map(text),
        };
        for (cause, told) in [
            (
                Cause::Recommendation {
                    vpa: text("web"),
                    version: text("7"),
                    reason: Reason::OutOfBounds,
                },
                "recommendation of VPA web (OutOfBounds)",
            ),
            (Cause::BoostEnded { vpa: text("web") }, "startup boost of VPA web ended"),
            (operator("test"), "operator (uid 1, pid 2): test"),
            (operator(""), "operator (uid 1, pid 2)"),
            (released, "override released (uid 1): done"),
            (Cause::OverrideEnded, "override ended"),
            (kept, "another client's resize undone by the override (uid 1): test"),
            (
                guard(Resource::Memory, None),
                "guard: container app was about to reach its memory limit",
            ),
            (
                guard(Resource::Cpu, Some("was throttled")),
                "guard: container app is held back by its cpu limit (it was throttled)",
            ),
            (
                Cause::TemporaryLimitEnded {
                    container: text("app"),
                    resource: Resource::Cpu,
                },
                "guard: temporary cpu limit of container app lowered",
            ),
            (
                Cause::TemporaryLimitDenied {
                    container: text("app"),
                    why: text("a quota"),
                },
                "guard: temporary limit of container app ended because the API server denies it (a quota)",
            ),
            (
                Cause::Hook {
                    moment: "before-shrink",
                    container: text("app"),
                },
                "hook before-shrink in container app",
            ),
            (
                Cause::Withdrawn,
                "the pending resize is no longer wanted: it is withdrawn",
            ),
            (Cause::Drift, "drift: another program changed a value"),
            (
                Cause::DriftInFlight,
                "drift: another program changed a value while the kubelet resized the pod",
            ),
            (Cause::Kubelet, "the kubelet answered"),
            (Cause::ApiServerReturned, "the API server is back"),
            (Cause::ContainerStarted, "container started"),
            (Cause::AgentStarted, "agent started"),
            (Cause::Sweep, "periodic check"),
            (Cause::Retry, "retry"),
            (
                Cause::FailedShrink {
                    why: text("it stalled"),
                },
                "undoing a shrink: it stalled",
            ),
        ] {
            assert_eq!(cause.to_string(), told);
        }
        let is_emergency = [
            guard(Resource::Memory, None),
            Cause::FailedShrink { why: text("") },
            guard(Resource::Cpu, None),
            Cause::Retry,
        ];
        assert_eq!(
            is_emergency.each_ref().map(Cause::is_emergency),
            [true, true, false, false]
        );
    }

    #[test]
    fn each_outcome_has_its_word_and_reason() {
        let why = || text("why");
        let hook = |how| {
            Outcome::Hook(HookEnd {
                how,
                output: text("printed"),
                evidence: None,
            })
        };
        // Whether the cgroups have the wanted values, and whether those or the granted ones.
        for (outcome, word, holds, is_kept) in [
            (Outcome::RuntimeOwed(why()), "RuntimeOwed", true, true),
            (Outcome::Withheld(Withheld::Deferred(why())), "Deferred", false, true),
            (
                Outcome::Withheld(Withheld::Infeasible(why())),
                "Infeasible",
                false,
                true,
            ),
            (Outcome::Withheld(Withheld::Failed(why())), "ResizeError", false, true),
            (
                Outcome::Withheld(Withheld::Unanswered(why())),
                "Unanswered",
                false,
                true,
            ),
            (Outcome::Withheld(Withheld::Postponed(why())), "Postponed", false, true),
            (Outcome::Withheld(Withheld::SpecLater(why())), "SpecLater", false, true),
            (Outcome::Refused(why()), "Refused", false, false),
            (Outcome::Interrupted(why()), "Interrupted", false, false),
            (Outcome::RolledBack(why()), "RolledBack", false, false),
            (Outcome::Incomplete(why()), "Incomplete", false, false),
            (hook(Ok(why())), "HookRan", false, false),
            (hook(Err(why())), "HookFailed", false, false),
        ] {
            assert_eq!((outcome.word(), outcome.reason()), (word, Some("why")));
            assert_eq!((outcome.holds(), outcome.is_kept()), (holds, is_kept), "{word}");
        }
        for (outcome, word) in [(Outcome::Applied, "Applied"), (Outcome::Unchanged, "Unchanged")] {
            assert_eq!((outcome.word(), outcome.reason()), (word, None));
            assert!(outcome.holds() && outcome.is_kept(), "{word}");
        }
    }

    #[test]
    fn what_fails_later_adds_to_the_reason() {
        let changed = |mut outcome: Outcome, change: fn(&mut Outcome)| {
            change(&mut outcome);
            outcome
        };
        let deny: fn(&mut Outcome) = |outcome| outcome.deny("a quota");
        let both = || text("a quota; the earlier values are not restored yet: busy");
        for (before, after) in [
            (Outcome::Applied, Outcome::Refused(text("a quota"))),
            (Outcome::RolledBack(text("busy")), Outcome::Refused(both())),
            (Outcome::Incomplete(text("busy")), Outcome::Incomplete(both())),
            (Outcome::Interrupted(text("busy")), Outcome::Interrupted(both())),
        ] {
            assert_eq!(changed(before, deny), after);
        }
        let not_undone: fn(&mut Outcome) = |outcome| outcome.not_undone("gone");
        for (before, after) in [
            (
                Outcome::RolledBack(text("busy")),
                Outcome::Incomplete(text("busy; this could not be undone: gone")),
            ),
            (Outcome::Refused(text("busy")), Outcome::Refused(text("busy; gone"))),
            (
                Outcome::RuntimeOwed(text("busy")),
                Outcome::RuntimeOwed(text("busy; gone")),
            ),
            (Outcome::Applied, Outcome::Applied),
        ] {
            assert_eq!(changed(before, not_undone), after);
        }
    }

    #[test]
    fn a_record_shows_what_is_still_to_come() {
        let pod = PodId {
            uid: "u".into(),
            namespace: text("shop"),
            name: text("web"),
        };
        let mut record = ChangeRecord::new(pod, Cause::Retry, Outcome::Applied);
        assert_eq!((record.word(), record.has_request()), ("Applied", false));
        let none = Requirements::default();
        let step = Step {
            target: Target::Container("app".into()),
            change: Change::Resize { from: none, to: none },
        };
        record.steps = vec![StepRecord::carried_out(
            &step,
            Duration::from_micros(5),
            &Err::<(), _>("busy"),
        )];
        record.in_flight = true;
        assert_eq!((record.word(), record.has_request()), ("InFlight", true));
        let done = &record.steps[0];
        assert_eq!(
            (done.took, done.error.as_deref()),
            (Duration::from_micros(5), Some("busy"))
        );
        assert_eq!(StepRecord::planned(&step).error, None);
    }
}
