//! What a pod's status says of a resize, by example, and a kubelet that does anything at any time.

use proptest::prelude::*;

use super::kubelet::grows;
use super::{Act, Facts, Grant, Patch, Report, Request, Resize, altered, changes, check_room, granted, reserved};
use crate::model::objects::{Container, ContainerStatus, Pod, PodCondition, ResizePhase, ResizePolicy, annotation};
use crate::model::{
    Bytes, Cause, Change, KubeletVersion, MilliCpu, NamedRequirements, Outcome, PodAmounts, Requirements, Resource,
    ResourceList, Withheld,
};
use crate::plan::{Capacity, NodeRequests, Room, pod_requests};

const KUBELET: KubeletVersion = KubeletVersion::NEWEST;

fn amounts(cpu: u64) -> Requirements {
    let list = |cpu: u64| ResourceList {
        cpu: Some(MilliCpu::new(cpu)),
        memory: Some(Bytes::new(cpu << 20)),
    };
    Requirements {
        requests: list(cpu),
        limits: list(2 * cpu),
    }
}

fn named(cpu: u64) -> PodAmounts {
    PodAmounts::from_iter([NamedRequirements::new("app", amounts(cpu))])
}

/// A pod that has what its spec says.
fn settled(cpu: u64) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.generation = 1;
    pod.spec.containers = vec![Container {
        name: "app".to_owned(),
        resources: amounts(cpu),
        ..Container::default()
    }];
    pod.status.observed_generation = 1;
    pod.status.container_statuses = vec![ContainerStatus {
        name: "app".to_owned(),
        resources: Some(amounts(cpu)),
        allocated_resources: Some(amounts(cpu).requests),
        ..ContainerStatus::default()
    }];
    pod
}

/// A node with so much, of which others take so much.
fn room(has: u64, others: u64) -> Room {
    let all = NodeRequests::from_iter([others, 0].map(|cpu| (0, amounts(cpu).requests)));
    Room {
        capacity: Capacity {
            amounts: amounts(has).requests,
            from: Capacity::ALLOCATABLE,
        },
        others: all.others(amounts(0).requests),
    }
}

fn ask(pod: &mut Pod, cpu: u64) {
    pod.spec.containers[0].resources = amounts(cpu);
    pod.metadata.generation += 1;
}

fn answer(pod: &mut Pod, kind: &str, reason: &str) {
    let generation = pod.metadata.generation;
    pod.status.observed_generation = generation;
    pod.status.conditions = vec![PodCondition {
        kind: kind.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: "why".to_owned(),
        observed_generation: generation,
        ..PodCondition::default()
    }];
}

#[test]
fn what_admission_altered_is_told() {
    let mut asked = changes(&settled(200), &named(300)).unwrap();
    assert_eq!(altered(&settled(300), &asked), None);
    let told = altered(&settled(310), &asked).unwrap();
    assert!(told.starts_with("container app: requests.cpu 300m → 310m, "), "{told}");
    let Change::Resize { to, .. } = &mut asked[0].change else {
        unreachable!()
    };
    to.limits = ResourceList::default();
    assert_eq!(altered(&settled(300), &asked), None, "unset limits were filled in");
}

#[test]
fn every_answer_of_the_kubelet_is_a_phase() {
    let why = || "why".to_owned();
    for (kind, reason, phase) in [
        (
            "PodResizePending",
            "Deferred",
            ResizePhase::Withheld(Withheld::Deferred(why())),
        ),
        (
            "PodResizePending",
            "Infeasible",
            ResizePhase::Withheld(Withheld::Infeasible(why())),
        ),
        ("PodResizeInProgress", "", ResizePhase::InProgress),
        (
            "PodResizeInProgress",
            "Error",
            ResizePhase::Withheld(Withheld::Failed(why())),
        ),
        ("Ready", "", ResizePhase::Settled),
    ] {
        let mut pod = settled(100);
        ask(&mut pod, 200);
        assert_eq!(ResizePhase::of(&pod), ResizePhase::Accepted);
        answer(&mut pod, kind, reason);
        assert_eq!(ResizePhase::of(&pod), phase);
    }
}

#[test]
fn an_earlier_answer_does_not_count() {
    let mut pod = settled(100);
    ask(&mut pod, 900);
    answer(&mut pod, "PodResizePending", "Deferred");
    ask(&mut pod, 200);
    assert_eq!(ResizePhase::of(&pod), ResizePhase::Accepted);
}

