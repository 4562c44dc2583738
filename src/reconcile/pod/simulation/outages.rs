//! What holds for every course of an outage of the API server: whatever an operator set, released or let end in it, and whoever
//! else changed the spec meanwhile, in the end the spec and the kernel have the same, and no change of somebody else is lost.

use super::*;

fn happening() -> impl Strategy<Value = Happening> {
    let mib = || 200_u64..204;
    prop_oneof![
        mib().prop_map(|mib| Happening::Sets { mib }),
        Just(Happening::Releases),
        Just(Happening::OverrideEnds),
        // None that an operator sets: nobody could tell whose it is.
        (300_u64..304).prop_map(|mib| Happening::SomebodyElseSets { mib }),
        Just(Happening::AgentIsKilled),
        Just(Happening::FilesAreWritten),
        Just(Happening::AnswerIsLost),
    ]
}

proptest! {
    #[test]
    fn in_the_end_spec_and_kernel_agree(
        before in proptest::option::of(200_u64..204),
        carries_out in any::<bool>(),
        happenings in vec(happening(), 0..12),
    ) {
        let mut world = World::new();
        world.carries_out = carries_out;
        if let Some(mib) = before {
            world.happen(&Happening::Sets { mib });
            world.passes(true);
            world.hear();
        }
        world.away = true;
        let mut theirs = None;
        for (index, happening) in happenings.iter().enumerate() {
            if let Happening::SomebodyElseSets { mib } = happening {
                theirs = Some(*mib);
            }
            world.happen(happening);
            world.passes(index > 0);
            let desired = world.state.desired.targets(&world.state.pod);
            if let Some(desired) = desired {
                prop_assert_eq!(world.kernel[0], limit(&desired), "the kernel waits for the API server");
            }
        }
        let overridden = world.state.desired.overridden.as_ref().map(|overridden| limit(&overridden.values));
        let ahead = world.state.resize.is_ahead();
        world.recover();
        let spec = limit(&world.server.requirements());
        let state = &world.state;
        if !state.desired.is_empty() {
            prop_assert_eq!(world.kernel[0], spec, "{:?}", state);
        }
        prop_assert!(!state.resize.is_ahead() && !state.resize.waits_for_api_server(), "{:?}", state);
        match theirs {
            Some(theirs) if ahead => {
                prop_assert_eq!(spec, theirs);
                prop_assert!(state.desired.overridden.is_none());
                prop_assert!(world.lost > 0 || overridden.is_none(), "what an operator set is lost silently");
            }
            Some(_) => {}
            None => {
                prop_assert_eq!(spec, overridden.unwrap_or(AT_FIRST));
                prop_assert_eq!(world.lost, 0);
            }
        }
    }
}
