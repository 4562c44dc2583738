//! Composes the Events about changes, refusals and undone passes. Pure.
//!
//! An Event names the cause of a change, never the reason of a later pass: a change that succeeds later has the cause that
//! began it. A temporary limit has one Event from its first growth to its end. An Event about a resize through the API
//! server has the old and the new value of every amount, and comes with the record that the kubelet has carried it out.

use std::collections::BTreeMap;
use std::mem::take;

use crate::kubernetes::events::{NamedEvent, PodReference, Severity, Subject, shortened};
use crate::model::objects::PodUid;
use crate::model::{
    Cause, Change, ChangeRecord, Outcome, Requirements, Resource, Setting, StepRecord, Target, Withheld,
};

/// Composes Events from records, one after the other. Remembers only what concerns pods on the node.
#[derive(Debug, Default)]
pub(in crate::report) struct Composer(BTreeMap<PodUid, PodChanges>);

impl Composer {
    /// Forgets what concerns pods that have left the node.
    pub(in crate::report) fn retain(&mut self, is_here: impl Fn(&PodUid) -> bool) {
        self.0.retain(|uid, _| is_here(uid));
    }

    /// The Event about a record. A pass without steps, or with a retry at once, has none.
    pub(in crate::report) fn compose(&mut self, record: &ChangeRecord) -> Option<NamedEvent> {
        if let Cause::Hook { .. } = &record.cause {
            return hook_event(record);
        }
        self.0.entry(record.pod.uid.clone()).or_default().compose(record)
    }
}

/// What later Events about a pod tell of earlier records.
#[derive(Debug, Default)]
struct PodChanges {
    /// The cause of the change that is not done yet.
    unfinished: Option<Cause>,
    /// The amounts before and after the resize through the API server whose Event is still to come. Several patches may lead to one
    /// resize.
    resize: BTreeMap<Target, (Requirements, Requirements)>,
    /// The temporary limits by container and resource, each with the number of the record that began it, and with the limit before.
    temporary_limits: BTreeMap<(String, Resource), (u64, String)>,
}

impl PodChanges {
    fn compose(&mut self, record: &ChangeRecord) -> Option<NamedEvent> {
        let cause = self.cause_of(record);
        self.note_resize(record);
        if record.in_flight {
            tracing::debug!(pod = %record.pod, cause = %record.cause, "an Event waits for the kubelet to resize the pod");
            return None;
        }
        let amounts = record.outcome.holds().then(|| take(&mut self.resize));
        if amounts.is_some()
            && let Some(cause) = &cause
            && let Cause::Guard {
                container, resource, ..
            }
            | Cause::TemporaryLimitEnded { container, resource } = cause
        {
            return self.temporary_limit(record, cause, container, *resource);
        }
        let (severity, reason) = kind(&record.outcome, cause.as_ref())?;
        let details: Vec<_> = match amounts {
            Some(amounts) => texts(&amounts).chain(files(record)).collect(),
            None => record.outcome.reason().map(str::to_owned).into_iter().collect(),
        };
        let texts = cause.iter().map(ToString::to_string).chain([details.join(", ")]);
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        Some(event(record, severity, reason, &texts.join(": "), None))
    }

    /// Remembers the amounts that a record's patch changes. After a failure nothing of them is left to tell.
    fn note_resize(&mut self, record: &ChangeRecord) {
        let has_failed = matches!(record.outcome, Outcome::Refused(_) | Outcome::RolledBack(_));
        if has_failed || record.cause == Cause::Withdrawn {
            self.resize.clear();
        }
        for step in done(record) {
            if let Change::Resize { from, to } = &step.change {
                let amounts = self.resize.entry(step.target.clone()).or_insert((*from, *to));
                amounts.1 = *to;
            }
        }
    }

    /// The cause of the change; for a retry, the cause that began the change. `None` if the agent only checked the pod.
    fn cause_of(&mut self, record: &ChangeRecord) -> Option<Cause> {
        let cause = match wants_change(&record.cause) {
            true => Some(record.cause.clone()),
            false => self.unfinished.clone(),
        };
        let is_tried_again = match &record.outcome {
            _ if record.in_flight => true,
            Outcome::Applied | Outcome::RuntimeOwed(_) | Outcome::Unchanged | Outcome::Hook(_) => false,
            Outcome::Withheld(_) | Outcome::Interrupted(_) => true,
            // The agent does not retry a request of an operator or of the guard.
            Outcome::Refused(_) | Outcome::RolledBack(_) | Outcome::Incomplete(_) => {
                !matches!(cause, Some(Cause::Operator { .. } | Cause::Guard { .. }))
            }
        };
        if record.cause != Cause::Drift {
            self.unfinished = cause.clone().filter(|_| is_tried_again);
        }
        cause
    }