#[test]
fn without_generations_the_status_decides() {
    let mut pod = settled(100);
    pod.status.observed_generation = 0;
    assert_eq!(ResizePhase::of(&pod), ResizePhase::Settled);
    ask(&mut pod, 200);
    assert_eq!(ResizePhase::of(&pod), ResizePhase::Accepted);
    pod.status.container_statuses[0].resources = Some(amounts(200));
    assert_eq!(ResizePhase::of(&pod), ResizePhase::Settled);
}

#[test]
fn old_kubelets_and_mirror_pods_are_not_asked() {
    let mut pod = settled(100);
    assert!(pod.resizes_in_place());
    pod.metadata
        .annotations
        .insert(annotation::MIRROR.to_owned(), "x".to_owned());
    assert!(!pod.resizes_in_place());
    // The agent has written another limit, which the kubelet reports.
    pod.status.observed_generation = 0;
    pod.status.container_statuses[0].resources = Some(amounts(200));
    assert_eq!(Resize::default().granted(&pod), named(100));
    let mut pod = settled(100);
    pod.status.container_statuses[0].resources = None;
    assert!(!pod.resizes_in_place());
}

#[test]
fn what_cannot_be_taken_away_is_not_asked_for() {
    let pod = settled(100);
    let mut wanted = named(200);
    wanted.containers[0].resources.limits.cpu = None;
    let error = changes(&pod, &wanted).unwrap_err().to_string();
    assert!(error.contains("container app: its limits.cpu of 200m"), "{error}");
    assert_eq!(changes(&pod, &named(100)), Ok(Vec::new()));
    assert_eq!(changes(&pod, &named(101)).unwrap().len(), 1);
}

#[test]
fn pod_amounts_missing_in_the_status_count() {
    let mut pod = settled(100);
    pod.spec.resources = Some(amounts(100));
    assert_eq!(pod.requirements(), named(100), "nothing says that they can be resized");
    pod.status.resources = Some(Requirements::default());
    assert_eq!(pod.requirements().pod.as_deref(), Some(&amounts(100)));
    let mut wanted = named(200);
    wanted.pod = Some(Box::new(amounts(200)));
    let asked = changes(&pod, &wanted).unwrap();
    let levels: Vec<_> = asked.iter().map(|step| step.target.to_string()).collect();
    assert_eq!(levels, ["container app", "pod"]);
    assert_eq!(altered(&pod.with_requirements(&wanted), &asked), None);
    assert!(altered(&pod, &asked[1..]).unwrap().contains("100m"));
    assert_eq!(pod_requests(&pod, &wanted, KUBELET), amounts(200).requests);

    ask(&mut pod, 200);
    pod.spec.resources = Some(amounts(200));
    pod.status.resources = Some(Requirements {
        limits: ResourceList::default(),
        ..amounts(100)
    });
    let granted = granted(&pod, &ResizePhase::of(&pod), None);
    let of_pod = granted.pod.map(|has| (has.requests, has.limits));
    assert_eq!(of_pod, Some((amounts(100).requests, amounts(200).limits)));
}

#[test]
fn what_does_not_grow_fits_an_overfull_node() {
    let check = |wanted| check_room(&room(100, 600), &settled(300), &named(wanted), KUBELET);
    assert_eq!((check(300), check(200)), (Ok(()), Ok(())));
    assert!(check(301).is_err());
}

#[test]
fn only_an_unanswered_resize_takes_room() {
    let mut pod = settled(100);
    ask(&mut pod, 900);
    assert_eq!(reserved(&pod, KUBELET), amounts(900).requests);
    answer(&mut pod, "PodResizePending", "Deferred");
    assert_eq!(reserved(&pod, KUBELET), amounts(100).requests);
}

#[test]
fn what_was_only_asked_for_still_has_to_fit() {
    let mut pod = settled(100);
    ask(&mut pod, 900);
    assert!(grows(&pod, &named(900), KUBELET) && !grows(&pod, &named(100), KUBELET));
    let check = |wanted| check_room(&room(1000, 600), &pod, &named(wanted), KUBELET);
    assert!(check(900).is_err());
    assert_eq!(check(400), Ok(()));
}

/// What may happen to a pod.
#[derive(Debug, Clone)]
enum Event {
    /// We ask, if there is anything to ask for.
    Ask(u64),
    /// The kubelet has room, and sets the amounts aside.
    Allocate,
    /// It writes them.
    Write,
    /// It could not.
    Fail,
    Defer,
    Refuse,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1..1000_u64).prop_map(Event::Ask),
        Just(Event::Allocate),
        Just(Event::Write),
        Just(Event::Fail),
        Just(Event::Defer),
        Just(Event::Refuse),
    ]
}

