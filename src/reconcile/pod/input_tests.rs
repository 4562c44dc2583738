//! What each input makes of a pod's state: the pass that becomes due, the effects, and what outlasts the agent.

use super::*;
use crate::actuate::shrink::ShrinkReport;
use crate::decide::{CanaryWait, Ceiling};
use crate::guard::{GuardEvent, Guarded, LatestLimit};
use crate::model::{
    CgroupPath, ContainerId, LiveContainer, MemoryLimit, MilliCpu, Outcome, Requirements, ResourceList,
};
use crate::plan::shrink::{self, FailedShrinks};
use crate::reconcile::desired::{Denied, TemporaryLimit};
use crate::reconcile::overrides::Override;
use crate::sources::parse_manifests;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const NONE: Duration = Duration::ZERO;
const POD: &str = "
kind: Pod
metadata: {name: db-0, namespace: shop, uid: u1, generation: 2}
spec: {containers: [{name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}]}
";
pub(super) const RESIZES: &str = "
kind: Pod
metadata: {name: db-0, namespace: shop, uid: u1, generation: 2}
spec: {containers: [{name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}]}
status:
  observedGeneration: 2
  containerStatuses:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
";

pub(super) fn id() -> PodId {
    PodId {
        uid: "u1".into(),
        namespace: "shop".to_owned(),
        name: "db-0".to_owned(),
    }
}

/// A running pod for which nothing is desired.
pub(super) fn running(manifest: &str) -> PodState {
    let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
    let path = |text: &str| CgroupPath::new(text).unwrap();
    let app = LiveContainer {
        id: ContainerId::of_test("a"),
        path: path("/kubepods/podu1/a"),
    };
    let live = LivePod {
        id: id(),
        path: path("/kubepods/podu1"),
        containers: [("app".into(), app)].into(),
    };
    let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    (state.live, state.identity) = (Some(Arc::new(live)), Some(id()));
    state
}

pub(super) fn unmanaged() -> PodState {
    running(POD)
}

/// An override that sets nothing and ends then.
fn ending(until: Timestamp) -> Override {
    Override {
        until: Some(until),
        ..Override::by_root(PodAmounts::default())
    }
}

/// A pod with an override that sets nothing.
pub(super) fn enforced() -> PodState {
    let mut state = unmanaged();
    state.desired.put_override(Override::by_root(PodAmounts::default()));
    state
}

pub(super) fn failed() -> PodState {
    let mut state = enforced();
    state.work.back_off(None, Now::read());
    state
}

/// A pod whose latest pass had this outcome.
pub(super) fn after(outcome: &Outcome) -> PodState {
    let mut state = enforced();
    state.drift.ended(outcome, ForeignWriters::default(), true);
    state
}

pub(super) fn owes() -> PodState {
    after(&Outcome::RuntimeOwed(String::new()))
}

fn full() -> PodState {
    let mut state = enforced();
    state.resize.ended(Outcome::Refused(String::new()), true);
    state
}

fn spec_later() -> PodState {
    let mut state = enforced();
    let withheld = Withheld::SpecLater(String::new());
    state.resize.ended(Outcome::Withheld(withheld), false);
    state
}

fn resizes() -> PodState {
    let mut state = running(RESIZES);
    state.desired.put_override(Override::by_root(PodAmounts::default()));
    state
}

/// The resize whose request the API server has accepted as the pod's spec.
pub(super) fn requested() -> Resize {
    let amounts = unmanaged().pod.requirements();
    let request = serde_json::json!({"targets": amounts, "generation": 2, "held": amounts, "before": amounts});
    serde_json::from_value(serde_json::json!({ "asked": request })).unwrap()
}

pub(super) fn given(resource: Resource, limits: (u64, u64)) -> TemporaryLimit {
    let now = Now::read().wall;
    TemporaryLimit::given("app".to_owned(), resource, limits, String::new(), now)
}

