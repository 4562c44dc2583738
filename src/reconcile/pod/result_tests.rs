//! What the guard's reports and the results of passes make of a pod's state, and what people are told then.

use super::input_tests::{
    MIB, NONE, RESIZES, after, denied, enforced, failed, given, id, lowered, owes, pending_cause, report, requested,
    running, unmanaged,
};
use super::*;
use crate::decide::Ceiling;
use crate::guard::{CpuTerms, GuardEvent};
use crate::model::{
    ControlFile, MemoryLimit, MilliCpu, Outcome, Requirements, ResourceList, Setting, Step, StepRecord,
};
use crate::plan::shrink::FailedShrinks;
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::overrides::Override;
use crate::reconcile::work::Before;

/// The guard has raised the limit of the container, or tried to, when so much was in use.
fn grew([used, to]: [u64; 2], outcome: Outcome) -> PodInput {
    let [from, used, to] = [128, used, to].map(|mib| Bytes::new(mib * MIB));
    let grown = Box::new(Grown {
        from: Some(from),
        outcome,
        steps: Vec::new(),
        took: NONE,
        systemd_failed: false,
    });
    report(GuardEvent::Grew {
        used,
        to,
        why: String::new(),
        for_pod: false,
        grown,
    })
}

/// The override of these limits.
fn limited(limits: ResourceList) -> Override {
    let mut values = unmanaged().pod.requirements();
    values.containers[0].resources = Requirements {
        limits,
        ..Requirements::default()
    };
    Override::by_root(values)
}

fn avoided(effects: &[Effect]) -> Option<Avoided> {
    effects.iter().find_map(|effect| match effect {
        Effect::Avoided(avoided) => Some(*avoided),
        _ => None,
    })
}

/// The first record, and whether it is news.
fn recorded(effects: &[Effect]) -> (&ChangeRecord, bool) {
    let record = effects.iter().find_map(|effect| match effect {
        Effect::Record { record, is_news, .. } => Some((&**record, *is_news)),
        _ => None,
    });
    record.unwrap()
}

fn done(outcome: Outcome) -> JobDone {
    JobDone::new(ChangeRecord::new(id(), Cause::Sweep, outcome))
}

/// The effects of a pass with this result.
fn end_pass(state: &mut PodState, done: JobDone) -> Vec<Effect> {
    let (pass, done, quiet) = (1, Box::new(done), SignedDuration::from_mins(10));
    state.work.start(pass);
    let ended = NodeEvent::PassEnded { pass, done, quiet };
    state.apply(PodInput::OnNode(ended), Now::read())
}

fn why() -> String {
    "why".to_owned()
}

#[test]
fn a_growth_that_was_needed_avoids_a_kill() {
    let now = Now::read();
    let mut state = unmanaged();
    let effects = state.apply(grew([100, 200], Outcome::Applied), now);
    assert_eq!(avoided(&effects), None, "it would fit below the limit before");
    let limit = &state.desired.temporary[0];
    assert_eq!((limit.from, limit.to), (128 * MIB, 200 * MIB));
    assert_eq!(state.trouble, Some(now.wall));
    assert!(recorded(&effects).0.cause.is_emergency());

    let (kill, to) = (Some(Avoided::Kill), Outcome::Applied);
    let effects = state.clone().apply(grew([130, 300], to), now);
    assert_eq!(avoided(&effects), kill);
    state.work.cancel();
    let quiet = |peak: u64, needed: u64| {
        let [peak, needed] = [peak, needed].map(|mib| Bytes::new(mib * MIB));
        report(GuardEvent::Quiet { peak, needed })
    };
    let effects = state.apply(quiet(150, 190), now);
    assert_eq!((avoided(&effects), pending_cause(&state)), (kill, None));
    let effects = state.apply(quiet(150, 1), now);
    assert_eq!(avoided(&effects), None, "it is the same kill");
    let ended = Cause::TemporaryLimitEnded {
        container: "app".to_owned(),
        resource: Resource::Memory,
    };
    assert_eq!(pending_cause(&state), Some(&ended));
    assert!(state.desired.temporary.is_empty());
}

#[test]
fn a_failed_growth_gives_no_limit() {
    let mut state = unmanaged();
    let effects = state.apply(grew([100, 200], Outcome::Refused(why())), Now::read());
    assert!(state.desired.is_empty() && state.work.pending().is_none());
    assert!(recorded(&effects).1);
}

