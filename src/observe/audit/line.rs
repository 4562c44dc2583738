//! The lines of the audit log. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::floods::Refusal;
use crate::model::objects::PodId;
use crate::model::{Cause, ChangeRecord, ControlFile, StepRecord, micros};
use crate::oom::{Confidence, Level, OomReport, ReportedPod};

/// The author of a change. Fields that do not apply are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Actor<'a> {
    /// `vpa`; `operator`; `guard`, for temporary limits and their end; or `agent`, which keeps
    /// or reverts an earlier change.
    pub kind: &'static str,
    /// The name of the VPA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// The version of the VPA; empty if its source has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<&'a str>,
    /// The user id of the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The process id of the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
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
pub(super) enum Line<'a> {
    /// One written value, or a pass that was refused and wrote none.
    Change {
        time: Timestamp,
        /// The number of the pass, as in `vscalectl history`. Values with the same number were changed together.
        change: u64,
        pod: &'a PodId,
        who: Actor<'a>,
        why: String,
        #[serde(flatten)]
        what: Option<&'a WrittenValue<'a>>,
        /// The outcome of the whole pass.
        outcome: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        /// From the decision until every value was read back, in microseconds.
        verified_us: u64,
    },
    /// A refused caller or request.
    Refusal {
        #[serde(flatten)]
        refusal: &'a Refusal,
        /// The number of equal refusals.
        times: u64,
    },
    /// A kill for lack of memory.
    Kill {
        time: Timestamp,
        /// The id of the kill, as all receivers have it.
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
    /// Kills without lines of their own.
    MoreKills { time: Timestamp, kills: u64 },
    /// Lines that are missing before this one.
    Lost { time: Timestamp, lines: u64 },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WrittenValue<'a> {
    via: String,
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a str>,
    /// Absent if one call sets several values, whose names then stand beside their amounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'static str>,
    old: String,
    new: String,
    took_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Whether the step undid an earlier value of the same pass.
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

/// One line for each written value, or one line for a pass that wrote none.
pub(super) fn of_change(record: &ChangeRecord) -> Vec<String> {
    let line = |what: Option<&WrittenValue<'_>>| {
        Line::Change {
            time: record.at,
            change: record.sequence,
            pod: &record.pod,
            who: Actor::from(&record.cause),
            why: record.cause.to_string(),
            what,
            outcome: record.outcome.word(),
            reason: record.outcome.reason(),
            verified_us: micros(record.stages.verified),
        }
        .text()
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

/// The line of a kill, without the process's own name.
pub(super) fn of_kill(report: &OomReport) -> String {
    let facts = &report.facts;
    Line::Kill {
        time: report.time,
        id: &report.id,
        pod: facts.pod.as_ref(),
        container: facts.container.as_ref().map(|container| container.name.as_str()),
        level: facts.level,
        limit_of: facts.limit_of(),
        limit_bytes: facts.limit.limit_bytes,
        pid: report.victim.as_ref().map(|victim| victim.pid),
        confidence: report.confidence,
    }
    .text()
}

impl Line<'_> {
    pub(super) fn text(&self) -> String {
        // Texts and numbers under names always become JSON. An error would stand in the log in place of the line.
        let text = serde_json::to_string(self);
        text.unwrap_or_else(|error| format!("{{\"event\":\"broken\",\"error\":\"{error}\"}}")) + "\n"
    }
}
