//! Outages by example.

use super::*;
use crate::model::CpuBurst;

#[test]
fn a_loss_is_told_once() {
    let mut world = World::new();
    world.away = true;
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(false);
    assert!(world.state.resize.waits_for_api_server() && world.kernel[0] == 200);
    assert_eq!(explained::status(&world.state, world.now.wall), PodStatus::Owed);
    world.happen(&Happening::SomebodyElseSets { mib: 201 });
    world.recover();
    assert_eq!(
        (world.lost, world.kernel[0], limit(&world.server.requirements())),
        (1, 201, 201)
    );
}

/// Another client sets the limit of an override while another override waits for its pass, which then fails.
#[test]
fn no_failure_brings_back_an_override_that_has_yielded() {
    let mut world = World::new();
    world.away = true;
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(false);
    assert!(world.state.resize.is_ahead());
    world.happen(&Happening::Sets { mib: 201 });
    world.happen(&Happening::SomebodyElseSets { mib: 300 });
    world.happen(&Happening::WatchBrings);
    assert!(world.state.work.request().is_none(), "the operator has an answer");
    assert!(world.start_pass(true));
    let pass = world.running.take().unwrap();
    let done = pass.done(Outcome::RolledBack("EBUSY".to_owned()));
    world.end_pass(pass.number, done);
    assert_eq!(world.state.desired.overridden, None);
}

#[test]
fn an_edit_beside_an_override_takes_nothing_from_it() {
    let mut world = World::new();
    world.away = true;
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(false);
    world.happen(&Happening::SomebodyElseSetsSide { mib: 400 });
    world.recover();
    let spec = world.server.requirements();
    assert_eq!((world.lost, limit_of(&spec, 0), limit_of(&spec, 1)), (0, 200, 400));
    assert_eq!(world.kernel, [200, 400]);
    world.happen(&Happening::Releases);
    world.passes(true);
    world.happen(&Happening::MayLower);
    world.recover();
    let spec = world.server.requirements();
    assert_eq!((limit_of(&spec, 0), limit_of(&spec, 1)), (AT_FIRST, 400));
}

#[test]
fn a_recommendation_waits_beside_an_override() {
    for known in [false, true] {
        let mut world = World::new();
        world.happen(&Happening::Sets { mib: 200 });
        world.passes(true);
        world.hear();
        world.away = true;
        world.happen(&Happening::Recommends { mib: [64, 90] });
        world.passes(known);
        assert_eq!(world.kernel, [200, AT_FIRST]);
        world.recover();
        assert_eq!(world.kernel, [200, 180]);
    }
}

/// The pass that writes what the guard gave does not wait for the API server, and the recommendation does.
#[test]
fn a_postponed_recommendation_is_not_in_force() {
    let mut world = World::new();
    world.happen(&Happening::Recommends { mib: [64, 90] });
    world.happen(&Happening::Grows { container: 0, mib: 300 });
    world.growing = true;
    world.passes(true);
    assert_eq!((world.passes, world.kernel), (1, [300, AT_FIRST]));
    let in_force = |world: &World| world.state.desired.recommended.as_ref().unwrap().in_force();
    assert_eq!(in_force(&world), None);
    world.growing = false;
    world.hear();
    assert!(in_force(&world).is_some());
}

#[test]
fn an_earlier_override_outlasts_a_denial() {
    let mut world = World::new();
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(true);
    world.hear();
    world.away = true;
    let mut containers = world.server.requirements();
    containers.containers[0].resources.requests.memory = Some(Bytes::new(80 * MIB));
    world.decide(Reason::OutOfBounds, containers);
    world.passes(false);
    assert!(world.state.resize.waits_for_api_server());
    (world.away, world.denies) = (false, true);
    world.apply(PodInput::Check(Check::ApiServerReturned));
    world.passes(true);
    let state = &world.state;
    assert!(!state.resize.is_ahead(), "{state:?}");
    assert_eq!(
        state.desired.overridden.as_ref().map(|set| limit(&set.values)),
        Some(200)
    );
    let spec = limit(&world.server.requirements());
    assert_eq!((world.lost, world.kernel[0], spec), (0, 200, 200));
}

/// An API server that answers probes, and no patch of this pod.
#[test]
fn what_begins_each_outage_is_tried_within_a_rate() {
    let mut world = World::new();
    world.happen(&Happening::Sets { mib: 200 });
    for _ in 0..200 {
        world.happen(&Happening::Fails {
            carries_out: false,
            silent: true,
        });
        world.passes(true);
        world.apply(PodInput::Check(Check::ApiServerReturned));
    }
    assert!((2..20).contains(&world.passes), "{} passes", world.passes);
}

/// Each object of a pod without a VPA is decided about: also the one that is older than the request on the way back.
#[test]
fn a_decision_amid_a_release_brings_no_override_back() {
    let mut world = World::new();
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(true);
    world.happen(&Happening::KubeletSettles);
    world.happen(&Happening::WatchBrings);
    world.passes(true);
    let settled = world.server.clone();
    world.happen(&Happening::Releases);
    world.happen(&Happening::MayLower);
    world.passes(true);
    assert_eq!(limit(&world.server.requirements()), AT_FIRST);
    let released = std::mem::replace(&mut world.server, settled);
    world.happen(&Happening::WatchBrings);
    world.server = released;
    world.recover();
    assert_eq!(
        (limit(&world.server.requirements()), world.kernel[0]),
        (AT_FIRST, AT_FIRST)
    );
}

