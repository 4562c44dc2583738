//! What holds for every sequence of inputs: no effect is forgotten, and nothing stale counts.

use super::*;
use crate::actuate::shrink::ShrinkReport;
use crate::plan::shrink::UsageHistory;
use crate::reconcile::desired::Recommended;
use event::{Event, event, limits};

mod event;

proptest! {
    #[test]
    fn no_effect_is_forgotten_whatever_happens(in_place: bool, events in vec(event(), 0..60)) {
        let mut world = World::with_hooks(in_place);
        for event in events {
            world.meet(&event);
            prop_assert_eq!(world.check_copies(), Ok(()));
        }
    }

    #[test]
    fn the_last_decision_counts_whatever_was_decided_before(
        earlier in vec(proptest::option::of(64_u64..512), 0..8), last in 64_u64..512,
    ) {
        let decided = |decisions: &[Option<u64>]| {
            let mut world = World::with_hooks(false);
            world.meet(&Event::Runs(true));
            for mib in decisions {
                world.meet(&Event::Decided { mib: *mib, no_room: false });
            }
            world.state
        };
        let all: Vec<_> = earlier.into_iter().chain([Some(last)]).collect();
        let (one, other) = (decided(&all), decided(&[Some(last)]));
        prop_assert_eq!(&one.desired, &other.desired);
        let targets = |recommended: &Recommended| recommended.targets.clone();
        prop_assert_eq!(one.desired.recommended.as_ref().map(targets), Some(limits(last)));
    }
}

proptest! {
    #[test]
    fn a_restart_keeps_only_what_is_in_force(
        steps in vec((64_u64..512, any::<bool>()), 1..8),
    ) {
        let mut world = World::with_hooks(false);
        world.meet(&Event::Runs(true));
        let mut in_force = None;
        for (mib, passes) in steps {
            if passes {
                world.decide_and_pass(mib);
                in_force = Some(limits(mib));
            } else {
                world.meet(&Event::Decided { mib: Some(mib), no_room: false });
            }
        }
        world.meet(&Event::AgentRestarts { decided: None });
        let recommended = world.state.desired.recommended.as_ref();
        prop_assert_eq!(recommended.map(|recommended| &recommended.targets), in_force.as_ref());
        prop_assert_eq!(world.state.work.pending().is_some(), in_force.is_some());
    }

    #[test]
    fn what_an_agent_only_observed_is_no_wish_of_the_next(decided in vec(64_u64..512, 1..8)) {
        let mut world = World::with_hooks(false);
        world.meet(&Event::Runs(true));
        for mib in decided {
            world.meet(&Event::Decided { mib: Some(mib), no_room: false });
        }
        prop_assert!(world.state.saved().is_none());
        world.meet(&Event::AgentRestarts { decided: None });
        prop_assert!(world.state.desired.is_empty() && world.state.work.pending().is_none());
    }
}

/// A world in which a pass has given the container a limit.
fn settled(mib: u64) -> World {
    let mut world = World::with_hooks(false);
    world.meet(&Event::Runs(true));
    world.decide_and_pass(mib);
    world
}

#[test]
fn a_lower_limit_waits_for_its_hook() {
    for well in [true, false] {
        let mut world = settled(128);
        assert_eq!(world.told(), None);
        assert_eq!(world.decide_and_pass(64), Some(128), "the limit is kept meanwhile");
        assert_eq!(world.told(), Some(("before-shrink", 128, 64)));
        assert_eq!(explained::status(&world.state, world.now.wall), PodStatus::Working);
        let [app, side] = CONTAINERS.map(|name| Target::Container(name.into()));
        let seen = [app, side.clone(), Target::Pod].map(|target| (target, UsageHistory::default()));
        let tried = ShrinkReport {
            seen: seen.into(),
            ..ShrinkReport::default()
        };
        world.state.shrink.pass_ended(tried, 0);
        world.meet(&Event::HookEnds(well));
        assert!(world.state.work.pending().is_some());
        let seen: Vec<&Target> = world.state.shrink.seen().keys().collect();
        assert_eq!(seen, [&side], "the hook may have freed the rest");
        assert_eq!(world.pass(), None);
        assert_eq!(world.told(), None, "it was told once");
    }
}