fn raised_cpu() -> PodState {
    let mut state = unmanaged();
    state.desired.grow(given(Resource::Cpu, (200, 400)));
    state
}

/// A temporary limit that the API server has denied and that ends now.
pub(super) fn denied() -> TemporaryLimit {
    let denied = Denied {
        ends: Now::read().wall,
        why: "a quota".to_owned(),
    };
    TemporaryLimit {
        denied: Some(denied),
        ..given(Resource::Memory, (128 * MIB, 200 * MIB))
    }
}

/// The report of a pass that has lowered the limit of the container.
pub(super) fn lowered() -> ShrinkReport {
    let lowering = Lowering {
        target: Target::Container("app".into()),
        from: MemoryLimit::Bytes(200 * MIB),
        to: Bytes::new(128 * MIB),
        before: shrink::Before::of_test(),
    };
    ShrinkReport {
        touched: vec![lowering.target.clone()],
        lowered: vec![lowering],
        ..ShrinkReport::default()
    }
}

pub(super) fn report(event: GuardEvent) -> PodInput {
    let of = Guarded {
        pod: id(),
        container: "app".into(),
    };
    PodInput::OnNode(NodeEvent::Guard(Box::new(Report { of, event })))
}

pub(super) fn pending_cause(state: &PodState) -> Option<&Cause> {
    state.work.pending().map(|pending| &pending.cause)
}

#[test]
fn each_input_has_its_pass() {
    let check = |state: fn() -> PodState, input: PodInput, due: Option<(Cause, bool)>| {
        let (mut state, case) = (state(), format!("{input:?}"));
        drop(state.apply(input, Now::read()));
        let pending = state.work.pending();
        let pending = pending.map(|pending| (pending.cause.clone(), pending.check_runtime));
        assert_eq!(pending, due, "{case}");
    };
    let on = PodInput::Check;
    check(enforced, on(Check::FilesWritten), Some((Cause::Drift, false)));
    check(unmanaged, on(Check::FilesWritten), None);
    check(failed, on(Check::FilesWritten), None);
    check(enforced, on(Check::Swept), Some((Cause::Sweep, false)));
    check(owes, on(Check::Swept), Some((Cause::Sweep, true)));
    check(failed, on(Check::Swept), None);
    check(owes, on(Check::RuntimeReturned), Some((Cause::Retry, true)));
    check(enforced, on(Check::RuntimeReturned), None);
    check(enforced, on(Check::NodeChanged), Some((Cause::Sweep, true)));
    check(unmanaged, on(Check::NodeChanged), None);
    check(full, on(Check::RoomFreed), Some((Cause::Retry, true)));
    check(enforced, on(Check::RoomFreed), None);
    check(resizes, on(Check::ResizeRetried), Some((Cause::Retry, true)));
    check(enforced, on(Check::ResizeRetried), None);
    let returned = Some((Cause::ApiServerReturned, true));
    check(spec_later, on(Check::ApiServerReturned), returned);
    check(enforced, on(Check::ApiServerReturned), None);
    let ended = Cause::TemporaryLimitEnded {
        container: "app".to_owned(),
        resource: Resource::Cpu,
    };
    check(raised_cpu, report(GuardEvent::Unthrottled), Some((ended, true)));
    // An operator's request has ended the limit while the report was on its way.
    check(enforced, report(GuardEvent::Unthrottled), None);
    check(
        unmanaged,
        PodInput::RequestsRefused(ended_early()),
        Some((Cause::Retry, true)),
    );
}

#[test]
fn room_that_is_freed_all_the_time_has_a_rate() {
    let (mut state, now, mut passes) = (full(), Now::read(), 0);
    for _ in 0..100 {
        drop(state.apply(PodInput::Check(Check::RoomFreed), now));
        passes += usize::from(state.work.is_due(now.instant));
        state.work.cancel();
    }
    assert!((1..=11).contains(&passes), "{passes} at one moment");
}

