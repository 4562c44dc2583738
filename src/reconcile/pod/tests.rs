//! What becomes of one pod's state in single cases.

use super::input_tests::{NONE, lowered, report, unmanaged};
use super::*;
use crate::decide::{CanaryWait, Ceiling};
use crate::guard::budgets::RefusalKind;
use crate::guard::{GuardEvent, LatestLimit};
use crate::model::{
    CgroupPath, Change, KubeletVersion, MemoryLimit, Outcome, Resource, ResourceList, Setting, StepRecord,
};
use crate::plan::shrink::FailedShrinks;
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::overrides::Override;
use crate::reconcile::work::Before;
use crate::sources::{NodeView, parse_manifests};

fn id(uid: &str) -> PodId {
    PodId {
        uid: uid.into(),
        namespace: "shop".to_owned(),
        name: "db-0".to_owned(),
    }
}

fn any_pod() -> PodState {
    let pod = Arc::new(Pod::default());
    PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod))
}

#[test]
fn only_what_holds_is_enforced() {
    let mut state = any_pod();
    assert!(!state.is_enforced(), "nothing is desired");
    state.desired.returning = true;
    assert!(state.is_enforced());
    state.work.back_off(None, Now::read());
    assert!(!state.is_enforced(), "it failed, and is tried again later");
    state.drift.ended(&Outcome::Applied, ForeignWriters::default(), true);
    assert!(state.is_enforced(), "the API server is to be asked later");
}

#[test]
fn a_pass_that_is_repeated_did_not_fail() {
    let mut state = any_pod();
    state.live = Some(Arc::new(LivePod {
        id: id("u1"),
        path: CgroupPath::new("/kubepods/podu").unwrap(),
        containers: <_>::default(),
    }));
    state.desired.returning = true;
    let now = Now::read();
    state.work.back_off(None, now);
    assert_eq!(explained::status(&state, now.wall), PodStatus::Refused);
    // The API server did not show the spec.
    state.drift.ended(&Outcome::Unchanged, ForeignWriters::default(), true);
    assert_eq!(explained::status(&state, now.wall), PodStatus::InSync);
}

#[test]
fn an_unwanted_pass_is_not_due() {
    let (mut state, now) = (any_pod(), Now::read());
    state.work.request_pass(Cause::Sweep, false, now.instant);
    let mut effects = Effects { now, list: Vec::new() };
    state.begin_pass(1, Act::Direct, &mut effects);
    assert!(
        !state.work.is_due(now.instant) && effects.list.is_empty(),
        "{effects:?}"
    );
}

#[test]
fn waiting_callers_are_told_of_new_pods() {
    let (mut state, now) = (any_pod(), Now::read());
    let mut effects = Effects { now, list: Vec::new() };
    let located = |uid: &str| {
        let live = LivePod {
            id: id(uid),
            path: CgroupPath::new("/kubepods/pod").unwrap(),
            containers: <_>::default(),
        };
        Located {
            live: Some(Arc::new(live)),
            saved: None,
            unsaved_limits: None,
        }
    };
    state.locate(located("u1"), &mut effects);
    let mut before = state.desired.clone();
    before.returning = true;
    let before = Before::Override(Box::new((before, FailedShrinks::default())));
    state.work.wait_for_answer(7, before);
    state.locate(located("u1"), &mut effects);
    assert!(effects.list.is_empty() && state.work.request().is_some());
    state.locate(located("u2"), &mut effects);
    assert!(
        matches!(effects.list[..], [Effect::Refuse { request: 7, .. }, Effect::Decide]),
        "it would wait for ever: {effects:?}"
    );
    assert!(
        state.desired.is_empty(),
        "what was desired for the earlier one came back"
    );
}