/// The pod once the VPA recommends this and the kubelet has deferred it.
fn deferred(mut world: World, mib: [u64; 2]) -> World {
    world.happen(&Happening::Recommends { mib });
    world.passes(true);
    world.kubelet_says("PodResizePending", "Deferred");
    world.happen(&Happening::WatchBrings);
    world.passes(true);
    assert_eq!(limit(&world.server.requirements()), 2 * mib[0]);
    world
}

/// The VPA goes, and everything has its turn.
fn goes(world: &mut World) {
    world.lose_vpa();
    world.passes(true);
    world.recover_and_lower();
}

/// The temporary limit has ended, and its end is requested, known to be requested, or waits for the API server. The recommendation
/// came before the limit or after it.
#[test]
fn a_vpa_that_goes_leaves_no_temporary_limit() {
    let cases = [(false, false), (true, false), (false, true)];
    for (number, (is_seen, away)) in cases.into_iter().chain(cases).enumerate() {
        let is_later = number >= cases.len();
        let mut world = World::new();
        let recommends = Happening::Recommends { mib: [90, 64] };
        let mut begins = [recommends, Happening::Grows { container: 0, mib: 300 }];
        if is_later {
            begins.reverse();
        }
        for happening in &begins {
            world.happen(happening);
            world.passes(true);
            world.hear();
        }
        assert_eq!(limit(&world.server.requirements()), 300);
        world.away = away;
        world.happen(&Happening::IsQuiet { container: 0 });
        world.passes(true);
        if is_seen {
            world.happen(&Happening::WatchBrings);
            world.passes(true);
        }
        world.away = false;
        goes(&mut world);
        let spec = limit(&world.server.requirements());
        let case = (is_later, is_seen, away);
        assert_eq!([spec, world.kernel[0]], [180; 2], "{case:?}: {:?}", world.state);
    }
}

/// The VPA goes, and the recommendation that the kubelet has carried out stays at every level.
fn goes_with_all_of_it(world: &mut World) {
    goes(world);
    let spec = limit(&world.server.requirements());
    assert_eq!([spec, world.kernel[0]], [180; 2], "{:?}", world.state);
}

/// A pass whose request has no answer runs, and the kubelet has carried the request out.
fn carried_out_unanswered() -> World {
    let mut world = World::new();
    world.happen(&Happening::Recommends { mib: [90, 64] });
    assert!(world.start_pass(true));
    world.answer(Answer::Fails {
        carries_out: true,
        silent: true,
    });
    world.happen(&Happening::KubeletSettles);
    world
}

/// The API server has carried out an override that the operator was refused. The VPA goes while the agent requests to take it back.
#[test]
fn a_vpa_that_goes_leaves_no_refused_override() {
    let mut world = World::new();
    world.happen(&Happening::Recommends { mib: [90, 64] });
    world.passes(true);
    world.hear();
    world.happen(&Happening::Fails {
        carries_out: true,
        silent: false,
    });
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(true);
    world.happen(&Happening::KubeletSettles);
    world.happen(&Happening::WatchBrings);
    assert_eq!(limit(&world.state.pod.requirements()), 200);
    assert!(world.start_pass(true));
    world.lose_vpa();
    world.run();
    goes_with_all_of_it(&mut world);
}

/// The kubelet has not answered the request of a recommendation that came beside an override, and the override is being released.
#[test]
fn a_vpa_that_goes_leaves_no_partial_request() {
    let mut world = World::new();
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(true);
    world.hear();
    world.happen(&Happening::Recommends { mib: [90, 64] });
    world.passes(true);
    world.happen(&Happening::Releases);
    assert!(world.start_pass(true));
    world.lose_vpa();
    world.run();
    goes(&mut world);
    let own = World::new().server.requirements();
    assert_eq!(world.server.requirements(), own, "{:?}", world.state);
}

/// The kubelet has deferred the recommendation, and an override comes in an outage.
#[test]
fn a_deferred_recommendation_waits_beside_an_override() {
    for known in [false, true] {
        let mut world = deferred(World::new(), [64, 90]);
        world.away = true;
        world.happen(&Happening::Sets { mib: 200 });
        world.passes(known);
        assert_eq!(world.kernel, [200, AT_FIRST], "{known}: {:?}", world.state);
    }
}

#[test]
fn a_deferred_recommendation_ends_beside_a_released_override() {
    let mut world = deferred(World::new(), [90, 64]);
    for happening in [Happening::Sets { mib: 200 }, Happening::Releases] {
        world.happen(&happening);
        world.passes(true);
    }
    assert_eq!(limit(&world.server.requirements()), 180);
    goes(&mut world);
    let own = World::new().server.requirements();
    assert_eq!(world.server.requirements(), own, "{:?}", world.state);
}

