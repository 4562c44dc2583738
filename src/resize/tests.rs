use super::*;
use crate::model::objects::{Container, ContainerStatus, ResizePolicy};
use crate::model::{Bytes, Cause, NamedRequirements, Requirements};

impl Resize {
    /// The spec from before the cgroups were written ahead of it.
    pub(crate) const fn written_ahead(&self) -> Option<&PodAmounts> {
        self.written_ahead.as_ref()
    }
}

fn of(limit: u64) -> Requirements {
    let mut has = Requirements::default();
    has.limits.memory = Some(Bytes::new(limit));
    has
}

fn named(limit: u64) -> PodAmounts {
    PodAmounts::from_iter([NamedRequirements::new("app", of(limit))])
}

/// The limits of two containers.
fn both(app: u64, side: u64) -> PodAmounts {
    let mut both = named(app);
    both.containers.extend(named(side).containers);
    both.containers[1].name = "side".to_owned();
    both
}

/// A pod whose spec was given this limit, which its kubelet has not written yet.
fn asked(limit: u64) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.generation = 2;
    pod.spec.containers = vec![Container {
        name: "app".to_owned(),
        resources: of(limit),
        ..Container::default()
    }];
    pod.status.observed_generation = 1;
    pod.status.container_statuses = vec![ContainerStatus {
        name: "app".to_owned(),
        resources: Some(of(200)),
        ..ContainerStatus::default()
    }];
    pod
}

fn accepted(limit: u64, generation: i64, held: PodAmounts) -> Resize {
    Resize {
        accepted: Some(Request {
            targets: named(limit),
            generation,
            held,
            ..Request::default()
        }),
        ..Resize::default()
    }
}

#[test]
fn each_request_outlasts_its_agent() {
    let mut resize = Resize {
        prepared: Some(Request {
            targets: named(300),
            generation: 0,
            held: named(50),
            before: named(60),
            earlier: vec![named(100)],
        }),
        written_ahead: Some(named(70)),
        ..accepted(200, 3, named(40))
    };
    if let Some(accepted) = &mut resize.accepted {
        accepted.before = named(30);
    }
    let text = serde_json::to_string(&resize.saved()).unwrap();
    assert_eq!(serde_json::from_str::<Resize>(&text).unwrap(), resize, "{text}");
    let mut earlier = serde_json::to_value(&resize).unwrap();
    earlier["writtenAhead"] = serde_json::json!({"spec": named(70)});
    assert_eq!(serde_json::from_value::<Resize>(earlier).unwrap(), resize);
}

#[test]
fn a_late_kubelet_may_lower_a_grown_limit() {
    let mut pod = asked(100);
    let nothing = Resize::default();
    assert!(nothing.is_about_to_lower(&pod, [("app", 101)]));
    assert!(!nothing.is_about_to_lower(&pod, [("app", 100)]));
    assert!(!nothing.is_about_to_lower(&pod, [("other", 101)]));
    let unseen = accepted(150, 3, PodAmounts::default());
    assert!(!unseen.is_about_to_lower(&pod, [("app", 120)]), "asked for more since");
    assert!(unseen.is_about_to_lower(&pod, [("app", 151)]));
    pod.status.observed_generation = 2;
    assert!(!nothing.is_about_to_lower(&pod, [("app", 101)]), "it has written it");
}

#[test]
fn no_amount_of_the_pod_is_taken_away() {
    let mut pod = asked(100);
    pod.spec.resources = Some(of(500));
    pod.status.resources = Some(Requirements::default());
    let mut wanted = pod.requirements();
    wanted.pod = Some(Box::default());
    let refused = changes(&pod, &wanted).unwrap_err();
    assert!(refused.starts_with("pod: its limits.memory of 500 cannot"), "{refused}");
}

#[test]
fn a_filled_in_amount_is_no_edit() {
    let grant = || Grant {
        follows: Some(named(100)),
        ..Grant::default()
    };
    let mut read = asked(100);
    read.spec.containers[0].resources.limits.cpu = Some(crate::model::MilliCpu::new(500));
    let compared = |read: &Pod| grant().was_read(Ok(read), &mut Report::default());
    assert_eq!(compared(&read), Act::Write(Grant::default()), "a LimitRange's default");
    read.spec.containers[0].resources = of(150);
    assert!(matches!(compared(&read), Act::End { .. }));
}