#[test]
fn a_refused_release_ends_no_override() {
    let (mut state, now) = (any_pod(), Now::read());
    let overridden = Override {
        since: now.wall,
        ..Override::by_root(PodAmounts::default())
    };
    state.desired.overridden = Some(overridden.clone());
    let (view, machine) = (NodeView::default(), ResourceList::default());
    let capacity = NodeCapacity::of(std::iter::empty(), &view, machine, KubeletVersion::NEWEST, false);
    let input = PodInput::Admitted {
        id: 7,
        request: OperatorRequest::Release {
            uid: 0,
            pid: 1,
            reason: String::new(),
        },
        capacity: Box::new(capacity),
    };
    drop(state.apply(input, now));
    assert_eq!(state.desired.overridden, None);
    let effects = state.apply(PodInput::RequestsRefused(ended_early()), now);
    let is_refusal = |effect: &Effect| matches!(effect, Effect::Refuse { request: 7, .. });
    assert!(effects.iter().any(is_refusal), "{effects:?}");
    assert_eq!(state.desired.overridden, Some(overridden));
}

#[test]
fn saved_state_is_of_one_pod() {
    let described = |uid: &str| {
        let mut pod = Pod::default();
        pod.metadata.uid = uid.to_owned();
        pod.metadata.namespace = "shop".to_owned();
        pod.metadata.name = "db-0".to_owned();
        pod.describes(&id("u1"))
    };
    assert!(described("u1") && described(""));
    assert!(!described("u2"));
}

#[test]
fn a_successor_waits_anew_for_other_pods() {
    for (uid, stays) in [("u1", true), ("u2", false)] {
        let (mut state, now) = (unmanaged(), Now::read());
        state.trouble = Some(now.wall);
        state.decision.canary.waits = Some(CanaryWait {
            since: now.wall,
            targets: PodAmounts::default(),
        });
        let live = LivePod {
            id: id(uid),
            path: CgroupPath::new("/kubepods/podu").unwrap(),
            containers: <_>::default(),
        };
        let located = Located {
            live: Some(Arc::new(live)),
            saved: None,
            unsaved_limits: None,
        };
        let effects = state.apply(PodInput::Located(Box::new(located)), now);
        let kept = (state.trouble.is_some(), state.decision.canary.waits.is_some());
        assert_eq!(kept, (stays, stays), "{uid}");
        let decides = effects.iter().any(|effect| matches!(effect, Effect::Decide));
        assert_eq!(decides, !stays, "{uid}");
    }
}

#[test]
fn what_a_stale_pass_wrote_is_on_record() {
    let (mut state, now) = (any_pod(), Now::read());
    let step = StepRecord {
        target: Target::Pod,
        change: Change::File {
            from: Setting::MemoryMax(MemoryLimit::Max),
            to: Setting::MemoryMax(MemoryLimit::Bytes(1 << 20)),
        },
        took: NONE,
        error: None,
        rollback: false,
    };
    for steps in [Vec::new(), vec![step]] {
        // The pod ended during its pass.
        let pass = 1;
        state.work.start(pass);
        let mut record = ChangeRecord::new(id("u1"), Cause::Sweep, Outcome::Interrupted("it ended".to_owned()));
        record.steps.clone_from(&steps);
        let done = Box::new(JobDone::new(record));
        let effects = state.apply(
            PodInput::OnNode(NodeEvent::PassEnded {
                pass,
                done,
                quiet: SignedDuration::ZERO,
            }),
            now,
        );
        let [
            Effect::Record {
                record,
                is_news: news,
                answers: None,
            },
        ] = &effects[..]
        else {
            panic!("{effects:?}");
        };
        assert_eq!((&record.steps, *news), (&steps, !steps.is_empty()));
        assert!(state.work.running().is_none() && state.drift.reason().is_empty());
    }
}