#[test]
fn a_returned_runtime_ends_the_wait() {
    let mut state = owes();
    state.work.back_off(None, Now::read());
    drop(state.apply(PodInput::Check(Check::RuntimeReturned), Now::read()));
    assert!(state.work.retry_at.is_none() && !state.work.has_failed());
}

#[test]
fn a_changed_node_forgets_what_passes_found() {
    let mut state = after(&Outcome::Applied);
    state.work.start(1);
    state.work.back_off(None, Now::read());
    state.resize.ended(Outcome::Refused(String::new()), true);
    drop(state.apply(PodInput::Check(Check::NodeChanged), Now::read()));
    assert!(!state.work.runs_current() && !state.drift.is_in_sync());
    assert_eq!(state.work.retry_at, None);
    assert!(state.resize.is_clear());
}

#[test]
fn each_time_that_is_over_has_its_cause() {
    let now = Now::read();
    let cause_after = |mut state: PodState, wait: Duration| {
        let later = Now {
            wall: now.wall + wait,
            instant: now.instant + wait,
            ..now
        };
        drop(state.apply(PodInput::TimePassed, later));
        pending_cause(&state).cloned()
    };
    for (mut state, cause) in [
        (enforced(), Some(Cause::Retry)),
        (spec_later(), Some(Cause::ApiServerReturned)),
        (unmanaged(), None),
    ] {
        let wait = state.work.back_off(None, now);
        assert_eq!(
            cause_after(state.clone(), wait.saturating_sub(Duration::from_millis(1))),
            None
        );
        assert_eq!(cause_after(state, wait), cause);
    }
    let mut ends = unmanaged();
    ends.desired.put_override(ending(now.wall));
    assert_eq!(cause_after(ends, NONE), Some(Cause::OverrideEnded));
    let mut undone = unmanaged();
    let mut shrinks = FailedShrinks::default();
    shrinks.note(&Target::Pod, MemoryLimit::Max, "it hurt", now.wall);
    undone.shrink.restore(shrinks, now.wall);
    assert_eq!(cause_after(undone.clone(), Duration::from_secs(119)), None);
    assert_eq!(cause_after(undone, Duration::from_secs(120)), Some(Cause::Retry));

    let mut state = unmanaged();
    state.desired.grow(denied());
    let effects = state.apply(PodInput::TimePassed, Now::read());
    let is_logged = |effect: &Effect| matches!(effect, Effect::Log(LogLine::Denied(limit)) if limit.container == "app");
    assert!(effects.iter().any(is_logged), "{effects:?}");
    let (container, why) = ("app".to_owned(), "a quota".to_owned());
    assert_eq!(
        pending_cause(&state),
        Some(&Cause::TemporaryLimitDenied { container, why })
    );
}

#[test]
fn a_date_of_a_decision_passes_once() {
    let (mut state, now) = (enforced(), Now::read());
    state.decision.boosts.next_end = Some(now.wall);
    let mut decides = || {
        let effects = state.apply(PodInput::TimePassed, now);
        effects.iter().any(|effect| matches!(effect, Effect::Decide))
    };
    // A pod that cannot be decided about keeps its decision.
    assert_eq!([decides(), decides()], [true, false]);
    assert_eq!(state.wakes_at(), (None, None));
}

#[test]
fn the_first_date_wakes_the_pod() {
    let (mut state, now) = (enforced(), Now::read());
    let at = |minutes| now.wall.checked_add(SignedDuration::from_mins(minutes)).unwrap();
    assert_eq!(state.wakes_at(), (None, None));
    state.hooks.restore([("app".into(), now.wall)].into());
    assert_eq!(state.wakes_at().1, Some(at(60)));
    state.decision.boosts.next_end = Some(at(30));
    assert_eq!(state.wakes_at().1, Some(at(30)));
    let mut shrinks = FailedShrinks::default();
    shrinks.note(&Target::Pod, MemoryLimit::Max, "it hurt", now.wall);
    state.shrink.restore(shrinks, now.wall);
    assert_eq!(state.wakes_at().1, Some(at(2)));
    state.desired.put_override(ending(at(1)));
    let wait = state.work.back_off(None, now);
    assert_eq!(state.wakes_at(), (Some(now.instant + wait), Some(at(1))));
}