#[test]
fn half_of_a_cpu_growth_avoids_throttling() {
    let (mut state, now) = (unmanaged(), Now::read());
    let throttled = GuardEvent::Throttled {
        from: MilliCpu::new(200),
        to: MilliCpu::new(400),
        why: String::new(),
    };
    drop(state.apply(report(throttled), now));
    let limit = &state.desired.temporary[0];
    assert_eq!((limit.resource, limit.from, limit.to), (Resource::Cpu, 200, 400));
    let later = Now {
        wall: now.wall + Duration::from_secs(60),
        ..now
    };
    let effects = state.apply(report(GuardEvent::Unthrottled), later);
    assert_eq!(avoided(&effects), Some(Avoided::ThrottledSeconds(30.0)));
    assert!(state.desired.temporary.is_empty() && state.desired.returning);
}

#[test]
fn growth_amid_an_override_outlasts_its_failure() {
    let (mut state, now) = (unmanaged(), Now::read());
    let before = (DesiredState::default(), FailedShrinks::default());
    state.work.wait_for_answer(7, Before::Override(Box::new(before)));
    let memory = Some(Bytes::new(100 * MIB));
    state.desired.put_override(limited(ResourceList { cpu: None, memory }));
    drop(state.apply(grew([100, 200], Outcome::Applied), now));
    assert!(state.desired.temporary.is_empty() && state.work.pending().is_some());
    drop(state.apply(PodInput::RequestsRefused(ended_early()), now));
    let limits = state.desired.memory_limits().map(|(_, limit)| limit.get() / MIB);
    assert_eq!(limits.collect::<Vec<_>>(), [200]);
}

#[test]
fn a_guards_record_keeps_the_reason_of_a_failed_pass() {
    for (mut state, reason) in [(enforced(), "no room"), (failed(), "EBUSY")] {
        state.drift.note_reason(Some("EBUSY"));
        drop(state.apply(grew([100, 200], Outcome::Refused("no room".to_owned())), Now::read()));
        assert_eq!(state.drift.reason(), reason);
    }
}

#[test]
fn the_guard_gets_the_terms_of_each_limit() {
    let (mut state, now) = (unmanaged(), Now::read().wall);
    let limits = ResourceList {
        cpu: Some(MilliCpu::new(400)),
        memory: Some(Bytes::new(256 * MIB)),
    };
    state.decision.ceilings.push(Ceiling {
        container: "app".to_owned(),
        limits,
    });
    let terms = |state: &PodState| {
        let terms = watched_limits(state, true, now)?.containers.remove(0);
        let cpu = terms
            .cpu
            .map(|CpuTerms { limit, ceiling, lent }| (limit.get(), ceiling.get(), lent));
        Some((cpu, terms.memory.map(|memory| memory.get() / MIB)))
    };
    assert_eq!(terms(&state), Some((Some((200, 400, false)), Some(256))));
    state.desired.grow(given(Resource::Cpu, (200, 300)));
    assert_eq!(terms(&state), Some((Some((300, 400, true)), Some(256))));
    let cpu = Some(MilliCpu::new(250));
    state.desired.put_override(limited(ResourceList { cpu, memory: None }));
    assert_eq!(terms(&state), Some((None, Some(256))));
    state.desired.put_override(limited(limits));
    assert_eq!(terms(&state), None, "an operator has set both");
}

