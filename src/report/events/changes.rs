//! Composes the Events about changes, refusals and undone passes. Pure.
//!
//! An Event names the cause of a change, never the reason of a later pass: a change that succeeds later has the cause that
//! began it. A temporary limit has one Event from its first growth to its end. An Event about a resize through the API
//! server has the old and the new value of every amount, and comes with the record that the kubelet has carried it out.

use std::collections::BTreeMap;

use super::counts::EventMessage;
use crate::kubernetes::events::{PodReference, Severity, Subject, shortened};
use crate::model::objects::PodUid;
use crate::model::{
    Cause, Change, ChangeRecord, Outcome, Requirements, Resource, Setting, StepRecord, Target, Withheld,
};

/// The pod, the container and the resource of a temporary limit.
type TemporaryLimit = (PodUid, String, Resource);

/// The limit that a change of this cause grows or lowers.
fn temporary_limit_of(uid: &PodUid, cause: &Cause) -> Option<TemporaryLimit> {
    let (Cause::Guard {
        container, resource, ..
    }
    | Cause::TemporaryLimitEnded { container, resource }) = cause
    else {
        return None;
    };
    Some((uid.clone(), container.clone(), *resource))
}

/// Composes Events from records, one after the other. Remembers only what concerns pods on the node.
#[derive(Debug, Default)]
pub(in crate::report) struct Composer {
    /// The causes of the changes that are not done yet, by the UIDs of the pods.
    unfinished: BTreeMap<PodUid, Cause>,
    /// The amounts before and after resizes through the API server whose Event is still to come, by the UIDs of the pods. Several
    /// patches may lead to one resize.
    resizes: BTreeMap<PodUid, BTreeMap<Target, (Requirements, Requirements)>>,
    /// The temporary limits, each with the number of the record that began it, and with the limit before.
    temporary_limits: BTreeMap<TemporaryLimit, (u64, String)>,
}

impl Composer {
    /// Forgets what concerns pods that have left the node.
    pub(in crate::report) fn retain(&mut self, is_here: impl Fn(&PodUid) -> bool) {
        self.unfinished.retain(|uid, _| is_here(uid));
        self.resizes.retain(|uid, _| is_here(uid));
        self.temporary_limits.retain(|(uid, ..), _| is_here(uid));
    }

    /// The Event about a record. A pass without steps, or with a retry at once, has none.
    pub(in crate::report) fn compose(&mut self, record: &ChangeRecord) -> Option<EventMessage> {
        if let Cause::Hook { .. } = &record.cause {
            return hook_event(record);
        }
        let cause = self.cause_of(record);
        self.note_resize(record);
        if record.in_flight {
            tracing::debug!(pod = %record.pod, cause = %record.cause, "an Event waits for the kubelet to resize the pod");
            return None;
        }
        let amounts = record.outcome.holds().then(|| self.resizes.remove(&record.pod.uid));
        if record.outcome.holds()
            && let Some(cause) = &cause
            && let Some(limit) = temporary_limit_of(&record.pod.uid, cause)
        {
            return self.temporary_limit(record, cause, &limit);
        }
        let (severity, reason) = kind(&record.outcome, cause.as_ref())?;
        let details: Vec<_> = match amounts {
            Some(amounts) => texts(&amounts.unwrap_or_default()).chain(files(record)).collect(),
            None => record.outcome.reason().map(str::to_owned).into_iter().collect(),
        };
        let texts = cause.iter().map(ToString::to_string).chain([details.join(", ")]);
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        Some(event(record, severity, reason, &texts.join(": "), None))
    }

    /// Remembers the amounts that a record's patch changes. After a failure nothing of them is left to tell.
    fn note_resize(&mut self, record: &ChangeRecord) {
        let uid = &record.pod.uid;
        let has_failed = matches!(record.outcome, Outcome::Refused(_) | Outcome::RolledBack(_));
        if has_failed || record.cause == Cause::Withdrawn {
            self.resizes.remove(uid);
        }
        for step in done(record) {
            if let Change::Resize { from, to } = &step.change {
                let resize = self.resizes.entry(uid.clone()).or_default();
                let amounts = resize.entry(step.target.clone()).or_insert((*from, *to));
                amounts.1 = *to;
            }
        }
    }