#[test]
fn a_settled_pod_has_nothing_open() {
    assert!(unmanaged().is_settled() && failed().is_settled());
    assert!(!enforced().is_settled() && !owes().is_settled());
    let mut state = after(&Outcome::Applied);
    assert!(state.is_settled());
    state.resize.ended(Outcome::Refused(String::new()), true);
    assert!(!state.is_settled(), "room may be freed");
}

#[test]
fn only_a_description_may_wait_to_be_saved() {
    let is_urgent = |change: fn(&mut Pod)| {
        let mut state = resizes();
        let mut pod = Pod::clone(&state.pod);
        change(&mut pod);
        let effects = state.apply(PodInput::Described(Arc::new(pod)), Now::read());
        effects.iter().find_map(|effect| match effect {
            Effect::Save { can_wait, .. } => Some(!can_wait),
            _ => None,
        })
    };
    assert_eq!(is_urgent(|_| {}), None);
    let annotate = |pod: &mut Pod| {
        pod.metadata.annotations.insert("a".to_owned(), "b".to_owned());
    };
    assert_eq!(is_urgent(annotate), Some(false));
    let change = |pod: &mut Pod| pod.spec.containers[0].resources.limits.cpu = Some(MilliCpu::new(300));
    assert_eq!(is_urgent(change), Some(true));
    assert_eq!(is_urgent(|pod| pod.status.observed_generation = 1), Some(true));
    assert_eq!(is_urgent(|pod| pod.status.container_statuses.clear()), Some(true));
}

#[test]
fn a_carried_out_request_settles_once() {
    let mut state = running(&RESIZES.replace("observedGeneration: 2", "observedGeneration: 1"));
    state.desired.put_override(Override::by_root(PodAmounts::default()));
    state.resize = requested();
    let settled = running(RESIZES).pod;
    let mut settles = |pod: Pod| {
        let effects = state.apply(PodInput::Described(Arc::new(pod)), Now::read());
        let settles = |effect: &Effect| matches!(effect, Effect::Settled(uid) if uid.as_str() == "u1");
        effects.iter().any(settles)
    };
    assert_eq!([(); 2].map(|()| settles(Pod::clone(&settled))), [true, false]);
}

#[test]
fn a_kubelet_that_begins_to_resize_is_followed() {
    let mut state = enforced();
    drop(state.apply(PodInput::Described(running(RESIZES).pod), Now::read()));
    assert_eq!(pending_cause(&state), Some(&Cause::Kubelet));
}

#[test]
fn ceilings_and_pauses_concern_the_guard() {
    let mut state = unmanaged();
    let watches = |state: &mut PodState, decision: &PodDecision| {
        let decision = Box::new(decision.clone());
        let effects = state.apply(PodInput::Decided { decision, took: NONE }, Now::read());
        effects.iter().any(|effect| matches!(effect, Effect::WatchGuard))
    };
    let mut decision = state.decision.clone();
    assert!(!watches(&mut state, &decision));
    decision.ceilings.push(Ceiling {
        container: "app".to_owned(),
        limits: ResourceList::default(),
    });
    assert!(watches(&mut state, &decision));
    assert!(!watches(&mut state, &decision));
    state.growth.deny(&state.pod, &[denied()], "a quota");
    assert!(watches(&mut state, &decision), "the pause may be over");
}