#[test]
fn a_hook_that_is_gone_keeps_no_limit() {
    let mut world = settled(128);
    assert_eq!(world.decide_and_pass(64), Some(128));
    let mut pod = Pod::clone(&world.state.pod);
    for container in &mut pod.spec.containers {
        container.hook_variables.clear();
    }
    world.apply(PodInput::Described(Arc::new(pod)));
    assert!(world.state.work.pending().is_some(), "{:?}", world.state);
    assert_eq!(world.pass(), None);
}

#[test]
fn an_operator_waits_for_no_hook() {
    let mut world = settled(128);
    world.decide_and_pass(64);
    let (mut previewed, now) = (world.state.clone(), world.now.wall);
    assert!(!previewed.holds(now).is_empty());
    previewed
        .set_override(world.by_hand(limits(100)), &world.capacity())
        .unwrap();
    assert!(previewed.holds(now).is_empty());
    world.meet(&Event::Asks { mib: 100 });
    assert_eq!(world.pass(), None);
    assert_eq!(world.told(), Some(("before-shrink", 128, 64)), "it runs still");
    world.meet(&Event::Releases);
    world.pass();
    world.decide_and_pass(256);
    world.meet(&Event::HookEnds(true));
    assert_eq!(world.told(), Some(("after-grow", 64, 256)));
    world.meet(&Event::Decided {
        mib: Some(300),
        no_room: false,
    });
    world.meet(&Event::PassBegins);
    world.meet(&Event::PassEnds {
        outcome: 3,
        denied: false,
    });
    world.meet(&Event::HookEnds(true));
    assert_eq!(world.told(), None, "it did not grow");
}

#[test]
fn the_guard_grows_no_cpu_limit_of_an_operator() {
    let mut world = settled(128);
    world.meet(&Event::Asks { mib: 100 });
    // The guard did not know of the override.
    world.meet(&Event::Throttled(true));
    assert!(world.state.desired.temporary.is_empty(), "{:?}", world.state);
    world.check_copies().unwrap();
}

#[test]
fn a_stuck_limit_is_announced_again() {
    let mut world = settled(128);
    world.decide_and_pass(64);
    for told in [false, true] {
        world.meet(&Event::HookEnds(true));
        world.meet(&Event::PassBegins);
        world.meet(&Event::PassEnds {
            outcome: 3,
            denied: false,
        });
        world.meet(&Event::Waits {
            seconds: if told { 400 } else { 20 },
        });
        world.meet(&Event::PassBegins);
        assert_eq!(world.told().is_some(), told);
        world.meet(&Event::PassEnds {
            outcome: 3,
            denied: false,
        });
    }
    let mut pod = Pod::clone(&world.state.pod);
    let containers = pod.spec.containers.iter_mut();
    let values = containers.flat_map(|container| container.hook_variables.values_mut());
    values.for_each(|value| *value = Some("free some".to_owned()));
    let mut world = settled(128);
    world.apply(PodInput::Described(Arc::new(pod)));
    let unreadable = |effect: &Effect| match effect {
        Effect::Record { record, is_news, .. } => {
            *is_news && matches!(&record.outcome, Outcome::Hook(HookEnd { how: Err(_), .. }))
        }
        _ => false,
    };
    world.meet(&Event::Decided {
        mib: Some(64),
        no_room: false,
    });
    world.apply(PodInput::OnNode(NodeEvent::TurnGiven));
    let effects = world.state.apply(PodInput::OnNode(NodeEvent::PassDue(true)), world.now);
    assert!(effects.iter().any(unreadable), "{effects:?}");
    assert_eq!(world.pass(), None, "what cannot be read keeps nothing up");
    assert_eq!(world.told(), None);
}