#[test]
fn a_low_pod_level_has_its_consequence() {
    let low = Some(LowPodLevel {
        holds: Bytes::new(MIB),
        needs: Bytes::new(2 * MIB),
    });
    // Whether the agent raises the level, and whether it refuses to.
    let read = |state: &mut PodState, repair| {
        let effects = state.apply(PodInput::PodLevelRead { low, repair }, Now::read());
        let raises = |effect: &Effect| matches!(effect, Effect::RaisePodLevel { .. });
        let refuses = |effect: &Effect| matches!(effect, Effect::Record { is_news: true, .. });
        (effects.iter().any(raises), effects.iter().any(refuses))
    };
    let mut state = unmanaged();
    assert_eq!(read(&mut state, false), (false, true));
    assert_eq!(read(&mut state, false), (false, false), "it is known");
    assert_eq!(read(&mut state, true), (true, false));
    let raised = Box::new(Grown {
        from: None,
        outcome: Outcome::Refused(why()),
        steps: Vec::new(),
        took: NONE,
        systemd_failed: false,
    });
    let uid = "u1".into();
    let effects = state.apply(PodInput::PodLevelRaised { uid, raised }, Now::read());
    assert_eq!(recorded(&effects).0.cause, Cause::PodLevel);
    assert_eq!(read(&mut state, true), (false, false), "not again at once");

    let mut state = enforced();
    state.desired.scope.resources.insert(Resource::Memory);
    assert_eq!(read(&mut state, true), (false, false));
    assert_eq!(pending_cause(&state), Some(&Cause::PodLevel));

    let mut state = failed();
    state.desired.scope.resources.insert(Resource::Memory);
    assert_eq!(read(&mut state, true), (false, false));
    assert_eq!(pending_cause(&state), None, "it is tried again later");
}

#[test]
fn repeated_outcomes_are_no_news() {
    let mut state = enforced();
    let mut is_news = |outcome| recorded(&end_pass(&mut state, done(outcome))).1;
    let deferred = || Outcome::Withheld(Withheld::Deferred(why()));
    assert!(!is_news(Outcome::Unchanged));
    assert!(is_news(Outcome::Refused(why())));
    assert!(is_news(deferred()));
    assert!(!is_news(deferred()), "it is known");
    assert!(is_news(Outcome::Unchanged), "the kubelet has carried it out");
    assert!(!is_news(Outcome::Unchanged));
    assert!(!is_news(Outcome::Withheld(Withheld::Postponed(why()))));
}

#[test]
fn a_full_node_is_news_once() {
    let mut state = enforced();
    for cause in [vec![Cause::Sweep], vec![Cause::Retry; 6]].concat() {
        let is_first = cause == Cause::Sweep;
        let mut full = JobDone::new(ChangeRecord::new(id(), cause, Outcome::Refused(why())));
        (full.api.no_room, full.api.retry_after) = (true, Some(Duration::from_secs(60)));
        let effects = end_pass(&mut state, full);
        let is_logged = |effect: &Effect| matches!(effect, Effect::Log(LogLine::PassFailed { .. }));
        assert_eq!(
            (recorded(&effects).1, effects.iter().any(is_logged)),
            (is_first, is_first)
        );
    }
    let latest = Now::read().instant + Duration::from_secs(62);
    assert!(state.work.wakes_at().is_some_and(|at| at < latest), "each minute");
    let next = explained::next_step(&state, Now::read());
    assert!(
        next.starts_with("The recommendation is followed once there is room"),
        "{next}"
    );
}

#[test]
fn a_flipped_value_makes_a_check_drift() {
    for (cause, is_flipped, expected) in [
        (Cause::Drift, false, Cause::Sweep),
        (Cause::Drift, true, Cause::Drift),
        (Cause::Sweep, true, Cause::Drift),
        (Cause::Retry, true, Cause::Retry),
    ] {
        let mut done = JobDone::new(ChangeRecord::new(id(), cause, Outcome::Applied));
        let flipped = (Target::Pod, ControlFile::MemoryMax, None);
        done.flipped.extend(is_flipped.then_some(flipped));
        let effects = end_pass(&mut enforced(), done);
        assert_eq!(recorded(&effects).0.cause, expected);
    }
}

#[test]
fn a_repair_amid_a_resize_is_drift() {
    let repaired = |observed: &str, before: &Outcome| {
        let mut state = running(&RESIZES.replace("observedGeneration: 2", observed));
        state.desired.put_override(Override::by_root(PodAmounts::default()));
        state.resize = requested();
        state.drift.ended(before, ForeignWriters::default(), true);
        let mut done = done(Outcome::Applied);
        let [from, to] = [100, 200].map(|mib| Setting::MemoryMax(MemoryLimit::Bytes(mib * MIB)));
        let step = Step::of_file(Target::Pod, from, to);
        done.record.steps.push(StepRecord::planned(&step));
        recorded(&end_pass(&mut state, done)).0.cause.clone()
    };
    let (applied, in_flight) = (Outcome::Applied, "observedGeneration: 1");
    assert_eq!(repaired(in_flight, &applied), Cause::DriftInFlight);
    assert_eq!(
        repaired(in_flight, &Outcome::Refused(why())),
        Cause::Sweep,
        "it wrote new values"
    );
    assert_eq!(repaired("observedGeneration: 2", &applied), Cause::Sweep);
}