#[test]
fn a_kill_blames_only_a_lowered_limit() {
    for is_lowered in [false, true] {
        let (mut state, now) = (enforced(), Now::read());
        state.shrink.pass_ended(lowered(), 1);
        let kill = |at, lowered| {
            PodInput::OnNode(NodeEvent::Killed {
                target: Target::Container("app".into()),
                at,
                lowered,
            })
        };
        let effects = state.apply(kill(now.wall, is_lowered), now);
        let is_undone = |effect: &Effect| matches!(effect, Effect::ShrinkEnded(Err(_)));
        assert_eq!(effects.iter().any(is_undone), is_lowered);
        assert_eq!(state.work.pending().is_some(), is_lowered);
        // The report of an earlier kill comes later.
        let earlier = now.wall.checked_sub(SignedDuration::from_hours(1)).unwrap();
        drop(state.apply(kill(earlier, false), now));
        assert_eq!(state.trouble, Some(now.wall));
    }
}

#[test]
fn an_undone_shrink_is_trouble_now() {
    let (mut state, now) = (unmanaged(), Now::read());
    state.shrink.pass_ended(lowered(), 1);
    let verdict = Verdict::Trouble(Target::Pod, shrink::Trouble::Killed(1));
    drop(state.apply(
        PodInput::OnNode(NodeEvent::ShrinkWatchEnded { number: 1, verdict }),
        now,
    ));
    assert_eq!(state.trouble, Some(now.wall));
    assert!(state.desired.returning);
    assert!(matches!(pending_cause(&state), Some(Cause::FailedShrink { .. })));
}

#[test]
fn a_foreign_limit_ends_the_kept_one() {
    let app = Target::Container("app".into());
    let kept = |change: fn(&mut ResourceList)| {
        let (mut state, now, mut shrinks) = (resizes(), Now::read(), FailedShrinks::default());
        for target in [&app, &Target::Pod] {
            shrinks.note(target, MemoryLimit::Max, "it hurt", now.wall);
        }
        state.shrink.restore(shrinks, now.wall);
        let mut pod = Pod::clone(&state.pod);
        pod.metadata.generation += 1;
        change(&mut pod.spec.containers[0].resources.limits);
        drop(state.apply(PodInput::Described(Arc::new(pod)), now));
        let holds = state.shrink.holds(now.wall);
        [&app, &Target::Pod].map(|target| holds.contains_key(target))
    };
    assert_eq!(
        kept(|limits| limits.memory = Some(Bytes::new(200 * MIB))),
        [false, true]
    );
    assert_eq!(kept(|limits| limits.cpu = Some(MilliCpu::new(300))), [true, true]);
}

#[test]
fn a_turn_restarts_only_passes_that_have_begun() {
    let (mut state, now) = (enforced(), Now::read());
    let wait = Duration::from_secs(20);
    state.work.request_pass_after(Cause::Sweep, wait, now.instant);
    drop(state.apply(PodInput::OnNode(NodeEvent::TurnGiven), now));
    assert_eq!(pending_cause(&state), Some(&Cause::Sweep));
    for is_another_due in [false, true] {
        let mut state = enforced();
        state.work.start(1);
        if is_another_due {
            state.work.request_pass(Cause::Sweep, false, now.instant);
        }
        drop(state.apply(PodInput::OnNode(NodeEvent::TurnGiven), now));
        assert!(!state.work.runs_current() && state.work.pending().is_some());
    }
}

#[test]
fn each_part_of_the_state_outlasts_the_agent() {
    let (mut state, now) = (unmanaged(), Now::read());
    state.growth.deny(&state.pod, &[denied()], "a quota");
    state.hooks.restore([("app".into(), now.wall)].into());
    let mut shrinks = FailedShrinks::default();
    shrinks.note(&Target::Pod, MemoryLimit::Max, "it hurt", now.wall);
    state.shrink.restore(shrinks, now.wall);
    state.decision.canary.waits = Some(CanaryWait {
        since: now.wall,
        targets: PodAmounts::default(),
    });
    state.desired.put_override(Override::by_root(PodAmounts::default()));
    state.resize = requested();
    let located = Located {
        live: state.live.clone(),
        saved: state.saved(),
        unsaved_limits: None,
    };
    let mut next = PodState::new(Arc::clone(&state.pod), PodDecision::undecided(&state.pod));
    let effects = next.apply(PodInput::Located(Box::new(located)), now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Decide)));
    assert_eq!(next.growth.saved().len(), 1);
    assert_eq!(next.growth.saved(), state.growth.saved());
    assert_eq!(next.hooks.saved()["app"], now.wall);
    assert_eq!(next.shrink.holds(now.wall).len(), 1);
    assert_eq!(next.decision.canary.waits, state.decision.canary.waits);
    assert!(next.desired.overridden.is_some());
    assert_eq!(next.resize.accepted(), state.resize.accepted());
    assert_eq!(pending_cause(&next), Some(&Cause::AgentStarted));
}