#[test]
fn a_request_with_filled_in_amounts_is_ours() {
    let (resize, mut pod) = (accepted(100, 2, named(200)), asked(100));
    pod.spec.containers[0].resources.limits.cpu = Some(crate::model::MilliCpu::new(500));
    assert!(resize.is_ours(&pod), "a LimitRange's default");
    pod.spec.containers[0].resources.limits.memory = Some(Bytes::new(150));
    assert!(!resize.is_ours(&pod));
}

#[test]
fn the_fallback_is_the_latest_settled_spec() {
    let mut pod = asked(100);
    pod.status.observed_generation = 2;
    let mut resize = accepted(100, 2, named(200));
    resize.observe_settled(&pod);
    // Somebody else asks for something that the node has no room for.
    pod.metadata.generation = 3;
    pod.spec.containers[0].resources = of(300);
    pod.status.conditions = vec![crate::model::objects::PodCondition {
        kind: "PodResizePending".to_owned(),
        status: "True".to_owned(),
        reason: "Deferred".to_owned(),
        observed_generation: 3,
        ..crate::model::objects::PodCondition::default()
    }];
    resize.observe_settled(&pod);
    let held = resize.accepted.as_ref().map(|accepted| &accepted.held);
    assert_eq!(granted(&pod, &ResizePhase::of(&pod), held), named(100));
}

#[test]
fn each_unanswered_request_is_recognised() {
    let mut resize = Resize {
        prepared: Some(Request {
            targets: named(300),
            generation: 0,
            held: named(50),
            before: named(50),
            earlier: vec![named(100), named(200)],
        }),
        ..Resize::default()
    };
    let mut seen = |limit, generation| {
        let mut pod = asked(limit);
        pod.metadata.generation = generation;
        resize.recognise(&pod);
        (resize.is_spec_of(&pod), resize.prepared.is_some())
    };
    assert_eq!(seen(200, 2), (true, true));
    assert_eq!(seen(100, 3), (false, true), "it was asked for before that");
    assert_eq!(seen(300, 4), (true, false));
}

#[test]
fn mixed_unanswered_requests_are_recognised() {
    let unanswered = Resize {
        prepared: Some(Request {
            targets: both(100, 200),
            generation: 0,
            held: both(100, 100),
            before: both(100, 100),
            earlier: vec![both(300, 100)],
        }),
        ..Resize::default()
    };
    let is_ours = |app: u64, side: u64| {
        let mut pod = asked(app);
        let other = Container {
            name: "side".to_owned(),
            resources: of(side),
            ..Container::default()
        };
        pod.spec.containers.push(other);
        let mut resize = unanswered.clone();
        resize.recognise(&pod);
        resize.is_spec_of(&pod)
    };
    assert!(is_ours(300, 200), "the second patch has nothing of the first container");
    assert!(!is_ours(100, 100), "nothing was carried out yet");
    assert!(!is_ours(300, 201) && !is_ours(301, 200), "somebody else's");
}

/// The kubelet has not allocated the first container's request, and the one for the second container has no answer.
#[test]
fn an_unanswered_request_hides_no_open_one() {
    let mut pod = asked(300);
    pod.spec.containers.push(Container {
        name: "side".to_owned(),
        resources: of(100),
        ..Container::default()
    });
    let mut resize = Resize {
        accepted: Some(Request {
            targets: both(300, 100),
            generation: 2,
            held: both(200, 100),
            ..Request::default()
        }),
        prepared: Some(Request {
            targets: both(300, 150),
            held: both(200, 100),
            before: both(300, 100),
            ..Request::default()
        }),
        ..Resize::default()
    };
    let without = resize.without_requests(&pod).unwrap();
    assert!(without.same(&both(200, 100)), "{without:?}");
    // The API server has carried it out.
    pod.metadata.generation = 3;
    pod.spec.containers[1].resources = of(150);
    resize.recognise(&pod);
    assert!(resize.is_known_in(&pod));
    let without = resize.without_requests(&pod).unwrap();
    assert!(without.same(&both(200, 100)), "{without:?}");
}

#[test]
fn a_request_after_no_answer_reads_first() {
    let pod = asked(100);
    let next = |resize: &Resize, limit| resize.next(&pod, &named(limit), &Cause::Sweep, &Facts::default());
    let reads_first = |act: &Act| matches!(act, Act::Patch(Patch { reads_first: true, .. }));
    for (error, unanswered) in [
        (ResizeError::Away(String::new()), true),
        (
            ResizeError::Refused {
                reason: String::new(),
                retry_after: None,
            },
            true,
        ),
        (ResizeError::Denied(String::new()), false),
        (
            ResizeError::Unsupported {
                why: String::new(),
                everywhere: true,
            },
            false,
        ),
    ] {
        let mut resize = Resize::default();
        let act = next(&resize, 300);
        assert!(!reads_first(&act), "{act}");
        resize.begins(&pod, &act, true);
        let report = Report {
            answer: Some(Err(error.clone())),
            ..Report::default()
        };
        let outcome = Outcome::Refused(String::new());
        resize.answered(&pod, &report, &outcome, false, Instant::now());
        assert_eq!(resize.is_known_in(&pod), !unanswered, "{error:?}");
        assert_eq!(reads_first(&next(&resize, 400)), unanswered, "{error:?}");
    }
}

