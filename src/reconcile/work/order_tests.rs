//! Which of two causes a pass has, and when the next pass comes.

use super::*;
use crate::model::{Reason, Resource};

fn no_text() -> String {
    String::new()
}

fn recommended() -> Cause {
    Cause::Recommendation {
        vpa: no_text(),
        version: no_text(),
        reason: Reason::OutOfBounds,
    }
}

/// All causes, those that outrank others after them.
fn ranks() -> [Vec<Cause>; 11] {
    let (container, resource, reason, why) = (no_text, Resource::Memory, no_text, no_text);
    let hook = Cause::Hook {
        moment: "after-grow",
        container: container(),
    };
    let ended = Cause::TemporaryLimitEnded {
        container: container(),
        resource,
    };
    let denied = Cause::TemporaryLimitDenied {
        container: container(),
        why: why(),
    };
    let guard = Cause::Guard {
        container: container(),
        resource,
        why: None,
    };
    let (uid, pid) = (0, 1);
    let released = Cause::Released {
        uid,
        pid,
        reason: reason(),
    };
    let operator = Cause::Operator {
        uid,
        pid,
        reason: reason(),
    };
    let kept = Cause::OverrideKept {
        uid,
        pid,
        reason: reason(),
    };
    [
        vec![Cause::Sweep, hook],
        vec![Cause::Retry],
        vec![Cause::Drift, Cause::DriftInFlight],
        vec![Cause::AgentStarted],
        vec![Cause::Kubelet, Cause::ApiServerReturned],
        vec![Cause::ContainerStarted, Cause::PodLevel, kept],
        vec![Cause::OverrideEnded, ended, denied, Cause::Withdrawn, Cause::ChangeLost],
        vec![guard],
        vec![recommended(), Cause::BoostEnded { vpa: no_text() }],
        vec![operator, released],
        vec![Cause::FailedShrink { why: why() }],
    ]
}

#[test]
fn the_highest_cause_is_that_of_the_pass() {
    let (ranks, now) = (ranks(), Instant::now());
    let mut all = Vec::new();
    for (rank, causes) in ranks.iter().enumerate() {
        all.extend(causes.iter().map(|cause| (rank, cause)));
    }
    for (first, known) in &all {
        for (second, new) in &all {
            let mut work = WorkItem::default();
            work.request_pass((*known).clone(), false, now);
            work.request_pass((*new).clone(), false, now);
            let expected = if second > first { new } else { known };
            assert_eq!(&work.pending.unwrap().cause, *expected);
        }
    }
}

#[test]
fn each_outcome_schedules_the_next_pass() {
    let now = Now {
        fraction: 1.0,
        ..Now::read()
    };
    let check = |outcome: Outcome, [seconds, unread]: [u64; 2], expected: (Option<u128>, bool, bool)| {
        let mut work = WorkItem::default();
        let api = Report {
            retry_after: (seconds > 0).then(|| Duration::from_secs(seconds)),
            unread: unread > 0,
            ..Report::default()
        };
        let is_failure = work.ended(&outcome, &api, now).is_some();
        let retry = work.retry_at.map(|at| (at - now.instant).as_millis());
        assert_eq!((retry, is_failure, work.has_failed()), expected, "{outcome:?}");
    };
    let deferred = || Outcome::Withheld(Withheld::Deferred(no_text()));
    let spec_later = || Outcome::Withheld(Withheld::SpecLater(no_text()));
    check(Outcome::Applied, [0, 0], (None, false, false));
    // The API server is patched later.
    check(Outcome::Applied, [7, 0], (Some(8_500), false, false));
    check(deferred(), [0, 0], (None, false, false));
    check(deferred(), [2, 0], (Some(3_500), false, false));
    check(spec_later(), [0, 0], (None, false, false));
    check(spec_later(), [7, 0], (Some(8_000), false, false));
    // The API server has not shown the spec.
    check(Outcome::Unchanged, [0, 1], (Some(1_000), false, true));
    check(Outcome::Interrupted(no_text()), [7, 0], (Some(1_000), false, false));
    check(Outcome::Refused(no_text()), [0, 0], (Some(1_000), true, true));
    check(Outcome::Refused(no_text()), [7, 0], (Some(8_000), true, true));
}

#[test]
fn only_a_decision_took_time() {
    let (mut work, took) = (WorkItem::default(), Duration::from_secs(3));
    work.note_decided(took);
    assert_eq!(work.decided_in(&recommended()), took);
    assert_eq!(work.decided_in(&Cause::BoostEnded { vpa: no_text() }), took);
    assert_eq!(work.decided_in(&Cause::Sweep), Duration::ZERO);
}

#[test]
fn the_next_step_is_the_first_to_come() {
    let now = Instant::now();
    let says = |change: fn(&mut WorkItem, Instant), words: &str| {
        let mut work = WorkItem::default();
        change(&mut work, now);
        let said = work.next_step(now).unwrap_or_default();
        assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{said}");
    };
    says(|_, _| {}, "");
    let later = |work: &mut WorkItem, now| work.request_pass_after(Cause::Sweep, Duration::from_secs(20), now);
    says(later, "begins in 20 s");
    says(|work, now| work.request_pass(Cause::Sweep, true, now), "runs now");
    says(|work, now| work.retry_at = Some(now), "within a second");
    says(|work, now| work.retry_at = Some(now + Duration::from_secs(7)), "in 7 s");
}
