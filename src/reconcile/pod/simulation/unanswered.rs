//! What holds for every course of patches without an answer: what this agent may have patched never becomes the pod's own, also while
//! somebody else changes the spec.

use super::*;

/// What happens beside requests that may have been carried out, all of it by this agent.
fn ours() -> impl Strategy<Value = Happening> {
    let container = || 0_usize..2;
    prop_oneof![
        3 => (any::<bool>(), any::<bool>()).prop_map(|(carries_out, silent)| Happening::Fails { carries_out, silent }),
        2 => Just(Happening::WatchBrings),
        2 => [60_u64..70, 60..70].prop_map(|mib| Happening::Recommends { mib }),
        2 => (container(), 300_u64..310).prop_map(|(container, mib)| Happening::Grows { container, mib }),
        2 => container().prop_map(|container| Happening::IsQuiet { container }),
        1 => Just(Happening::MayLower),
        1 => Just(Happening::AgentIsKilled),
    ]
}

/// The same, while somebody else changes another container.
fn ours_beside_others() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => ours(),
        1 => (400_u64..404).prop_map(|mib| Happening::SomebodyElseSetsSide { mib }),
    ]
}

proptest! {
    #[test]
    fn what_may_be_carried_out_is_ours(happenings in vec(ours(), 0..40)) {
        let mut world = World::new();
        let mut own = world.server.requirements();
        for happening in &happenings {
            if let Happening::Recommends { mib } = happening {
                for ((_, has), mib) in own.iter_mut().zip(mib) {
                    has.requests.memory = Some(Bytes::new(mib * MIB));
                    has.limits.memory = Some(Bytes::new(2 * mib * MIB));
                }
            }
            world.happen_beside(happening);
            prop_assert_eq!(world.lost, 0);
            for (_, has) in world.without_own_changes().iter() {
                let (request, limit) = (has.requests.memory.unwrap(), has.limits.memory.unwrap());
                prop_assert_eq!(2 * request.get(), limit.get(), "{:?}", world.state);
            }
        }
        world.calm();
        world.happen(&Happening::MayLower);
        world.recover();
        prop_assert_eq!(world.lost, 0);
        prop_assert_eq!(world.server.requirements(), own, "{:?}", world.state);
    }
}

proptest! {
    #[test]
    fn a_foreign_edit_leaves_nothing_of_ours(
        happenings in vec(ours_beside_others(), 0..40),
    ) {
        let mut world = World::new();
        let mut own = AT_FIRST;
        for happening in &happenings {
            if let Happening::Recommends { mib } = happening {
                own = 2 * mib[0];
            }
            world.happen_beside(happening);
        }
        world.calm();
        world.recover_and_lower();
        prop_assert_eq!(limit(&world.server.requirements()), own, "{:?}", world.state);
        prop_assert!(world.state.desired.temporary.is_empty(), "{:?}", world.state);
    }
}

#[test]
fn an_unanswered_patch_stays_known() {
    for follow in [1, 9, 60] {
        let mut world = World::new();
        world.happen(&Happening::Fails {
            carries_out: true,
            silent: true,
        });
        world.happen(&Happening::Recommends { mib: [90, 90] });
        world.passes(true);
        for number in 0..follow {
            world.happen(&Happening::Fails {
                carries_out: false,
                silent: number % 2 == 0,
            });
            world.happen_beside(&Happening::Recommends { mib: [91 + number, 90] });
            assert_eq!(limit(&world.server.requirements()), 180);
            let prepared = world.state.resize.prepared();
            assert_eq!(
                prepared.map(|prepared| (limit(&prepared.targets), prepared.earlier.len())),
                Some((180, 0))
            );
        }
        world.recover();
        assert_eq!(
            limit(&world.server.requirements()),
            2 * (90 + follow),
            "{:?}",
            world.state
        );
        assert_eq!(world.lost, 0);
    }
}