#[test]
fn an_ended_pass_ends_the_turn() {
    let (mut state, now) = (enforced(), Now::read().wall);
    state.shrink.begin_turn(now);
    let effects = end_pass(&mut state, done(Outcome::Applied));
    let watches = |effect: &Effect| matches!(effect, Effect::WatchFiles(_));
    assert!(effects.iter().any(watches), "{effects:?}");
    assert_eq!(state.shrink.progress(now), None);
    state.shrink.begin_turn(now);
    let mut lowers = done(Outcome::Applied);
    lowers.shrink = lowered();
    drop(end_pass(&mut state, lowers));
    assert!(state.shrink.watch().is_some() && state.shrink.progress(now).is_some());
}

#[test]
fn a_failed_pass_drops_the_check_that_it_caused() {
    for (outcome, fails) in [(Outcome::Refused(why()), true), (Outcome::Applied, false)] {
        let (mut state, now) = (enforced(), Now::read());
        let pass = 1;
        state.work.start(pass);
        state.work.request_pass(Cause::Drift, false, now.instant);
        let (done, quiet) = (Box::new(done(outcome)), SignedDuration::ZERO);
        let effects = state.apply(PodInput::OnNode(NodeEvent::PassEnded { pass, done, quiet }), now);
        let is_logged = |effect: &Effect| matches!(effect, Effect::Log(LogLine::PassFailed { .. }));
        assert_eq!(effects.iter().any(is_logged), fails);
        assert_eq!(state.work.pending().is_none(), fails);
        assert_eq!(state.work.retry_at.is_some(), fails);
    }
}

#[test]
fn a_denied_limit_that_comes_down_is_not_watched() {
    for is_denied in [false, true] {
        let mut state = enforced();
        if is_denied {
            state.growth.deny(&state.pod, &[denied()], "a quota");
        }
        let mut lowers = done(Outcome::Applied);
        lowers.shrink = lowered();
        drop(end_pass(&mut state, lowers));
        assert_eq!(state.shrink.watch().is_none(), is_denied);
    }
}

#[test]
fn a_record_says_what_is_in_flight() {
    for (observed, outcome, is_in_flight) in [
        ("observedGeneration: 1", Outcome::Applied, true),
        ("observedGeneration: 1", Outcome::Refused(why()), false),
        ("observedGeneration: 2", Outcome::Applied, false),
    ] {
        let mut state = running(&RESIZES.replace("observedGeneration: 2", observed));
        state.desired.put_override(Override::by_root(PodAmounts::default()));
        state.resize = requested();
        let effects = end_pass(&mut state, done(outcome));
        assert_eq!(recorded(&effects).0.in_flight, is_in_flight, "{observed}");
    }
}

#[test]
fn a_pass_knows_what_earlier_ones_left() {
    let (mut state, now) = (owes(), Now::read());
    state.shrink.pass_ended(lowered(), 4);
    state.resize = requested();
    state.work.note_decided(Duration::from_secs(3));
    let ended = Cause::BoostEnded { vpa: why() };
    state.work.request_pass(ended, false, now.instant);
    let resize = Box::new(Act::Direct);
    let effects = state.apply(PodInput::OnNode(NodeEvent::PassBegan { number: 5, resize }), now);
    let job = effects.iter().find_map(|effect| match effect {
        Effect::RunPass { job, .. } => Some(job),
        _ => None,
    });
    let job = job.unwrap();
    assert!(job.held_before && job.check_runtime, "the runtime has an older spec");
    assert_eq!((job.accepted_generation, job.asked), (Some(2), now.instant));
    assert_eq!((job.decided_in, job.watched.len()), (Duration::from_secs(3), 1));
    assert!(job.targets.kubelet_unasked && !job.targets.lift_undeclared);
}

