//! What was done to pods → Kubernetes Events, where there is an API server: what changed, what was refused, what was undone.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::kubernetes::events::{EventMessage, EventRecorder, PodReference, Severity};
use crate::model::{Cause, ChangeRecord, Outcome, Withheld};

/// Says what the records tell, until there are no more.
pub(super) async fn emit_events(mut records: broadcast::Receiver<Arc<ChangeRecord>>, events: EventRecorder) {
    loop {
        match records.recv().await {
            Ok(record) => {
                if let Some(message) = event_message(&record) {
                    events.record(message);
                }
            }
            Err(broadcast::error::RecvError::Lagged(missed)) => tracing::warn!(missed, "changes became no Events"),
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// What a change is worth saying. That nothing was to be done, or is to be done again at once, is worth nothing.
fn event_message(record: &ChangeRecord) -> Option<EventMessage> {
    let (severity, reason) = match &record.outcome {
        Outcome::Applied | Outcome::RuntimeOwed { .. } => match record.cause {
            Cause::Drift | Cause::Sweep => (Severity::Warning, "ResourcesRestored"),
            Cause::Recommendation { .. }
            | Cause::BoostEnded { .. }
            | Cause::Operator { .. }
            | Cause::OverrideEnded
            | Cause::Released { .. }
            | Cause::Guard { .. }
            | Cause::LoanEnded
            | Cause::LoanDenied { .. }
            | Cause::Kubelet
            | Cause::PodLevel
            | Cause::ApiServerReturned
            | Cause::ChangeLost
            | Cause::ContainerStarted
            | Cause::AgentStarted
            | Cause::Regret { .. }
            | Cause::Retry => (Severity::Normal, "ResourcesResized"),
        },
        Outcome::Withheld(Withheld::Deferred(_)) => (Severity::Warning, "ResizeDeferred"),
        Outcome::Withheld(Withheld::Infeasible(_)) => (Severity::Warning, "ResizeInfeasible"),
        Outcome::Withheld(Withheld::Failed(_)) => (Severity::Warning, "ResizeError"),
        Outcome::Withheld(Withheld::Unanswered(_) | Withheld::Postponed(_) | Withheld::SpecLater(_)) => return None,
        Outcome::Refused { .. } => (Severity::Warning, "ResizeRefused"),
        Outcome::RolledBack { .. } => (Severity::Warning, "ResizeRolledBack"),
        Outcome::Incomplete { .. } => (Severity::Warning, "ResizeIncomplete"),
        Outcome::Unchanged | Outcome::Interrupted { .. } => return None,
    };
    Some(EventMessage {
        about: PodReference {
            pod: record.pod.clone(),
            container: None,
            init: false,
        },
        severity,
        reason,
        message: message(record),
    })
}

/// Who asked, what came in the way, and every file that was changed for good.
fn message(record: &ChangeRecord) -> String {
    let changed = record
        .steps
        .iter()
        .filter(|step| step.error.is_none() && !step.rollback);
    let files = changed.filter_map(|step| {
        step.change.file()?;
        Some(format!("{} {}", step.target, step.change))
    });
    let what: Vec<_> = record.outcome.reason().map(str::to_owned).into_iter().collect();
    let what = if record.outcome.holds() { files.collect() } else { what };
    let cause = &record.cause;
    if what.is_empty() {
        cause.to_string()
    } else {
        format!("{cause}: {}", what.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{Change, MemoryLimit, Setting, Stages, StepRecord, Target};

    fn record(cause: Cause, outcome: Outcome) -> ChangeRecord {
        let step = StepRecord {
            target: Target::Pod,
            change: Change::File {
                from: Setting::MemoryMax(MemoryLimit::Bytes(64)),
                to: Setting::MemoryMax(MemoryLimit::Bytes(128)),
            },
            took: Duration::ZERO,
            error: None,
            rollback: false,
        };
        ChangeRecord {
            sequence: 1,
            at: jiff::Timestamp::UNIX_EPOCH,
            pod: PodId {
                uid: "u".to_owned(),
                namespace: "a".to_owned(),
                name: "web".to_owned(),
            },
            cause,
            outcome,
            steps: vec![step],
            stages: Stages::default(),
        }
    }

    #[test]
    fn a_change_says_who_asked_and_what_the_files_hold() {
        let said = event_message(&record(Cause::OverrideEnded, Outcome::Applied)).unwrap();
        assert_eq!((said.severity, said.reason), (Severity::Normal, "ResourcesResized"));
        assert_eq!(said.message, "override ended: pod memory.max 64 → 128");
    }

    #[test]
    fn what_did_not_come_about_says_why() {
        let reason = "more than the node has".to_owned();
        let said = event_message(&record(Cause::Retry, Outcome::Refused { reason })).unwrap();
        assert_eq!((said.severity, said.reason), (Severity::Warning, "ResizeRefused"));
        assert_eq!(said.message, "retry: more than the node has");
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(event_message(&record(Cause::Sweep, Outcome::Unchanged)), None);
    }
}