#[test]
fn a_growth_ends_despite_a_foreign_edit() {
    for (carries_out, silent) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut world = World::new();
        world.happen(&Happening::Fails { carries_out, silent });
        world.happen(&Happening::Grows { container: 0, mib: 300 });
        world.passes(true);
        world.happen(&Happening::SomebodyElseSetsSide { mib: 400 });
        world.happen(&Happening::WatchBrings);
        world.passes(true);
        if silent {
            let side = &world.state.desired.targets(&world.state.pod).unwrap().containers[1];
            assert_eq!(side.resources.limits.memory, Some(Bytes::new(400 * MIB)));
        }
        world.happen(&Happening::IsQuiet { container: 0 });
        world.recover();
        assert_eq!(limit(&world.server.requirements()), AT_FIRST, "{:?}", world.state);
    }
}

#[test]
fn a_successor_takes_no_kept_limit_for_own() {
    let mut world = World::new();
    world.happen(&Happening::Recommends { mib: [91, 91] });
    world.passes(true);
    world.hear();
    world.happen(&Happening::Fails {
        carries_out: true,
        silent: true,
    });
    world.happen(&Happening::Recommends { mib: [89, 89] });
    world.passes(true);
    assert_eq!(
        limit(&world.server.requirements()),
        182,
        "kept until it is the pod's turn"
    );
    world.happen(&Happening::AgentIsKilled);
    // Its first pass may run by now.
    assert_eq!(limit(&world.without_own_changes()), 178);
}

#[test]
fn growth_amid_a_patch_is_never_the_pods() {
    for number in 0..8 {
        let [carries_out, silent, killed] = [1, 2, 4].map(|bit| number & bit != 0);
        let mut world = World::new();
        world.happen(&Happening::Overtakes(Overtaking {
            container: 0,
            mib: 300,
            carries_out,
            silent,
            killed,
        }));
        world.happen(&Happening::Recommends { mib: [60, 61] });
        world.begin_pass(true);
        // The next request is lost on its way.
        world.away = true;
        world.apply(PodInput::TimePassed);
        world.passes(true);
        world.away = false;
        world.happen(&Happening::WatchBrings);
        world.passes(true);
        world.happen(&Happening::IsQuiet { container: 0 });
        world.recover_and_lower();
        let case = (carries_out, silent, killed);
        assert_eq!(world.lost, 0, "{case:?}");
        assert_eq!(limit(&world.server.requirements()), 120, "{case:?}: {:?}", world.state);
    }
}

/// The second container's temporary limit ends because somebody else has set more, the first one's amid a refused request.
#[test]
fn the_last_temporary_limit_leaves_none_in_the_spec() {
    let mut world = World::new();
    for container in 0..2 {
        world.happen(&Happening::Grows { container, mib: 300 });
        world.passes(true);
    }
    world.happen(&Happening::AgentIsKilled);
    world.happen(&Happening::Fails {
        carries_out: false,
        silent: false,
    });
    world.happen(&Happening::SomebodyElseSetsSide { mib: 400 });
    world.happen(&Happening::IsQuiet { container: 0 });
    world.passes(true);
    world.happen(&Happening::WatchBrings);
    world.passes(true);
    world.recover_and_lower();
    let spec = world.server.requirements();
    assert_eq!(
        [0, 1].map(|container| limit_of(&spec, container)),
        [AT_FIRST, 400],
        "{:?}",
        world.state
    );
}

/// The cgroups are ahead of the spec, and somebody else sets what is wanted just then. A later recommendation wants another amount.
#[test]
fn an_edit_that_was_wanted_overtakes_nothing_later() {
    let mut world = World::new();
    let fails = |carries_out, silent| Happening::Fails { carries_out, silent };
    for happening in [
        fails(true, false),
        Happening::Recommends { mib: [60, 60] },
        Happening::Grows { container: 0, mib: 300 },
        Happening::Recommends { mib: [60, 61] },
        fails(false, true),
        fails(false, false),
        Happening::SomebodyElseSetsSide { mib: 400 },
        Happening::SomebodyElseSetsSide { mib: 400 },
        fails(true, false),
        Happening::AgentIsKilled,
    ] {
        world.happen_beside(&happening);
    }
    world.calm();
    world.recover_and_lower();
    assert_eq!(limit(&world.server.requirements()), 120, "{:?}", world.state);
    assert!(world.state.desired.temporary.is_empty(), "{:?}", world.state);
}