    /// The cause of the change; for a retry, the cause that began the change. `None` if the agent only checked the pod.
    fn cause_of(&mut self, record: &ChangeRecord) -> Option<Cause> {
        let uid = &record.pod.uid;
        let cause = match wants_change(&record.cause) {
            true => Some(record.cause.clone()),
            false => self.unfinished.get(uid).cloned(),
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
            self.unfinished.remove(uid);
            let unfinished = cause.clone().filter(|_| is_tried_again);
            self.unfinished.extend(unfinished.map(|cause| (uid.clone(), cause)));
        }
        cause
    }

    /// The Event about a temporary limit that grew or shrank.
    fn temporary_limit(
        &mut self,
        record: &ChangeRecord,
        cause: &Cause,
        limit: &TemporaryLimit,
    ) -> Option<EventMessage> {
        let (_, container, resource) = limit;
        let mut written = done(record).filter(|step| step.target.container() == Some(container.as_str()));
        let (from, to) = written.find_map(|step| limits(step, *resource))?;
        let grows = matches!(cause, Cause::Guard { .. });
        if grows {
            let first = || (record.sequence, from.clone());
            self.temporary_limits.entry(limit.clone()).or_insert_with(first);
        }
        let known = self.temporary_limits.get(limit).cloned();
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
            self.temporary_limits.remove(limit);
        }
        Some(event(record, Severity::Normal, "TemporaryLimit", &message, continues))
    }
}

