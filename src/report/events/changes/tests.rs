//! What is said of changes.

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

fn composed(records: &[ChangeRecord]) -> Vec<NamedEvent> {
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
        assert_eq!(composer.0.len(), 1);
        let unfinished = composer.0.values().filter(|pod| pod.unfinished.is_some());
        (said, unfinished.count())
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
    let amounts =
        |cpu: &str| serde_json::from_value(serde_json::json!({"requests": {"cpu": cpu, "memory": "64Mi"}})).unwrap();
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