#[test]
fn a_restored_etcd_has_forgotten_the_request() {
    let (pod, mut resize) = (asked(100), accepted(300, 5, named(100)));
    let outcome = Outcome::Withheld(Withheld::Unanswered(String::new()));
    for forgotten in [false, true] {
        let report = Report {
            forgotten,
            ..Report::default()
        };
        resize.answered(&pod, &report, &outcome, false, Instant::now());
        assert_eq!(resize.unseen(&pod).is_none(), forgotten);
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn growth_is_patched_once_calm_or_in_danger() {
    let now = Instant::now();
    let too_early = |calm, about_to_lower, since: Option<Duration>| {
        let resize = Resize {
            accepted_at: since.map(|since| now.checked_sub(since).unwrap()),
            ..Resize::default()
        };
        resize.too_early(calm, about_to_lower, now)
    };
    assert_eq!(too_early(Duration::ZERO, false, None), None);
    assert_eq!(too_early(5 * SECOND, false, Some(SECOND)), Some(5 * SECOND));
    assert_eq!(too_early(5 * SECOND, true, None), None);
    assert_eq!(too_early(5 * SECOND, true, Some(2 * SECOND)), None);
    // A limit that grows every few milliseconds is no reason to ask as often.
    assert_eq!(too_early(5 * SECOND, true, Some(SECOND / 4)), Some(SECOND * 3 / 4));
    assert_eq!(too_early(SECOND / 2, true, Some(Duration::ZERO)), Some(SECOND / 2));
}

#[test]
fn an_inherited_limit_restarts_nothing() {
    let mut pod = asked(100);
    pod.spec.containers.push(Container {
        name: "side".to_owned(),
        resize_policy: vec![ResizePolicy {
            resource_name: "memory".to_owned(),
            restart_policy: "RestartContainer".to_owned(),
        }],
        ..Container::default()
    });
    pod.spec.resources = Some(of(500));
    let wanted = PodAmounts {
        pod: Some(Box::new(of(600))),
        ..PodAmounts::default()
    };
    let error = changes(&pod, &wanted).unwrap_err();
    let words = "pod: its limits.memory stays 500 instead of 600: container side has no memory limit of its own";
    assert!(error.contains(words), "{error}");
    pod.spec.containers[1].resources = of(300);
    assert_eq!(changes(&pod, &wanted).unwrap().len(), 1, "a limit of its own");
    pod.spec.containers[1].resources = Requirements::default();
    pod.spec.containers[1].resize_policy.clear();
    assert_eq!(changes(&pod, &wanted).unwrap().len(), 1, "no restart");
}

#[test]
fn each_failed_patch_has_its_end() {
    let pod = asked(100);
    let act = Resize::default().next(&pod, &named(300), &Cause::Sweep, &Facts::default());
    let Act::Patch(patch) = act else {
        panic!("the node may have room")
    };
    let ended = |error: &ResizeError| {
        let mut report = Report::default();
        let act = patch.answered(Err(error), None, &mut report);
        (act, report.unsupported)
    };
    let why = String::new;
    for everywhere in [true, false] {
        let error = ResizeError::Unsupported { why: why(), everywhere };
        assert_eq!(ended(&error), (Act::Direct, everywhere));
    }
    let refused = ResizeError::Refused {
        reason: why(),
        retry_after: Some(7 * SECOND),
    };
    let unanswered = |why| Outcome::Withheld(Withheld::Unanswered(why));
    let words = |error: &ResizeError| error.to_string();
    let [altered, gone] = [ResizeError::Altered(why()), ResizeError::Gone(why())];
    let cases = [
        (Outcome::Refused(words(&refused)), refused, Some(7 * SECOND)),
        (Outcome::Refused(words(&altered)), altered, None),
        (Outcome::Interrupted(words(&gone)), gone, None),
        (unanswered(words(&ResizeError::Stale)), ResizeError::Stale, Some(SECOND)),
    ];
    for (outcome, error, retry_after) in cases {
        let end = Act::End {
            outcome,
            retry_after,
            no_room: false,
        };
        assert_eq!(ended(&error), (end, false), "{error:?}");
    }
    let denied = Grant {
        targets: named(200),
        ..Grant::default()
    };
    assert_eq!(ended(&ResizeError::Denied(why())).0, Act::Write(denied), "what it held");
    let (Act::Write(later), _) = ended(&ResizeError::Away(why())) else {
        panic!("the spec follows later")
    };
    assert_eq!((later.targets, later.retry_after), (named(200), Some(SECOND)));
    assert!(matches!(later.withheld, Some(Withheld::SpecLater(_))));
}

#[test]
fn an_unread_pod_is_read_later() {
    let (pod, wait) = (asked(100), Some(7 * SECOND));
    let grant = |follows: Option<PodAmounts>, retry_after| Grant {
        targets: named(100),
        follows,
        retry_after,
        ..Grant::default()
    };
    let read = |answer: Result<&Pod, &ResizeError>| {
        let mut report = Report::default();
        let act = grant(Some(pod.requirements()), Some(SECOND)).was_read(answer, &mut report);
        (act, report.unread)
    };
    let written = |retry_after| Act::Write(grant(None, retry_after));
    assert_eq!(read(Ok(&pod)), (written(Some(SECOND)), false));
    let refused = ResizeError::Refused {
        reason: String::new(),
        retry_after: wait,
    };
    assert_eq!(read(Err(&refused)), (written(wait), true));
    let away = ResizeError::Away(String::new());
    assert_eq!(
        read(Err(&away)),
        (written(Some(SECOND)), true),
        "a kubelet that reclaims is helped"
    );
    let denied = ResizeError::Denied(String::new());
    assert_eq!(read(Err(&denied)), (written(Some(SECOND)), false));
    let gone = read(Err(&ResizeError::Gone("gone".to_owned()))).0;
    let interrupted = Outcome::Interrupted("gone".to_owned());
    assert!(
        matches!(&gone, Act::End { outcome, .. } if *outcome == interrupted),
        "{gone}"
    );
    let (changed, _) = read(Ok(&asked(101)));
    let waits = matches!(
        &changed,
        Act::End {
            outcome: Outcome::Withheld(Withheld::Unanswered(_)),
            retry_after: Some(_),
            ..
        }
    );
    assert!(waits, "another client's change is not written over: {changed}");
}

/// A pod that has this request and limit, which its kubelet has carried out.
fn carried_out(amount: u64) -> Pod {
    let mut pod = asked(amount);
    pod.status.observed_generation = 2;
    pod.spec.containers[0].resources = of(amount).with_requests();
    pod.status.container_statuses[0].resources = Some(of(amount).with_requests());
    pod
}

fn requested(amount: u64) -> PodAmounts {
    carried_out(amount).requirements()
}

#[test]
fn an_accepted_request_delays_the_next() {
    let (mut resize, now) = (Resize::default(), Instant::now());
    let accepted = Request {
        targets: named(100),
        generation: 2,
        held: named(200),
        ..Request::default()
    };
    let report = Report {
        answer: Some(Ok(accepted)),
        ..Report::default()
    };
    resize.answered(&asked(100), &report, &Outcome::Applied, false, now);
    assert_eq!(resize.too_early(5 * SECOND, true, now), Some(SECOND));
    assert_eq!(resize.too_early(5 * SECOND, true, now + SECOND), None);
    let next_agents = resize.saved();
    assert_eq!(next_agents.too_early(5 * SECOND, true, now), None);
}

#[test]
fn an_infeasible_request_lowers_nothing() {
    let mut pod = asked(100);
    pod.status.observed_generation = 2;
    for (reason, lowers) in [("Infeasible", false), ("Deferred", true)] {
        pod.status.conditions = vec![crate::model::objects::PodCondition {
            kind: "PodResizePending".to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            observed_generation: 2,
            ..crate::model::objects::PodCondition::default()
        }];
        let resize = Resize::default();
        assert_eq!(resize.is_about_to_lower(&pod, [("app", 101)]), lowers, "{reason}");
    }
}

#[test]
fn amounts_ahead_of_the_spec_outlast_a_failed_patch() {
    let ahead = Resize {
        written_ahead: Some(requested(100)),
        ..Resize::default()
    };
    let facts = Facts {
        by_hand: Some(requested(300)),
        ..Facts::default()
    };
    let Act::Patch(patch) = ahead.next(&carried_out(100), &requested(300), &Cause::Sweep, &facts) else {
        panic!("the node may have room")
    };
    let refused = |retry_after| ResizeError::Refused {
        reason: String::new(),
        retry_after,
    };
    for (error, wait) in [
        (ResizeError::Stale, SECOND),
        (refused(Some(7 * SECOND)), 7 * SECOND),
        (refused(None), SECOND),
        (ResizeError::Away(String::new()), SECOND),
    ] {
        let Act::Write(grant) = patch.answered(Err(&error), None, &mut Report::default()) else {
            panic!("{error:?} ends the pass")
        };
        assert!(matches!(grant.withheld, Some(Withheld::SpecLater(_))), "{error:?}");
        let kept = (requested(300), Some(wait), true);
        assert_eq!((grant.targets, grant.retry_after, grant.ahead), kept, "{error:?}");
    }
}

#[test]
fn a_denied_read_says_nothing_of_the_request() {
    let pod = carried_out(100);
    let unanswered = Resize {
        prepared: Some(Request {
            targets: requested(300),
            held: requested(100),
            before: requested(100),
            ..Request::default()
        }),
        ..Resize::default()
    };
    let act = unanswered.next(&pod, &requested(100), &Cause::Sweep, &Facts::default());
    let mut begun = unanswered.clone();
    begun.begins(&pod, &act, true);
    assert_eq!(begun, unanswered, "it only reads");
    let Act::Patch(read) = act else { panic!("{act}") };
    assert!(read.changes.is_empty() && read.reads_first && read.ahead);
    let denied = ResizeError::Denied(String::new());
    let Act::Write(grant) = read.answered(Err(&denied), None, &mut Report::default()) else {
        panic!("the cgroups keep what was granted")
    };
    assert_eq!((grant.targets, grant.retry_after), (requested(100), Some(5 * SECOND)));
    assert!(matches!(grant.withheld, Some(Withheld::SpecLater(_))));
}

#[test]
fn only_an_emergency_writes_without_a_read() {
    let pod = carried_out(100);
    let why = String::new();
    for (cause, reads) in [(Cause::Sweep, true), (Cause::FailedShrink { why }, false)] {
        let act = Resize::default().next(&pod, &requested(100), &cause, &Facts::default());
        let Act::Write(grant) = act else { panic!("{act}") };
        assert_eq!(grant.follows, reads.then(|| requested(100)), "{cause}");
        assert!(grant.settled && grant.withheld.is_none() && !grant.ahead);
    }
}

#[test]
fn amounts_that_do_not_grow_need_no_known_room() {
    let pod = carried_out(100);
    for (wanted, is_granted) in [(50, true), (300, false)] {
        let act = Resize::default().next(&pod, &requested(wanted), &Cause::Sweep, &Facts::default());
        let Act::Patch(patch) = act else { panic!("{act}") };
        let mut accepted = carried_out(wanted);
        accepted.metadata.generation = 3;
        let Act::Write(grant) = patch.answered(Ok(&accepted), None, &mut Report::default()) else {
            panic!("the API server has accepted it")
        };
        let held = if is_granted { wanted } else { 100 };
        assert_eq!((grant.targets, grant.withheld.is_none()), (requested(held), is_granted));
    }
}

#[test]
fn a_kubelet_that_reclaims_is_watched_closely() {
    let failed = ResizePhase::Withheld(Withheld::Failed(String::new()));
    let again = |wanted| Grant::new(&failed, &named(wanted), &named(200), Ok(())).retry_after;
    assert_eq!((again(100), again(300)), (Some(2 * SECOND), None));
}

#[test]
fn each_state_of_a_resize_has_its_next_step() {
    let pod = carried_out(100);
    let why = String::new;
    for (withheld, words) in [
        (Withheld::Deferred(why()), "when the node has room"),
        (Withheld::Infeasible(why()), "can never hold"),
        (Withheld::Failed(why()), "tries again by itself"),
        (Withheld::Unanswered(why()), "has not answered yet"),
        (Withheld::Postponed(why()), "no longer raises"),
        (Withheld::SpecLater(why()), "once it is back"),
    ] {
        let mut resize = accepted(100, 2, named(200));
        assert_eq!(resize.next_step(&pod), None);
        resize.ended(Outcome::Withheld(withheld), false);
        let step = resize.next_step(&pod).unwrap();
        assert!(step.contains(words), "{step}");
    }
    let step = accepted(100, 3, named(200)).next_step(&pod).unwrap();
    assert!(step.contains("in flight"), "{step}");
}