#[test]
fn a_failed_override_is_taken_back_and_answered() {
    for (outcome, returns) in [(Outcome::Refused(why()), false), (Outcome::Incomplete(why()), true)] {
        let mut state = enforced();
        let before = (DesiredState::default(), FailedShrinks::default());
        state.work.wait_for_answer(7, Before::Override(Box::new(before)));
        let mut done = done(outcome);
        done.api.no_room = !returns;
        let effects = end_pass(&mut state, done);
        let answers = |effect: &Effect| matches!(effect, Effect::Record { answers: Some(7), .. });
        assert!(effects.iter().any(answers), "{effects:?}");
        assert_eq!(state.desired.overridden, None);
        assert_eq!(state.desired.returning, returns);
        assert!(state.work.retry_at.is_some() && !state.resize.has_no_room());
    }
}

#[test]
fn the_end_of_a_managed_pod_is_logged() {
    for (mut state, is_managed) in [(unmanaged(), false), (enforced(), true)] {
        let effects = state.apply(PodInput::Removed, Now::read());
        let is_logged = |effect: &Effect| matches!(effect, Effect::Log(LogLine::Removed));
        assert_eq!(effects.iter().any(is_logged), is_managed);
    }
}

/// The decision comes into force, unless there is no room.
fn follow(state: &mut PodState, refused: Option<&str>) -> Vec<Effect> {
    let followed = PodInput::Followed {
        refused: refused.map(str::to_owned),
        cause: None,
        delay: NONE,
    };
    state.apply(followed, Now::read())
}