    /// The Event about a temporary limit that grew or shrank.
    fn temporary_limit(
        &mut self,
        record: &ChangeRecord,
        cause: &Cause,
        container: &str,
        resource: Resource,
    ) -> Option<NamedEvent> {
        let mut written = done(record).filter(|step| step.target.container() == Some(container));
        let (from, to) = written.find_map(|step| limits(step, resource))?;
        let grows = matches!(cause, Cause::Guard { .. });
        let limit = (container.to_owned(), resource);
        if grows {
            let first = || (record.sequence, from.clone());
            self.temporary_limits.entry(limit.clone()).or_insert_with(first);
        }
        let known = self.temporary_limits.get(&limit).cloned();
        let before = known.as_ref().map_or(from.as_str(), |(_, before)| before.as_str());
        let message = if grows {
            format!("{cause}: temporary {resource} limit {before} → {to}")
        } else {
            format!("{cause}: {resource} limit {from} → {to}")
        };
        let continues = known
            .as_ref()
            .map(|(number, _)| format!("{container} {resource} {number}"));
        if !grows && to == before {
            self.temporary_limits.remove(&limit);
        }
        Some(event(record, Severity::Normal, "TemporaryLimit", &message, continues))
    }
}

/// The Event about a hook that ran.
fn hook_event(record: &ChangeRecord) -> Option<NamedEvent> {
    let Outcome::Hook(end) = &record.outcome else {
        return None;
    };
    let severity = end.how.as_ref().map_or(Severity::Warning, |_| Severity::Normal);
    let message = format!("{}: {}", record.cause, record.outcome.reason().unwrap_or_default());
    Some(event(record, severity, record.outcome.word(), &message, None))
}

/// The severity and the reason of the Event about an outcome; `None` where there is nothing to tell yet, or the agent only checked the
/// pod.
const fn kind(outcome: &Outcome, cause: Option<&Cause>) -> Option<(Severity, &'static str)> {
    Some(match outcome {
        Outcome::Applied | Outcome::RuntimeOwed(_) | Outcome::Unchanged => match cause {
            None => return None,
            Some(Cause::Drift) => (Severity::Warning, "ResourcesRestored"),
            Some(Cause::Withdrawn) => (Severity::Normal, "ResizeWithdrawn"),
            Some(_) => (Severity::Normal, "ResourcesResized"),
        },
        Outcome::Withheld(Withheld::Deferred(_)) => (Severity::Warning, "ResizeDeferred"),
        Outcome::Withheld(Withheld::Infeasible(_)) => (Severity::Warning, "ResizeInfeasible"),
        Outcome::Withheld(Withheld::Failed(_)) => (Severity::Warning, "ResizeError"),
        Outcome::Withheld(Withheld::Unanswered(_) | Withheld::Postponed(_) | Withheld::SpecLater(_)) => return None,
        Outcome::Refused(_) => (Severity::Warning, "ResizeRefused"),
        Outcome::RolledBack(_) => (Severity::Warning, "ResizeRolledBack"),
        Outcome::Incomplete(_) => (Severity::Warning, "ResizeIncomplete"),
        Outcome::Interrupted(_) | Outcome::Hook(_) => return None,
    })
}

/// Whether the cause wants a change. The others make the agent check the pod again.
const fn wants_change(cause: &Cause) -> bool {
    use Cause::*;
    match cause {
        Recommendation { .. } | BoostEnded { .. } | Operator { .. } | Released { .. } | OverrideEnded => true,
        Guard { .. } | TemporaryLimitEnded { .. } | TemporaryLimitDenied { .. } => true,
        PodLevel | Drift | ChangeLost | FailedShrink { .. } | Withdrawn | OverrideKept { .. } => true,
        DriftInFlight | Sweep | Kubelet | ApiServerReturned | ContainerStarted | AgentStarted | Hook { .. } | Retry => {
            false
        }
    }
}

/// Events wait and are remembered, so nothing is kept that the API server would not take.
fn event(
    record: &ChangeRecord,
    severity: Severity,
    reason: &'static str,
    message: &str,
    continues: Option<String>,
) -> NamedEvent {
    NamedEvent {
        subject: Subject::Pod(PodReference {
            pod: record.pod.clone(),
            container: None,
            init: false,
        }),
        severity,
        reason,
        message: shortened(message),
        continues,
        ..NamedEvent::default()
    }
}

fn done(record: &ChangeRecord) -> impl Iterator<Item = &StepRecord> {
    let steps = record.steps.iter();
    steps.filter(|step| step.error.is_none() && !step.rollback)
}

/// A limit before and after a step, as text.
fn limits(step: &StepRecord, resource: Resource) -> Option<(String, String)> {
    let Change::File { from, to } = &step.change else {
        return None;
    };
    let shown = |setting: &Setting| match (resource, setting) {
        (Resource::Memory, Setting::MemoryMax(limit) | Setting::MemoryLimit(limit)) => {
            let bytes = limit.bounded();
            Some(bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string()))
        }
        (Resource::Cpu, Setting::CpuMax(_) | Setting::CfsQuota(_)) => Some(setting.to_string()),
        _ => None,
    };
    shown(from).zip(shown(to))
}

/// Every amount that changes, before and after.
fn texts(amounts: &BTreeMap<Target, (Requirements, Requirements)>) -> impl Iterator<Item = String> {
    let steps = amounts.iter().map(|(target, (from, to))| {
        let (from, to) = (*from, *to);
        format!("{target} {}", Change::Resize { from, to })
    });
    steps.filter(|text| text.contains('→'))
}

/// Every changed file, with its old and its new value.
fn files(record: &ChangeRecord) -> impl Iterator<Item = String> {
    let files = done(record).filter(|step| step.change.file().is_some());
    files.map(|step| format!("{} {}", step.target, step.change))
}

#[cfg(test)]
mod tests;