#[test]
fn each_part_alone_is_saved() {
    let now = Now::read().wall;
    let is_saved = |change: &dyn Fn(&mut PodState)| {
        let mut state = unmanaged();
        change(&mut state);
        state.saved().is_some()
    };
    assert!(!is_saved(&|_| {}));
    assert!(is_saved(&|state| state.desired.returning = true));
    assert!(is_saved(&|state| state.growth.deny(&state.pod, &[denied()], "a quota")));
    assert!(is_saved(&|state| state.hooks.restore([("app".into(), now)].into())));
    assert!(is_saved(&|state| {
        let targets = PodAmounts::default();
        state.decision.canary.waits = Some(CanaryWait { since: now, targets });
    }));
    assert!(!is_saved(&|state| {
        state.desired.returning = true;
        state.identity = None;
    }));
}

#[test]
fn a_started_container_has_its_cause() {
    let mut state = enforced();
    let located = Located {
        live: state.live.take(),
        saved: None,
        unsaved_limits: None,
    };
    drop(state.apply(PodInput::Located(Box::new(located)), Now::read()));
    assert_eq!(pending_cause(&state), Some(&Cause::ContainerStarted));
}

#[test]
fn only_higher_unsaved_limits_are_recovered() {
    let set = |mib: u64| {
        let mut values = unmanaged().pod.requirements();
        values.containers[0].resources = Requirements::default();
        values.containers[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
        values
    };
    for (mib, set, recovered) in [
        (128, None, None),
        (129, None, Some((128, 129))),
        (129, Some(set(100)), None),
    ] {
        let mut state = unmanaged();
        let live = state.live.take();
        if let Some(values) = set {
            state.desired.put_override(Override::by_root(values));
        }
        let unsaved = LatestLimit {
            to: Bytes::new(mib * MIB),
            for_pod: false,
        };
        let located = Located {
            live,
            saved: None,
            unsaved_limits: Some([("app".into(), unsaved)].into()),
        };
        drop(state.apply(PodInput::Located(Box::new(located)), Now::read()));
        let limit = state.desired.temporary.first();
        assert_eq!(
            limit.map(|limit| (limit.from / MIB, limit.to / MIB)),
            recovered,
            "{mib}"
        );
        assert!(state.desired.scope.resources.contains(&Resource::Memory));
        assert_eq!(pending_cause(&state), Some(&Cause::AgentStarted));
    }
}

#[test]
fn the_latest_trouble_counts() {
    let at = "2026-01-02T00:00:00Z";
    let terminated = ["{terminated: {reason: Error, finishedAt: '", at, "'}}"].concat();
    let status = [
        "status: {containerStatuses: [{name: app, lastState: ",
        &terminated,
        "}]}\n",
    ]
    .concat();
    let mut state = running(&[POD, &status].concat());
    let ended: Timestamp = at.parse().unwrap();
    assert_eq!(state.in_trouble(), Some(ended));
    for hours in [-1, 1] {
        let killed = ended.checked_add(SignedDuration::from_hours(hours)).unwrap();
        state.trouble = Some(killed);
        assert_eq!(state.in_trouble(), Some(ended.max(killed)));
    }
}