/// A pod whose container is to have this memory limit.
fn decided(mib: u64) -> PodState {
    let mut state = unmanaged();
    state.decision.reason = Reason::OutOfBounds;
    state.decision.amounts.containers[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
    state
}

#[test]
fn a_reached_temporary_limit_ends() {
    let mut state = decided(200);
    state.desired.grow(given(Resource::Memory, (128 * MIB, 200 * MIB)));
    let effects = follow(&mut state, None);
    let is_logged = |effect: &Effect| {
        matches!(effect, Effect::Log(LogLine::LimitRecommended(limit))
            if limit.container == "app" && limit.to == 200 * MIB)
    };
    assert!(effects.iter().any(is_logged), "{effects:?}");
    assert!(state.desired.temporary.is_empty() && state.work.pending().is_some());
    assert_eq!(state.shrink.progress(Now::read().wall), None, "no limit comes down");
}

#[test]
fn a_lower_limit_waits_for_its_turn() {
    let mut state = decided(100);
    drop(follow(&mut state, None));
    let progress = state.shrink.progress(Now::read().wall);
    assert_eq!(progress, Some(crate::plan::shrink::Progress::Waits));
    assert_eq!(pending_cause(&state), Some(&Cause::Sweep));
}

#[test]
fn a_recommendation_without_room_is_told_once() {
    let mut state = decided(200);
    drop(follow(&mut state, Some("full")));
    assert!(state.desired.is_empty() && state.work.pending().is_none());
    let told = |state: &mut PodState| {
        let effects = state.apply(PodInput::StillNoRoom(Some(Cause::Sweep)), Now::read());
        let is_logged = |effect: &Effect| matches!(effect, Effect::Log(LogLine::NoRoom { .. }));
        let is_recorded = |effect: &Effect| matches!(effect, Effect::Record { is_news: true, .. });
        [effects.iter().any(is_logged), effects.iter().any(is_recorded)]
    };
    assert_eq!([told(&mut state), told(&mut state)], [[true; 2], [false; 2]]);
    drop(follow(&mut state, None));
    assert!(state.no_room.is_none() && state.desired.recommended.is_some());
}

#[test]
fn a_refusal_is_recorded_once_the_pod_runs() {
    let mut state = decided(200);
    let live = state.live.take();
    drop(follow(&mut state, Some("full")));
    let is_recorded = |state: &mut PodState| {
        let effects = state.apply(PodInput::StillNoRoom(Some(Cause::Sweep)), Now::read());
        let is_news = |effect: &Effect| matches!(effect, Effect::Record { is_news: true, .. });
        effects.iter().any(is_news)
    };
    assert!(!is_recorded(&mut state));
    state.live = live;
    assert!(is_recorded(&mut state));
}

#[test]
fn each_state_has_its_status_and_reason() {
    let now = Now::read().wall;
    let check = |change: fn(&mut PodState), status: PodStatus, detail: &str| {
        let mut state = enforced();
        change(&mut state);
        assert_eq!(
            (explained::status(&state, now), explained::detail(&state, now).as_str()),
            (status, detail)
        );
    };
    check(
        |state| state.live = None,
        PodStatus::NotRunning,
        "no container of this pod runs on this node",
    );
    check(|state| *state = unmanaged(), PodStatus::NotManaged, "");
    check(|_| {}, PodStatus::Working, "");
    check(|state| *state = after(&Outcome::Applied), PodStatus::InSync, "");
    check(
        |state| withhold(state, Withheld::Deferred(why())),
        PodStatus::Deferred,
        "why",
    );
    check(
        |state| withhold(state, Withheld::Infeasible(why())),
        PodStatus::Infeasible,
        "why",
    );
    check(
        |state| withhold(state, Withheld::Failed(why())),
        PodStatus::Refused,
        "why",
    );
    check(
        |state| withhold(state, Withheld::Unanswered(why())),
        PodStatus::Working,
        "why",
    );
    check(
        |state| withhold(state, Withheld::SpecLater(why())),
        PodStatus::Working,
        "why",
    );
    let fails = |state: &mut PodState| {
        *state = failed();
        state.drift.note_reason(Some("EBUSY"));
    };
    check(fails, PodStatus::Refused, "EBUSY");
    let owes = |state: &mut PodState| {
        *state = owes();
        state.drift.note_reason(Some("the runtime is away"));
    };
    check(owes, PodStatus::Owed, "the runtime is away");
    let lacks_room = |state: &mut PodState| {
        *state = decided(200);
        drop(follow(state, Some("full")));
    };
    check(lacks_room, PodStatus::Refused, "full");
    let is_left_alone = |state: &mut PodState| {
        let mut writers = ForeignWriters::default();
        for _ in 0..3 {
            writers.flipped(&Target::Pod, ControlFile::MemoryMax, Now::read().wall);
        }
        state.drift.ended(&Outcome::Applied, writers, true);
    };
    let mut state = enforced();
    is_left_alone(&mut state);
    assert_eq!(explained::status(&state, now), PodStatus::Foreign);
}

fn withhold(state: &mut PodState, withheld: Withheld) {
    state.resize.ended(Outcome::Withheld(withheld), false);
}

#[test]
fn a_patch_waits_until_a_limit_has_grown() {
    let (mut state, now) = (running(RESIZES), Now::read());
    let wait = |state: &PodState, cause: &Cause| facts(state, cause, now).too_early;
    let failed = Cause::FailedShrink { why: why() };
    assert_eq!(wait(&state, &Cause::Sweep), None);
    assert_eq!(
        wait(&state, &failed),
        Some(Duration::from_secs(1)),
        "the cgroups are first"
    );
    let at = |limit: TemporaryLimit, renewed| TemporaryLimit { renewed, ..limit };
    state.desired.grow(at(given(Resource::Cpu, (200, 300)), now.wall));
    assert_eq!(wait(&state, &Cause::Sweep), None);
    state
        .desired
        .grow(at(given(Resource::Memory, (128 * MIB, 200 * MIB)), now.wall));
    assert_eq!(wait(&state, &Cause::Sweep), Some(Duration::from_secs(5)));
}

#[test]
fn an_override_that_undoes_a_resize_is_named() {
    let kept = Cause::OverrideKept {
        uid: 0,
        pid: 1,
        reason: String::new(),
    };
    for (mib, cause) in [(200, &kept), (128, &Cause::Kubelet)] {
        let mut state = running(RESIZES);
        let mut values = state.pod.requirements();
        values.containers[0].resources = Requirements::default();
        values.containers[0].resources.limits.memory = Some(Bytes::new(128 * MIB));
        state.desired.put_override(Override::by_root(values));
        let mut pod = Pod::clone(&state.pod);
        pod.metadata.generation += 1;
        let limits = &mut pod.spec.containers[0].resources.limits;
        (limits.cpu, limits.memory) = (Some(MilliCpu::new(300)), Some(Bytes::new(mib * MIB)));
        drop(state.apply(PodInput::Described(Arc::new(pod)), Now::read()));
        assert_eq!(pending_cause(&state), Some(cause));
    }
}