/// The Event about a hook that ran.
fn hook_event(record: &ChangeRecord) -> Option<EventMessage> {
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
) -> EventMessage {
    EventMessage {
        subject: Subject::Pod(PodReference {
            pod: record.pod.clone(),
            container: None,
            init: false,
        }),
        severity,
        reason,
        message: shortened(message),
        continues,
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{HookEnd, MemoryLimit, MilliCpu, Reason, Stages, Target};

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
                uid: "u".into(),
                namespace: "a".to_owned(),
                name: "web".to_owned(),
            },
            cause,
            outcome,
            in_flight: false,
            steps: vec![step],
            stages: Stages::default(),
        }
    }

    fn composed(records: &[ChangeRecord]) -> Vec<EventMessage> {
        let mut composer = Composer::default();
        records.iter().filter_map(|record| composer.compose(record)).collect()
    }

    fn refused() -> Outcome {
        Outcome::Refused("more than the node has".to_owned())
    }

    #[test]
    fn a_message_is_no_longer_than_an_events() {
        let refused = Outcome::Refused("x".repeat(64 << 10));
        let said = &composed(&[record(Cause::OverrideEnded, refused)])[0];
        assert!(said.message.len() <= 1024, "{}", said.message.len());
    }

    #[test]
    fn a_change_names_its_cause_and_the_files() {
        let said = &composed(&[record(Cause::OverrideEnded, Outcome::Applied)])[0];
        assert_eq!((said.severity, said.reason), (Severity::Normal, "ResourcesResized"));
        assert_eq!(said.message, "override ended: pod memory.max 64 → 128");
    }

    #[test]
    fn a_late_success_has_its_first_cause() {
        let recommended = recommended();
        let postponed = Outcome::Withheld(Withheld::Unanswered("not yet".to_owned()));
        let said = composed(&[
            record(recommended.clone(), postponed),
            record(Cause::Retry, refused()),
            record(Cause::Kubelet, Outcome::Applied),
            record(Cause::Kubelet, Outcome::Applied),
            record(Cause::Retry, Outcome::Applied),
        ]);
        let told: Vec<_> = said.iter().map(|said| (said.reason, said.message.as_str())).collect();
        let (no, yes) = (
            format!("{recommended}: more than the node has"),
            format!("{recommended}: pod memory.max 64 → 128"),
        );
        assert_eq!(
            told,
            [("ResizeRefused", no.as_str()), ("ResourcesResized", yes.as_str())]
        );
    }

    #[test]
    fn no_event_names_an_internal_cause() {
        let internal = [
            Cause::Retry,
            Cause::Kubelet,
            Cause::DriftInFlight,
            Cause::Sweep,
            Cause::AgentStarted,
            Cause::ContainerStarted,
            Cause::ApiServerReturned,
        ];
        for cause in internal {
            let words = cause.to_string();
            assert_eq!(composed(&[record(cause.clone(), Outcome::Applied)]), [], "{words}");
            let said = composed(&[record(cause, refused())]);
            assert_eq!(said[0].message, "more than the node has");
        }
    }

    #[test]
    fn a_temporary_limit_has_one_event() {
        let lent = |sequence, cause, from: u64, to: u64| {
            let mut record = record(cause, Outcome::Applied);
            record.sequence = sequence;
            record.steps[0].target = Target::Container("app".into());
            record.steps[0].change = Change::File {
                from: Setting::MemoryMax(MemoryLimit::Bytes(from << 20)),
                to: Setting::MemoryMax(MemoryLimit::Bytes(to << 20)),
            };
            record
        };
        let grew = || Cause::Guard {
            container: "app".to_owned(),
            resource: Resource::Memory,
            why: Some("used 127Mi".to_owned()),
        };
        let ended = || Cause::TemporaryLimitEnded {
            container: "app".to_owned(),
            resource: Resource::Memory,
        };
        let mut asked = lent(3, grew(), 160, 160);
        asked.steps.clear();
        let said = composed(&[
            lent(1, grew(), 128, 160),
            asked,
            lent(4, grew(), 160, 192),
            lent(5, ended(), 192, 150),
            lent(6, ended(), 150, 128),
            lent(9, grew(), 128, 160),
        ]);
        let stories: Vec<_> = said.iter().filter_map(|said| said.continues.as_deref()).collect();
        let first = "app memory 1";
        assert_eq!(stories, [first, first, first, first, "app memory 9"]);
        assert!(said.iter().all(|said| said.reason == "TemporaryLimit"));
        let text = &said[1].message;
        assert!(text.contains("used 127Mi") && text.ends_with("128Mi → 192Mi"), "{text}");
        assert!(said[3].message.ends_with("150Mi → 128Mi"), "{}", said[3].message);
    }

    #[test]
    fn ended_pods_leave_room() {
        let recommended = recommended();
        let mut composer = Composer::default();
        let mut compose = |number: u32, cause: Cause, outcome: Outcome| {
            let mut record = record(cause, outcome);
            record.pod.uid = number.to_string().into();
            composer.retain(|uid| **uid == *number.to_string());
            let said = composer.compose(&record);
            (said, composer.unfinished.len())
        };
        let mut last = 0;
        for number in 0..2000 {
            let deferred = Outcome::Withheld(Withheld::Deferred("no room".to_owned()));
            assert_eq!(compose(number, recommended.clone(), deferred).1, 1);
            last = number;
        }
        let (said, unfinished) = compose(last, Cause::Retry, Outcome::Applied);
        let text = said.unwrap().message;
        assert!(text.starts_with(&recommended.to_string()), "{text}");
        assert_eq!(unfinished, 0);
    }

    /// A record with a patch of the container's cpu request.
    fn resized(cause: Cause, outcome: Outcome) -> ChangeRecord {
        let amounts = |cpu: &str| {
            serde_json::from_value(serde_json::json!({"requests": {"cpu": cpu, "memory": "64Mi"}})).unwrap()
        };
        let mut record = record(cause, outcome);
        record.steps[0].target = Target::Container("app".into());
        record.steps[0].change = Change::Resize {
            from: amounts("100m"),
            to: amounts("250m"),
        };
        record
    }

    fn recommended() -> Cause {
        Cause::Recommendation {
            vpa: "web".to_owned(),
            version: "7".to_owned(),
            reason: Reason::OutOfBounds,
        }
    }

    /// The record while the kubelet has not carried it out.
    fn in_flight(record: &ChangeRecord) -> ChangeRecord {
        ChangeRecord {
            in_flight: true,
            ..record.clone()
        }
    }

    #[test]
    fn a_resize_is_said_when_all_agree() {
        let done = resized(recommended(), Outcome::Applied);
        let said = composed(&[in_flight(&done), done]);
        assert_eq!(said.len(), 1);
        assert_eq!(
            said[0].message,
            format!("{}: container app requests.cpu 100m → 250m", recommended())
        );
    }

    #[test]
    fn a_resize_the_kubelet_refuses_is_unsaid() {
        let infeasible = Outcome::Withheld(Withheld::Infeasible("static policy".to_owned()));
        let mut withheld = record(Cause::Kubelet, infeasible);
        withheld.steps.clear();
        let said = composed(&[in_flight(&resized(recommended(), Outcome::Applied)), withheld]);
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].reason, "ResizeInfeasible");
        let patched = in_flight(&resized(recommended(), Outcome::Applied));
        let [refused, applied] = [refused(), Outcome::Applied].map(|outcome| record(Cause::Retry, outcome));
        let said = composed(&[patched, refused, applied]);
        assert_eq!(said[1].message, format!("{}: pod memory.max 64 → 128", recommended()));
    }

    #[test]
    fn only_what_is_tried_again_keeps_its_cause() {
        let (uid, pid, reason) = (0, 1, "more".to_owned());
        for (cause, told) in [(recommended(), 3), (Cause::Operator { uid, pid, reason }, 2)] {
            let [drift, retry] = [Cause::Drift, Cause::Retry].map(|cause| record(cause, Outcome::Applied));
            let said = composed(&[record(cause, refused()), drift, retry]);
            assert_eq!(said.len(), told, "{said:?}");
        }
    }

    #[test]
    fn a_resize_in_two_passes_says_every_amount() {
        let unanswered = Outcome::Withheld(Withheld::Unanswered("no answer".to_owned()));
        let mut carried_out = record(Cause::Kubelet, Outcome::Unchanged);
        carried_out.steps.clear();
        let mut second = resized(Cause::Retry, unanswered.clone());
        if let Change::Resize { from, to } = &mut second.steps[0].change {
            (*from, to.requests.cpu) = (*to, Some(MilliCpu::new(300)));
        }
        let said = composed(&[resized(recommended(), unanswered), second, carried_out]);
        assert_eq!(said.len(), 1);
        assert_eq!(
            said[0].message,
            format!("{}: container app requests.cpu 100m → 300m", recommended())
        );
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(composed(&[record(Cause::Sweep, Outcome::Unchanged)]), []);
    }

    #[test]
    fn each_outcome_has_its_reason() {
        let why = || "why".to_owned();
        let withheld = Outcome::Withheld;
        let (uid, pid, reason) = (0, 1, why());
        let kept = Cause::OverrideKept { uid, pid, reason };
        for (cause, outcome, told) in [
            (kept, Outcome::Applied, Some((Severity::Normal, "ResourcesResized"))),
            (
                Cause::Drift,
                Outcome::Applied,
                Some((Severity::Warning, "ResourcesRestored")),
            ),
            (
                Cause::Withdrawn,
                Outcome::Applied,
                Some((Severity::Normal, "ResizeWithdrawn")),
            ),
            (
                recommended(),
                Outcome::RuntimeOwed(why()),
                Some((Severity::Normal, "ResourcesResized")),
            ),
            (
                recommended(),
                withheld(Withheld::Deferred(why())),
                Some((Severity::Warning, "ResizeDeferred")),
            ),
            (
                recommended(),
                withheld(Withheld::Infeasible(why())),
                Some((Severity::Warning, "ResizeInfeasible")),
            ),
            (
                recommended(),
                withheld(Withheld::Failed(why())),
                Some((Severity::Warning, "ResizeError")),
            ),
            (recommended(), withheld(Withheld::Unanswered(why())), None),
            (recommended(), withheld(Withheld::Postponed(why())), None),
            (recommended(), withheld(Withheld::SpecLater(why())), None),
            (
                recommended(),
                Outcome::Refused(why()),
                Some((Severity::Warning, "ResizeRefused")),
            ),
            (
                recommended(),
                Outcome::RolledBack(why()),
                Some((Severity::Warning, "ResizeRolledBack")),
            ),
            (
                recommended(),
                Outcome::Incomplete(why()),
                Some((Severity::Warning, "ResizeIncomplete")),
            ),
            (recommended(), Outcome::Interrupted(why()), None),
        ] {
            let word = outcome.word();
            let said = composed(&[record(cause, outcome)]);
            assert_eq!(said.first().map(|said| (said.severity, said.reason)), told, "{word}");
        }
        let failed = &composed(&[record(recommended(), Outcome::Incomplete(why()))])[0];
        assert_eq!(failed.message, format!("{}: why", recommended()));
        let Subject::Pod(about) = &failed.subject else {
            panic!("about the node")
        };
        assert_eq!((about.pod.name.as_str(), &about.container), ("web", &None));
    }

    #[test]
    fn a_hook_is_told_with_its_end() {
        let hook = |how| {
            let cause = Cause::Hook {
                moment: "before-shrink",
                container: "app".to_owned(),
            };
            let (output, evidence) = ("secret".to_owned(), None);
            record(cause, Outcome::Hook(HookEnd { how, output, evidence }))
        };
        let said = composed(&[hook(Ok("exit code 0".to_owned())), hook(Err("it timed out".to_owned()))]);
        let told: Vec<_> = said
            .iter()
            .map(|said| (said.severity, said.reason, said.message.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (
                    Severity::Normal,
                    "HookRan",
                    "hook before-shrink in container app: exit code 0"
                ),
                (
                    Severity::Warning,
                    "HookFailed",
                    "hook before-shrink in container app: it timed out"
                ),
            ]
        );
    }
}