#[test]
fn a_burst_alone_writes_no_amounts() {
    let manifest = "{kind: Pod, metadata: {name: web, uid: u}, spec: {containers: [{name: app}]}}";
    let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
    let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    let id = PodId {
        uid: "u".into(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
    };
    let live = Arc::new(LivePod {
        id: id.clone(),
        path: CgroupPath::new("/kubepods/podu").unwrap(),
        containers: <_>::default(),
    });
    (state.live, state.identity) = (Some(live), Some(id));
    state.desired.scope.resources.insert(Resource::Cpu);
    let mut decide = |burst: Option<&str>| {
        let decision = Box::new(PodDecision {
            burst: burst.map(|burst| burst.parse().unwrap()),
            ..PodDecision::undecided(&pod)
        });
        let now = Now::read();
        drop(state.apply(PodInput::Decided { decision, took: NONE }, now));
        let effects = state.apply(
            PodInput::Followed {
                refused: None,
                cause: None,
                delay: NONE,
            },
            now,
        );
        let due = state.work.pending().is_some();
        state.work.cancel();
        let targets = pod_targets(&state, now.wall, false);
        let saves = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Save { can_wait: false, .. }));
        (targets, due, saves, state.clone())
    };
    let (targets, due, ..) = decide(None);
    assert!(targets.is_none() && !due, "nothing is desired");
    for burst in ["50%", "20%", "0%"] {
        let (targets, due, saves, state) = decide(Some(burst));
        let targets = targets.unwrap();
        assert!(due && saves && targets.scope.resources.is_empty());
        assert_eq!(targets.burst.map(|burst| burst.to_string()).as_deref(), Some(burst));
        assert!(state.is_enforced() && state.desired.targets(&pod).is_none());
        assert!(
            state.desired.scope.resources.contains(&Resource::Cpu),
            "kept for amounts"
        );
        let (_, due, ..) = decide(Some(burst));
        assert!(!due, "it has that burst already");
    }
}

#[test]
fn a_change_that_is_always_refused_ends() {
    let mut state = any_pod();
    let (now, list) = (Now::read(), Vec::new());
    let mut effects = Effects { now, list };
    let mut is_desired = |reason| {
        state.decision.reason = reason;
        state.follow(None, (None, NONE), &mut effects);
        state.desired.recommended.is_some()
    };
    assert!(is_desired(Reason::OutOfBounds) && is_desired(Reason::QuotaExceeded));
    assert!(!is_desired(Reason::KubeletRefuses));
    assert!(is_desired(Reason::OutOfBounds) && !is_desired(Reason::SourcesSilent));
}

#[test]
fn awaited_trouble_is_decided_at_once() {
    let decides = |reason| {
        let mut state = any_pod();
        state.decision.reason = reason;
        let now = Now::read();
        let effects = state.apply(
            PodInput::OnNode(NodeEvent::Killed {
                target: Target::Pod,
                at: now.wall,
                lowered: false,
            }),
            now,
        );
        effects.iter().any(|effect| matches!(effect, Effect::Decide))
    };
    assert!(decides(Reason::NoTrouble));
    assert!(!decides(Reason::InRange), "no change waits for it");
}