/// The second override, to which the kubelet has not answered, sets what the VPA recommended.
#[test]
fn an_override_before_another_stays_an_override() {
    let mut world = World::new();
    world.happen(&Happening::Recommends { mib: [90, 64] });
    world.passes(true);
    world.hear();
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(true);
    world.hear();
    world.happen(&Happening::Sets { mib: 180 });
    world.passes(true);
    goes(&mut world);
    world.happen(&Happening::Releases);
    world.passes(true);
    world.happen(&Happening::MayLower);
    world.recover();
    let spec = limit(&world.server.requirements());
    assert_eq!([spec, world.kernel[0]], [180; 2], "{:?}", world.state);
}

/// The kubelet has carried out a request without an answer. The pass then writes what was granted before, and the VPA has gone meanwhile.
#[test]
fn a_pass_that_outlasts_its_vpa_is_compared() {
    for killed in [false, true] {
        let mut world = carried_out_unanswered();
        world.happen(&Happening::WatchBrings);
        world.lose_vpa();
        if killed {
            let writes = world.running.as_mut().and_then(|pass| pass.writes.take());
            world.write(writes.unwrap());
            world.happen(&Happening::AgentIsKilled);
        } else {
            world.end_running(None, None);
        }
        assert_eq!(world.kernel[0], AT_FIRST);
        goes(&mut world);
        let spec = limit(&world.server.requirements());
        assert_eq!([spec, world.kernel[0]], [180; 2], "{killed}: {:?}", world.state);
    }
}

/// The agent is killed after that pass has written, and the next one decides that there is no VPA before it finds the pod.
#[test]
fn a_vpa_that_goes_without_an_agent_is_noticed() {
    let mut world = carried_out_unanswered();
    world.happen(&Happening::WatchBrings);
    let writes = world.running.take().and_then(|pass| pass.writes);
    world.write(writes.unwrap());
    assert_eq!(world.kernel[0], AT_FIRST);
    let saved = world.state.saved();
    world.start_agent(Arc::new(world.server.clone()));
    world.lose_vpa();
    world.locate(Some(live(world.uid)), saved, None);
    goes_with_all_of_it(&mut world);
}

/// The kernel has what was granted before a request without an answer, which the kubelet has carried out. The pass that is due has not begun.
#[test]
fn a_pass_that_is_due_outlasts_its_vpa() {
    let mut world = carried_out_unanswered();
    world.end_running(None, None);
    world.happen(&Happening::WatchBrings);
    assert_eq!(world.kernel[0], AT_FIRST);
    goes_with_all_of_it(&mut world);
}

/// A pass could not undo what it had written, and the VPA goes before the pass is repeated.
#[test]
fn a_part_of_a_recommendation_ends_with_its_vpa() {
    let mut world = World::new();
    world.happen(&Happening::Recommends { mib: [90, 64] });
    assert!(world.start_pass(true));
    let pass = world.running.take().unwrap();
    let mut done = pass.done(Outcome::Incomplete("EBUSY".to_owned()));
    done.api.answer = Some(Err(crate::resize::ResizeError::NotSent));
    world.end_pass(pass.number, done);
    world.kernel[0] = 180;
    goes(&mut world);
    let spec = limit(&world.server.requirements());
    assert_eq!([spec, world.kernel[0]], [AT_FIRST; 2], "{:?}", world.state);
}

#[test]
fn a_denial_ends_no_limit_that_was_given_later() {
    let mut world = World::new();
    world.happen(&Happening::Grows { container: 0, mib: 300 });
    assert!(world.start_pass(true));
    world.happen(&Happening::Grows { container: 1, mib: 300 });
    world.answer(Answer::Denies);
    world.end_running(None, None);
    let limits = world.state.desired.temporary.iter();
    let denied: Vec<_> = limits.map(|limit| limit.denied.is_some()).collect();
    assert_eq!(denied, [true, false]);
}

#[test]
fn a_deferred_recommendation_ends_beside_the_limit_that_it_ended() {
    let mut world = World::new();
    let own = world.server.requirements();
    world.happen(&Happening::Grows { container: 0, mib: 150 });
    world.passes(true);
    world.hear();
    let mut world = deferred(world, [90, 64]);
    assert!(world.state.desired.temporary.is_empty());
    goes(&mut world);
    assert_eq!(world.server.requirements(), own, "{:?}", world.state);
}

/// Each pod that once had a burst.
#[test]
fn a_burst_keeps_no_request_that_nothing_wants() {
    let with_burst = || {
        let mut world = World::new();
        world.state.desired.burst = Some(CpuBurst::ZERO);
        world
    };
    let mut world = deferred(with_burst(), [90, 64]);
    goes(&mut world);
    assert_eq!(limit(&world.server.requirements()), AT_FIRST, "{:?}", world.state);

    // An override that was refused, and whose request was carried out all the same.
    let mut world = with_burst();
    world.happen(&Happening::Fails {
        carries_out: true,
        silent: false,
    });
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(true);
    assert_eq!(limit(&world.server.requirements()), 200);
    world.recover();
    let spec = limit(&world.server.requirements());
    assert_eq!([spec, world.kernel[0]], [AT_FIRST; 2], "{:?}", world.state);
}
