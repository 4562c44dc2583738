//! The lines of the audit log. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::Refusal;
use crate::model::{Cause, ChangeRecord, ControlFile, StepRecord, micros};
use crate::oom::OomReport;
use crate::printable;

/// The author of a change. Fields that do not apply are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Actor<'a> {
    /// `vpa`; `operator`; `guard`, for temporary limits and their end; or `agent`, which keeps
    /// or reverts an earlier change.
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// The version of the VPA; empty if its source has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

impl Actor<'_> {
    pub(super) fn is_operator(&self) -> bool {
        self.kind == "operator"
    }
}

impl<'a> From<&'a Cause> for Actor<'a> {
    fn from(cause: &'a Cause) -> Self {
        use Cause::*;
        let of_kind = |kind| Self {
            kind,
            ..Self::default()
        };
        match cause {
            Recommendation { vpa, version, .. } => Self {
                name: Some(vpa),
                resource_version: Some(version),
                ..of_kind("vpa")
            },
            Operator { uid, pid, reason } | Released { uid, pid, reason } => Self {
                uid: Some(*uid),
                pid: known_pid(*pid),
                reason: Some(reason),
                ..of_kind("operator")
            },
            Guard { .. } | TemporaryLimitEnded { .. } | TemporaryLimitDenied { .. } => of_kind("guard"),
            BoostEnded { .. }
            | OverrideEnded
            | OverrideKept { .. }
            | Withdrawn
            | PodLevel
            | ChangeLost
            | FailedShrink { .. }
            | Hook { .. } => of_kind("agent"),
            Drift | DriftInFlight | Kubelet | ApiServerReturned => of_kind("agent"),
            ContainerStarted | AgentStarted | Sweep | Retry => of_kind("agent"),
        }
    }
}

/// The PID of a caller; none for the 0 of a process in a PID namespace that the agent does not see.
pub fn known_pid(pid: i32) -> Option<i32> {
    Some(pid).filter(|pid| *pid > 0)
}

/// One line for each written value, or one line for a pass that wrote none.
pub(super) fn of_change(record: &ChangeRecord) -> Vec<String> {
    if record.steps.is_empty() {
        return vec![of_step(record, None)];
    }
    record.steps.iter().map(|step| of_step(record, Some(step))).collect()
}

fn of_step(record: &ChangeRecord, step: Option<&StepRecord>) -> String {
    let (old, new) = step.map(|step| step.change.texts()).unzip();
    line(&[
        ("event", json("change")),
        ("time", json(record.at)),
        // The number of the pass, as in `vscalectl history`. Values with the same number were changed together.
        ("change", json(record.sequence)),
        ("pod", json(&record.pod)),
        ("who", json(Actor::from(&record.cause))),
        ("why", json(record.cause.to_string())),
        ("via", json(step.map(|step| step.change.via().to_string()))),
        ("level", json(step.map(|step| step.target.level()))),
        ("container", json(step.and_then(|step| step.target.container()))),
        // Absent if one call sets several values, then each amount carries its name.
        (
            "file",
            json(step.and_then(|step| step.change.file()).map(ControlFile::name)),
        ),
        ("old", json(old)),
        ("new", json(new)),
        ("tookUs", json(step.map(|step| micros(step.took)))),
        ("error", json(step.and_then(|step| step.error.as_deref()))),
        // Whether the step undid an earlier value of the same pass.
        ("rollback", json(step.map(|step| step.rollback))),
        // The outcome of the whole pass.
        ("outcome", json(record.outcome.word())),
        ("reason", json(record.outcome.reason())),
        // From the decision until every value was read back.
        ("verifiedUs", json(micros(record.stages.verified))),
    ])
}

/// The line of so many equal refusals.
pub(super) fn of_refusal(refusal: &Refusal, times: u64) -> String {
    line(&[
        ("event", json("refusal")),
        ("time", json(refusal.time)),
        ("uid", json(refusal.uid)),
        ("pid", json(known_pid(refusal.pid))),
        ("call", json(refusal.call)),
        ("pod", json(&refusal.pod)),
        ("reason", json(&refusal.reason)),
        ("times", json(times)),
    ])
}

/// The line of a kill, without the process's own name.
pub(super) fn of_kill(report: &OomReport) -> String {
    let facts = &report.facts;
    line(&[
        ("event", json("kill")),
        ("time", json(report.time)),
        ("id", json(&report.id)),
        ("pod", json(&facts.pod)),
        (
            "container",
            json(facts.container.as_ref().map(|container| &container.name)),
        ),
        ("level", json(facts.level)),
        ("limitOf", json(facts.limit_of())),
        ("limitBytes", json(facts.limit.limit_bytes)),
        ("pid", json(report.victim.as_ref().map(|victim| victim.pid))),
        ("confidence", json(report.confidence)),
    ])
}

/// The line of so many lost lines, or changes and kills of a namespace without lines of their own.
pub(super) fn of_count(event: &str, namespace: Option<&str>, counted: &str, count: u64) -> String {
    line(&[
        ("event", json(event)),
        ("time", json(Timestamp::now())),
        ("namespace", json(namespace)),
        (counted, json(count)),
    ])
}

/// A line with these fields in this order, without the absent ones.
fn line(fields: &[(&str, String)]) -> String {
    let present = fields.iter().filter(|(_, json)| json != "null");
    let texts: Vec<_> = present.map(|(name, json)| format!("\"{name}\":{json}")).collect();
    format!("{{{}}}\n", texts.join(","))
}

fn json(value: impl Serialize) -> String {
    // Texts and numbers under names always become JSON. An error would stand in the log in place of the value.
    let line = serde_json::to_string(&value).unwrap_or_else(|error| format!("\"{error}\""));
    printable::json(&line).into_owned()
}