#[test]
fn a_failing_kubelet_is_waited_for() {
    for (wanted, reclaims) in [(100, true), (300, false)] {
        let mut pod = settled(200);
        ask(&mut pod, wanted);
        let resize = Resize {
            accepted: Some(Request {
                targets: named(wanted),
                generation: pod.metadata.generation,
                held: named(200),
                ..Request::default()
            }),
            ..Resize::default()
        };
        answer(&mut pod, "PodResizeInProgress", "Error");
        let Act::Write(grant) = resize.next(&pod, &named(wanted), &Cause::Sweep, &facts()) else {
            panic!("the spec has the targets")
        };
        let why = Withheld::Failed("why".to_owned());
        assert_eq!(
            (grant.targets, grant.withheld, grant.reclaim),
            (named(wanted), Some(why), reclaims)
        );
        let away = Facts {
            away: Some("away".to_owned()),
            ..facts()
        };
        let Act::Write(grant) = resize.next(&pod, &named(400), &Cause::Sweep, &away) else {
            panic!("the API server is away")
        };
        assert_eq!(grant.targets, named(wanted), "the kubelet is still to write this");
    }
}

#[test]
fn a_restart_is_never_requested() {
    let mut pod = settled(100);
    pod.spec.containers[0].resize_policy = vec![ResizePolicy {
        resource_name: "memory".to_owned(),
        restart_policy: "RestartContainer".to_owned(),
    }];
    let mut wanted = named(100);
    wanted.containers[0].resources.limits.cpu = Some(MilliCpu::new(300));
    assert_eq!(changes(&pod, &wanted).unwrap().len(), 1, "cpu may change");
    wanted.containers[0].resources.limits.memory = Some(Bytes::new(300 << 20));
    let error = changes(&pod, &wanted).unwrap_err().to_string();
    for words in [
        "container app: its limits.memory stays 200Mi instead of 300Mi",
        "RestartContainer",
        "set NotRequired",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn an_untaken_amount_stays_granted() {
    let mut world = World {
        pod: settled(100),
        set_aside: named(100),
        held: None,
    };
    for event in [
        Event::Ask(1),
        Event::Allocate,
        Event::Fail,
        Event::Ask(100),
        Event::Defer,
    ] {
        world.step(&event);
    }
    let phase = ResizePhase::of(&world.pod);
    assert_eq!(phase, ResizePhase::Withheld(Withheld::Deferred("why".to_owned())));
    assert_eq!(granted(&world.pod, &phase, world.held.as_ref()), named(100));
}

/// A pod, what its kubelet has really set aside, and what is remembered of before the last request.
struct World {
    pod: Pod,
    set_aside: PodAmounts,
    held: Option<PodAmounts>,
}

impl World {
    fn step(&mut self, event: &Event) {
        let allocated = self.set_aside.same(&self.pod.requirements());
        match event {
            Event::Ask(cpu) => {
                if !changes(&self.pod, &named(*cpu)).unwrap().is_empty() {
                    self.held = Some(granted(&self.pod, &ResizePhase::of(&self.pod), self.held.as_ref()));
                    ask(&mut self.pod, *cpu);
                }
            }
            Event::Allocate => {
                self.set_aside = self.pod.requirements();
                let status = &mut self.pod.status.container_statuses[0];
                status.allocated_resources = Some(self.pod.spec.containers[0].resources.requests);
                answer(&mut self.pod, "PodResizeInProgress", "");
            }
            Event::Write if allocated => {
                self.pod.status.container_statuses[0].resources = Some(self.pod.spec.containers[0].resources);
                answer(&mut self.pod, "Ready", "");
            }
            // What is written it does not write again.
            Event::Fail if allocated && ResizePhase::of(&self.pod) != ResizePhase::Settled => {
                answer(&mut self.pod, "PodResizeInProgress", "Error");
            }
            // Once set aside, a resize is not deferred any more.
            Event::Defer if !allocated => answer(&mut self.pod, "PodResizePending", "Deferred"),
            Event::Refuse if !allocated => answer(&mut self.pod, "PodResizePending", "Infeasible"),
            Event::Write | Event::Fail | Event::Defer | Event::Refuse => {}
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_held_that_was_never_granted(events in prop::collection::vec(event(), 1..40), roomy: bool) {
        let mut world = World {
            pod: settled(100), set_aside: named(100), held: None
        };
        let mut ever = vec![named(100)];
        // What is held since the kubelet last said something.
        let mut firm = named(100);
        for event in &events {
            world.step(event);
            ever.push(world.set_aside.clone());
            let phase = ResizePhase::of(&world.pod);
            let room = roomy.then_some(()).ok_or_else(|| "unknown".to_owned());
            let spec = world.pod.requirements();
            let granted = granted(&world.pod, &phase, world.held.as_ref());
            let withheld = Grant::new(&phase, &spec, &granted, room).withheld;
            let kernel = if withheld.is_none() { spec.clone() } else { granted };
            // The spec, once the kubelet has it or while nothing speaks against it; else what the kubelet once gave.
            let fast = roomy && phase == ResizePhase::Accepted;
            prop_assert!(fast && kernel.same(&spec) || ever.contains(&kernel), "{event:?}: {kernel:?} in {phase:?}");
            if let Some(Withheld::Deferred(_) | Withheld::Infeasible(_)) = withheld {
                prop_assert!(kernel.same(&firm), "{event:?}: a refusal changes what is held");
            }
            if phase != ResizePhase::Accepted {
                firm = kernel.clone();
            }
            if phase == ResizePhase::Settled {
                prop_assert!(kernel.same(&spec) && world.set_aside.same(&spec));
            }
        }
    }

    #[test]
    fn a_request_leaves_nothing_to_request(before in 1..1000_u64, after in 1..1000_u64) {
        let mut pod = settled(before);
        let steps = changes(&pod, &named(after)).unwrap();
        prop_assert_eq!(steps.is_empty(), before == after);
        ask(&mut pod, after);
        prop_assert!(changes(&pod, &named(after)).unwrap().is_empty());
    }

    #[test]
    fn what_fits_never_overfills_the_node(own in 1..500_u64, wanted in 1..1000_u64, others in 0..1000_u64) {
        let (pod, wanted) = (settled(own), named(wanted));
        if check_room(&room(1000, others), &pod, &wanted, KUBELET).is_ok() {
            for resource in Resource::ALL {
                let after = pod_requests(&pod, &wanted, KUBELET).amount(resource);
                let grows = after > reserved(&pod, KUBELET).amount(resource);
                let [others, has] = [others, 1000].map(|cpu| amounts(cpu).requests.amount(resource));
                prop_assert!(!grows || after + others <= has);
            }
        }
    }
}

#[test]
fn a_lone_limit_is_requested_with_its_request() {
    let limit = Requirements {
        limits: ResourceList {
            cpu: Some(MilliCpu::new(500)),
            memory: None,
        },
        ..Requirements::default()
    };
    let wanted = PodAmounts::from_iter([NamedRequirements::new("app", limit)]);
    let mut pod = Pod::default();
    pod.spec.containers = vec![Container {
        name: "app".to_owned(),
        ..Container::default()
    }];
    let steps = changes(&pod, &wanted).unwrap();
    let Change::Resize { to, .. } = steps[0].change else {
        panic!("{steps:?}")
    };
    // So the API server has it then, whether it is told or not.
    assert_eq!((to.requests, to.limits), (limit.limits, limit.limits));
    pod.spec.containers[0].resources = to;
    assert_eq!(changes(&pod, &wanted), Ok(Vec::new()));
    assert!(wanted.same(&pod.requirements()));
}

fn facts() -> Facts {
    Facts {
        room: Some(room(1000, 0)),
        kubelet: KUBELET,
        ..Facts::default()
    }
}

/// What is decided for a pod that has 100 and is to have this much.
fn decided(facts: &Facts, wanted: u64, cause: &Cause) -> Act {
    Resize::default().next(&settled(100), &named(wanted), cause, facts)
}

/// What the cgroups get once the API server has accepted the patch, and returned `pod`.
fn grant(patch: &Patch, pod: &Pod) -> Grant {
    match patch.answered(Ok(pod), None, &mut Report::default()) {
        Act::Write(grant) => grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_patch_waits_and_knows_its_fallback() {
    let second = Some(std::time::Duration::from_secs(1));
    let why = || "not reported".to_owned();
    let unreported = Facts {
        unreported: Some((why(), second)),
        ..facts()
    };
    let waits = Act::End {
        outcome: Outcome::Withheld(Withheld::Unanswered(why())),
        retry_after: second,
        no_room: false,
    };
    assert_eq!(decided(&unreported, 200, &Cause::Sweep), waits);
    let settled_already = decided(&unreported, 100, &Cause::Sweep);
    assert!(matches!(settled_already, Act::Write(_)), "{settled_already:?}");

    let growing = Facts {
        too_early: second,
        ..facts()
    };
    let lent = Cause::Guard {
        container: "app".to_owned(),
        resource: Resource::Memory,
        why: None,
    };
    for (cause, is_done) in [(Cause::Sweep, false), (lent, true)] {
        let Act::Write(grant) = decided(&growing, 200, &cause) else {
            panic!("{cause}")
        };
        assert_eq!((grant.targets, grant.retry_after), (named(100), second));
        assert_eq!(grant.withheld.is_none(), is_done, "{cause}");
    }

    let yielding = Facts {
        room: Some(room(1000, 900)),
        yields: amounts(900).requests,
        ..facts()
    };
    let Act::Patch(asked) = decided(&yielding, 900, &Cause::Sweep) else {
        panic!("others may yield")
    };
    let mut pod = settled(100);
    ask(&mut pod, 900);
    assert_eq!(
        grant(&asked, &pod).targets,
        named(100),
        "nothing is written before they do"
    );
    let beyond = decided(&yielding, 1001, &Cause::Sweep);
    assert!(matches!(beyond, Act::End { no_room: true, .. }), "{beyond:?}");
    let Act::Patch(patch) = decided(&facts(), 200, &Cause::Sweep) else {
        panic!("nothing stands in the way")
    };
    let request = &patch.request;
    assert_eq!((&request.targets, &request.held), (&named(200), &named(100)));
    let mut pod = settled(100);
    ask(&mut pod, 200);
    assert_eq!(
        (grant(&patch, &pod).targets, grant(&patch, &pod).withheld),
        (named(200), None)
    );
    answer(&mut pod, "PodResizePending", "Deferred");
    let deferred = grant(&patch, &pod);
    let why = Withheld::Deferred("why".to_owned());
    assert_eq!((deferred.targets, deferred.withheld), (named(100), Some(why)));
}

#[test]
fn the_first_refusal_for_room_is_soon_repeated() {
    let mut resize = Resize::default();
    for wait in [None, Some(std::time::Duration::from_secs(60))] {
        let full = resize.next(&settled(100), &named(2000), &Cause::Retry, &facts());
        assert!(matches!(full, Act::End { retry_after, .. } if retry_after == wait));
        resize.ended(Outcome::Refused(String::new()), true);
    }
}

/// The kubelet would evict other pods.
#[test]
fn a_critical_pod_is_not_asked_for_without_room() {
    let next = |priority: i64, room: Option<Room>| {
        let mut pod = settled(100);
        pod.spec.priority = Some(priority);
        let facts = Facts {
            room,
            yields: amounts(900).requests,
            ..facts()
        };
        Resize::default().next(&pod, &named(900), &Cause::Sweep, &facts)
    };
    for full in [Some(room(1000, 900)), None] {
        let asked = next(1_999_999_999, full);
        assert!(matches!(asked, Act::Patch(_)), "{asked:?}");
        let waits = next(2_000_000_000, full);
        let Act::End {
            outcome, no_room: true, ..
        } = &waits
        else {
            panic!("{waits:?}")
        };
        assert!(outcome.reason().unwrap().contains("would evict"), "{outcome:?}");
    }
    let fits = next(2_000_000_000, Some(room(1000, 0)));
    assert!(matches!(fits, Act::Patch(_)), "{fits:?}");
}

#[test]
fn an_unseen_request_is_not_repeated() {
    let accepted = Request {
        targets: named(200),
        generation: 2,
        held: named(100),
        ..Request::default()
    };
    let resize = Resize {
        accepted: Some(accepted),
        ..Resize::default()
    };
    let next = |facts: &Facts, wanted| resize.next(&settled(100), &named(wanted), &Cause::Sweep, facts);
    let write = |facts: &Facts| match next(facts, 200) {
        Act::Write(grant) => grant,
        other => panic!("{other:?}"),
    };
    let mut facts = facts();
    assert_eq!((write(&facts).targets, write(&facts).settled), (named(200), false));
    facts.room = None;
    let held = write(&facts);
    assert_eq!(held.targets, named(100), "whether there is room, nobody knows");
    assert!(matches!(held.withheld, Some(Withheld::Unanswered(_))));
    let other = next(&facts, 150);
    assert!(matches!(other, Act::Patch(_)), "{other:?}");
}