#[test]
fn a_limit_that_waits_for_its_turn_is_not_announced() {
    let mut world = settled(128);
    world.meet(&Event::Decided {
        mib: Some(64),
        no_room: false,
    });
    assert_eq!((world.pass(), world.told()), (Some(128), None));
    world.apply(PodInput::OnNode(NodeEvent::TurnGiven));
    assert_eq!(world.pass(), Some(128));
    assert_eq!(world.told(), Some(("before-shrink", 128, 64)));
}

#[test]
fn a_still_lower_limit_is_announced_again() {
    let mut world = settled(128);
    for (mib, is_told) in [(64, true), (96, false), (32, true)] {
        world.meet(&Event::Decided {
            mib: Some(mib),
            no_room: false,
        });
        world.apply(PodInput::OnNode(NodeEvent::TurnGiven));
        world.meet(&Event::PassBegins);
        world.meet(&Event::PassEnds {
            outcome: 3,
            denied: false,
        });
        assert_eq!(world.told(), is_told.then_some(("before-shrink", 128, mib)));
        world.meet(&Event::HookEnds(true));
    }
}

#[test]
fn evidence_borrows_memory_once_an_hour() {
    let mut world = settled(128);
    let lent = |World { copies, .. }: &World| Some(copies.least_limits.get(&"u1".into(), "app")?.get() / MIB);
    world.meet(&Event::Pressed { mib: 32 });
    assert_eq!(world.told(), Some(("on-memory-pressure", 128, 160)));
    assert_eq!(lent(&world), Some(160));
    world.meet(&Event::Quiet { mib: 1 });
    assert_eq!(lent(&world), Some(160), "it is being left");
    let kept = |world: &World| watched_limits(&world.state, true, world.now.wall).unwrap().containers[0].evidence;
    assert_eq!(kept(&world), None);
    world.meet(&Event::HookEnds(false));
    assert_eq!((lent(&world), world.told()), (None, None));
    world.meet(&Event::Pressed { mib: 64 });
    assert_eq!(
        (lent(&world), world.told()),
        (Some(192), None),
        "lent, but not for that"
    );
    world.meet(&Event::Waits { seconds: 3600 });
    assert_eq!(kept(&world), Some(Bytes::new(64 * MIB)));
    assert!(
        watched_limits(&world.state, false, world.now.wall)
            .is_none_or(|guarded| { guarded.containers.iter().all(|terms| terms.evidence.is_none()) })
    );
    // What was lent before stays lent.
    world.meet(&Event::Pressed { mib: 96 });
    assert_eq!(world.told(), Some(("on-memory-pressure", 128, 224)));
    world.check_copies().unwrap();
}

#[test]
fn evidence_that_is_due_ends_also_without_hooks() {
    let mut world = settled(128);
    world.decide_and_pass(64);
    world.meet(&Event::Pressed { mib: 32 });
    assert_eq!(world.told(), Some(("before-shrink", 128, 64)));
    // The namespace may not use hooks any more.
    world.apply(PodInput::OnNode(NodeEvent::PassDue(false)));
    world.meet(&Event::HookEnds(true));
    assert_eq!(
        world.told(),
        Some(("on-memory-pressure", 128, 160)),
        "the controller refuses it"
    );
    world.meet(&Event::HookEnds(false));
    let given = world.copies.least_limits.get(&"u1".into(), "app");
    assert_eq!((world.told(), given), (None, None));
}

#[test]
fn evidence_goes_before_other_hooks() {
    let mut world = settled(128);
    world.decide_and_pass(64);
    world.meet(&Event::Pressed { mib: 32 });
    assert_eq!(world.told(), Some(("before-shrink", 128, 64)));
    world.meet(&Event::HookEnds(true));
    assert_eq!(world.told(), Some(("on-memory-pressure", 128, 160)));
    world.meet(&Event::HookEnds(true));
    assert_eq!(world.told(), None);
    world.check_copies().unwrap();
}