#[test]
fn the_pods_own_limit_waits_for_its_turn_too() {
    let pod = "
kind: Pod
metadata: {name: web, uid: u}
spec:
  overhead: {memory: 16Mi}
  resources: {limits: {memory: 512Mi}}
  containers:
  - {name: app, resources: {limits: {memory: 256Mi}}}
  initContainers:
  - {name: mesh, restartPolicy: Always, resources: {limits: {memory: 1Gi}}}
status:
  resources: {}
  containerStatuses:
  - {name: app, resources: {limits: {memory: 256Mi}}}
";
    let view = parse_manifests("test", pod).unwrap().view;
    let pod = Arc::clone(&view.pods[0]);
    let mut decision = PodDecision::undecided(&pod);
    decision.reason = Reason::OutOfBounds;
    for (of, has) in decision.amounts.iter_mut() {
        // The API server lets a sidecar have more than the pod.
        if of != Some("mesh") {
            has.limits.memory = Some(Bytes::new(128 << 20));
        }
    }
    let (before, lower) = (pod.requirements(), decision.amounts.clone());
    let (mut state, now) = (PodState::new(pod, decision), Now::read());
    let mut effects = Effects { now, list: Vec::new() };
    state.follow(None, (None, NONE), &mut effects);
    assert_eq!(state.targets(now.wall), Some(before.clone()));
    state.follow(None, (None, NONE), &mut effects);
    assert_eq!(state.targets(now.wall), Some(before));
    state.shrink.begin_turn(now.wall);
    assert_eq!(state.targets(now.wall), Some(lower.clone()));

    // Undone shrinks: the pod's own limit is what its cgroup had without the overhead, and none of a regular container is above it.
    let mib = |amounts: &PodAmounts, of| amounts.get(of).unwrap().limits.memory.unwrap().get() >> 20;
    let mut undone = |target: Target, limit: u64| {
        let mut failed = FailedShrinks::default();
        failed.note(&target, MemoryLimit::Bytes(limit << 20), "an OOM kill", now.wall);
        state.shrink.restore(failed, now.wall);
        let kept = state.targets(now.wall).unwrap();
        [mib(&kept, Some("app")), mib(&kept, None)]
    };
    assert_eq!([mib(&lower, Some("app")), mib(&lower, None)], [128, 128]);
    assert_eq!(undone(Target::Container("app".into()), 256), [256, 256]);
    assert_eq!(undone(Target::Pod, 512 + 16), [128, 512]);
}

