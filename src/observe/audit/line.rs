//! The lines of the audit log. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::floods::Refusal;
use crate::model::objects::PodId;
use crate::model::{Cause, ChangeRecord, ControlFile, StepRecord, micros};
use crate::oom::{Confidence, Level, OomReport, ReportedPod};

/// Whose wish a change was; what does not apply is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Actor<'a> {
    /// `vpa`; `operator`; `guard`, which grew a limit that was about to be reached, or ends what it lent; or `agent`, which
    /// keeps true, or takes back, what somebody wished before.
    pub kind: &'static str,
    /// The name of the VPA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Which version of it; empty where its source has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<&'a str>,
    /// The user id of the operator who called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The process id of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The reason that the caller gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

impl<'a> From<&'a Cause> for Actor<'a> {
    fn from(cause: &'a Cause) -> Self {
        let kind = match cause {
            Cause::Recommendation { .. } => "vpa",
            Cause::Operator { .. } | Cause::Released { .. } => "operator",
            Cause::Guard { .. } | Cause::TemporaryLimitEnded { .. } | Cause::TemporaryLimitDenied { .. } => "guard",
            _ => "agent",
        };
        let of_kind = Self {
            kind,
            ..Self::default()
        };
        match cause {
            Cause::Recommendation {
                vpa, resource_version, ..
            } => Self {
                name: Some(vpa),
                resource_version: Some(resource_version),
                ..of_kind
            },
            Cause::Operator { uid, pid, reason } | Cause::Released { uid, pid, reason } => Self {
                uid: Some(*uid),
                pid: Some(*pid),
                reason: Some(reason),
                ..of_kind
            },
            _ => of_kind,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Line<'a> {
    /// One value that was written, or a pass that wrote none because it was refused.
    Change {
        time: Timestamp,
        /// The number of the pass, as in `vscalectl history`: values with the same one were changed together.
        change: u64,
        pod: &'a PodId,
        who: Actor<'a>,
        why: String,
        #[serde(flatten)]
        what: Option<&'a WrittenValue<'a>>,
        /// How the whole pass ended.
        outcome: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        /// From the decision until every value was read back.
        verified_us: u64,
    },
    /// A caller who was turned away, or whose wish was refused.
    Refusal {
        #[serde(flatten)]
        refusal: &'a Refusal,
        /// How often it was said.
        times: u64,
    },
    /// The kernel killed for want of memory.
    Kill {
        time: Timestamp,
        /// The same as wherever else this kill is told.
        id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        pod: Option<&'a ReportedPod>,
        #[serde(skip_serializing_if = "Option::is_none")]
        container: Option<&'a str>,
        level: Level,
        limit_of: Level,
        #[serde(skip_serializing_if = "Option::is_none")]
        limit_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        confidence: Confidence,
    },
    /// Kills that were too many to have lines of their own.
    MoreKills { time: Timestamp, kills: u64 },
    /// Lines that are missing before this one.
    Lost { time: Timestamp, lines: u64 },
}

/// One value that was written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenValue<'a> {
    via: String,
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a str>,
    /// Absent where one call sets several values: they are then named beside their amounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'static str>,
    old: String,
    new: String,
    took_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Whether this undid an earlier value of the same pass.
    rollback: bool,
}

impl<'a> From<&'a StepRecord> for WrittenValue<'a> {
    fn from(step: &'a StepRecord) -> Self {
        let (old, new) = step.change.texts();
        Self {
            via: step.change.via().to_string(),
            level: step.target.level(),
            container: step.target.container(),
            file: step.change.file().map(ControlFile::name),
            old,
            new,
            took_us: micros(step.took),
            error: step.error.as_deref(),
            rollback: step.rollback,
        }
    }
}

/// One line for each value a pass wrote; one for all of a pass that wrote none.
pub(super) fn of_change(record: &ChangeRecord) -> Vec<String> {
    let line = |what: Option<&WrittenValue<'_>>| {
        text(&Line::Change {
            time: record.at,
            change: record.sequence,
            pod: &record.pod,
            who: Actor::from(&record.cause),
            why: record.cause.to_string(),
            what,
            outcome: record.outcome.word(),
            reason: record.outcome.reason(),
            verified_us: micros(record.stages.verified),
        })
    };
    if record.steps.is_empty() {
        return vec![line(None)];
    }
    record
        .steps
        .iter()
        .map(|step| line(Some(&WrittenValue::from(step))))
        .collect()
}

pub(super) fn of_refusal(refusal: &Refusal, times: u64) -> String {
    text(&Line::Refusal { refusal, times })
}

/// Without what the victim called itself.
pub(super) fn of_kill(report: &OomReport) -> String {
    let facts = &report.facts;
    text(&Line::Kill {
        time: report.time,
        id: &report.id,
        pod: facts.pod.as_ref(),
        container: facts.container.as_ref().map(|container| container.name.as_str()),
        level: facts.level,
        limit_of: facts.limit_of(),
        limit_bytes: facts.limit.limit_bytes,
        pid: report.victim.as_ref().map(|victim| victim.pid),
        confidence: report.confidence,
    })
}

pub(super) fn of_more_kills(time: Timestamp, kills: u64) -> String {
    text(&Line::MoreKills { time, kills })
}

pub(super) fn of_loss(time: Timestamp, lines: u64) -> String {
    text(&Line::Lost { time, lines })
}

fn text(line: &Line<'_>) -> String {
    // Texts and numbers under names always become JSON; should that ever fail, it is said rather than hidden.
    let text =
        serde_json::to_string(line).unwrap_or_else(|error| format!("{{\"event\":\"broken\",\"error\":\"{error}\"}}"));
    text + "\n"
}