#[test]
fn a_kept_pod_limit_restarts_no_container() {
    let kept = |policy: &str| {
        let manifest = format!(
            "
kind: Pod
metadata: {{name: web, uid: u}}
spec:
  resources: {{limits: {{memory: 512Mi}}}}
  containers:
  - {{name: app, resources: {{limits: {{memory: 256Mi}}}}}}
  - {{name: side, resizePolicy: [{{resourceName: memory, restartPolicy: {policy}}}]}}
status:
  resources: {{}}
  containerStatuses:
  - {{name: app, resources: {{limits: {{memory: 256Mi}}}}}}
"
        );
        let pod = Arc::clone(&parse_manifests("test", &manifest).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let (now, limits) = (Now::read().wall, (256 << 20, 300 << 20));
        let given = TemporaryLimit::given("app".to_owned(), Resource::Memory, limits, String::new(), now);
        state.desired.grow(given);
        let mut failed = FailedShrinks::default();
        failed.note(&Target::Pod, MemoryLimit::Bytes(600 << 20), "an OOM kill", now);
        state.shrink.restore(failed, now);
        let targets = state.targets(now).unwrap();
        let of_pod = targets.get(None).unwrap().limits.memory.unwrap();
        (of_pod.get() >> 20, crate::resize::changes(&pod, &targets).is_ok())
    };
    assert_eq!(kept("NotRequired"), (600, true));
    assert_eq!(kept("RestartContainer"), (512, true));
}

#[test]
fn a_pass_without_a_result_backs_off() {
    let why = || "the watch is late".to_owned();
    for outcome in [
        Outcome::Interrupted(why()),
        Outcome::Withheld(Withheld::Unanswered(why())),
        Outcome::Withheld(Withheld::SpecLater(why())),
    ] {
        let (mut state, mut now) = (any_pod(), Now::read());
        state.live = Some(Arc::new(LivePod {
            id: id("u1"),
            path: CgroupPath::new("/kubepods/podu").unwrap(),
            containers: <_>::default(),
        }));
        state.desired.returning = true;
        let mut waits = Vec::new();
        for pass in 1..10 {
            state.work.start(pass);
            let record = ChangeRecord::new(id("u1"), Cause::Sweep, outcome.clone());
            let mut done = Box::new(JobDone::new(record));
            done.api.retry_after = Some(Duration::from_secs(1));
            let quiet = SignedDuration::ZERO;
            drop(state.apply(PodInput::OnNode(NodeEvent::PassEnded { pass, done, quiet }), now));
            let at = state.work.retry_at.unwrap();
            waits.push(at - std::mem::replace(&mut now.instant, at));
        }
        assert!(waits.is_sorted() && waits[8] > Duration::from_secs(60), "{waits:?}");
        assert!(!state.work.has_failed());
    }
}

#[test]
fn a_refused_growth_is_said_until_the_limit_is_higher() {
    let pod = |mib: u64| {
        let limits = format!("{{limits: {{memory: {mib}Mi}}}}");
        let containers = format!("[{{name: app, resources: {limits}}}]");
        let manifest = format!("{{kind: Pod, metadata: {{name: web, uid: u}}, spec: {{containers: {containers}}}}}");
        Arc::clone(&parse_manifests("test", &manifest).unwrap().view.pods[0])
    };
    let (mut state, now) = (PodState::new(pod(128), PodDecision::undecided(&pod(128))), Now::read());
    let refused = GuardEvent::Refused {
        kind: RefusalKind::Ceiling,
        why: "no".to_owned(),
    };
    drop(state.apply(report(refused), now));
    for (mib, said) in [(128, 1), (100, 1), (129, 0)] {
        drop(state.apply(PodInput::Described(pod(mib)), now));
        assert_eq!(explained::not_grown(&state, now.wall).count(), said, "{mib}");
    }
}

#[test]
fn a_paused_growth_names_the_denial() {
    let (mut state, now, bytes) = (unmanaged(), Now::read(), |mib: u64| Bytes::new(mib << 20));
    let limits = (bytes(128).get(), bytes(200).get());
    let given = TemporaryLimit::given("app".to_owned(), Resource::Memory, limits, String::new(), now.wall);
    state.desired.grow(given);
    let highest = |state: &PodState| {
        let terms = watched_limits(state, true, now.wall).unwrap().containers.remove(0);
        (terms.memory, terms.not_higher)
    };
    let (memory, why) = highest(&state);
    assert_eq!(memory, Some(bytes(200)));
    assert!(why.is_some_and(|why| why.contains("no VPA")));
    state.decision.ceilings.push(Ceiling {
        container: "app".to_owned(),
        limits: ResourceList {
            memory: Some(bytes(256)),
            cpu: None,
        },
    });
    assert_eq!(highest(&state), (Some(bytes(256)), None));
    let (why, quiet) = ("a quota", SignedDuration::from_mins(10));
    let denied = state.desired.deny(&state.pod, None, why, now.wall, quiet);
    state.growth.deny(&state.pod, &denied, why);
    let (memory, why) = highest(&state);
    assert_eq!(memory, Some(bytes(200)));
    let why = why.filter(|why| why.contains("a quota")).unwrap();
    let kind = RefusalKind::Ceiling;
    drop(state.apply(report(GuardEvent::Refused { kind, why }), now));
    assert_eq!(explained::not_grown(&state, now.wall).count(), 1, "one reason");
}

#[test]
fn a_limit_for_the_pod_stays_one_after_a_restart() {
    let (mut state, now) = (unmanaged(), Now::read());
    let (pod, live) = (Arc::clone(&state.pod), state.live.clone());
    for (for_pod, mib) in [(true, 160), (false, 200)] {
        let grew = GuardEvent::Grew {
            used: Bytes::ZERO,
            to: Bytes::new(mib << 20),
            why: String::new(),
            for_pod,
            grown: Box::new(Grown {
                from: Some(Bytes::new(128 << 20)),
                outcome: Outcome::Applied,
                steps: Vec::new(),
                took: NONE,
                systemd_failed: false,
            }),
        };
        drop(state.apply(report(grew), now));
    }
    let saved = serde_json::to_string(&state.desired).unwrap();
    state.desired = serde_json::from_str(&saved).unwrap();
    let guarded = watched_limits(&state, true, now.wall).unwrap();
    assert!(guarded.containers[0].for_pod, "{saved}");

    // The agent was killed before it saved the limit.
    let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    let unsaved = LatestLimit {
        to: Bytes::new(160 << 20),
        for_pod: true,
    };
    let located = Located {
        live,
        saved: None,
        unsaved_limits: Some([("app".into(), unsaved)].into()),
    };
    drop(state.apply(PodInput::Located(Box::new(located)), now));
    let guarded = watched_limits(&state, true, now.wall).unwrap();
    assert!(guarded.containers[0].for_pod);
}

#[test]
fn a_temporary_limit_ends_with_its_container() {
    let ends = |policy: &str, reason: &str| {
        let manifest = format!(
            "
kind: Pod
metadata: {{name: web, uid: u}}
spec:
  restartPolicy: {policy}
  containers:
  - {{name: app, resources: {{limits: {{memory: 128Mi}}}}}}
  - {{name: side, resources: {{limits: {{memory: 128Mi}}}}}}
status:
  containerStatuses:
  - {{name: app, state: {{terminated: {{reason: {reason}}}}}}}
"
        );
        let pod = Arc::clone(&parse_manifests("test", &manifest).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let (now, mib) = (Now::read(), 1 << 20);
        for name in ["app", "side"] {
            let limits = (128 * mib, 200 * mib);
            let given = TemporaryLimit::given(name.to_owned(), Resource::Memory, limits, String::new(), now.wall);
            state.desired.grow(given);
        }
        drop(state.apply(PodInput::Described(pod), now));
        let left = &state.desired.temporary;
        assert_eq!(
            state.work.pending().is_some(),
            left.len() == 1,
            "a pass takes the limit back"
        );
        assert!(left.iter().any(|limit| limit.container == "side"));
        left.len() == 1
    };
    assert!(ends("Never", "Error") && ends("OnFailure", "Completed"));
    assert!(!ends("Always", "Completed") && !ends("OnFailure", "OOMKilled"));
    let rules = "Never\n  initContainers: [{name: first, restartPolicyRules: [{action: RestartAllContainers}]}]";
    assert!(!ends(rules, "Error"), "exit codes may restart all containers");
}

#[test]
fn a_denial_of_two_limits_pauses_growth_once() {
    let manifest = "
kind: Pod
metadata: {name: web, uid: u}
spec: {containers: [{name: app, resources: {limits: {cpu: 200m, memory: 128Mi}}}]}
";
    let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
    let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    let (now, mib) = (Now::read().wall, 1 << 20);
    for (resource, limits) in [(Resource::Memory, (128 * mib, 200 * mib)), (Resource::Cpu, (200, 400))] {
        let given = TemporaryLimit::given("app".to_owned(), resource, limits, String::new(), now);
        state.desired.grow(given);
    }
    let why = "the ceiling".to_owned();
    state.growth.refuse(&pod, "app", why, &pod.requirements(), now);
    let (why, quiet) = ("a quota", SignedDuration::from_mins(10));
    let denied = state.desired.deny(&state.pod, None, why, now, quiet);
    state.growth.deny(&state.pod, &denied, why);
    assert!(state.growth.takes_back_denied(&pod, &lowered().lowered, now));
    let said: Vec<&str> = explained::not_grown(&state, now).map(|(_, why)| why.as_str()).collect();
    let both = matches!(said[..], [denial, "the ceiling"] if denial.contains("a quota"));
    assert!(both, "{said:?}");
    let grows_after = |minutes| {
        let then = now.checked_add(SignedDuration::from_mins(minutes)).unwrap();
        state.growth.denial(&pod, "app", then).is_none()
    };
    assert_eq!([14, 15].map(grows_after), [false, true]);
}

#[test]
fn no_deleted_vpa_waits_for_room() {
    let (mut state, now) = (any_pod(), Now::read());
    let no_room = NoRoomFor::after(None, PodAmounts::default(), String::new(), now.wall);
    (state.no_room, state.decision.vpa) = (Some(no_room), Some("web".to_owned()));
    let decision = Box::new(PodDecision::undecided(&state.pod));
    drop(state.apply(PodInput::Decided { decision, took: NONE }, now));
    assert!(state.no_room.is_none());
}
