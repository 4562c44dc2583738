use proptest::prelude::*;

use super::*;
use crate::model::{Bytes, MilliCpu};

const fn list(cpu: u64, memory: u64) -> ResourceList {
    ResourceList {
        cpu: Some(MilliCpu::new(cpu)),
        memory: Some(Bytes::new(memory)),
    }
}

const fn allocatable(amounts: ResourceList) -> Capacity {
    Capacity {
        amounts,
        from: Capacity::ALLOCATABLE,
    }
}

/// A node with 1000 of both, of which others take that.
const fn room(take: ResourceList) -> Room {
    Room {
        capacity: allocatable(list(1000, 1000)),
        others: OtherPods { take, pods: 3 },
    }
}

#[test]
fn a_full_node_is_refused_with_the_numbers() {
    let room = room(list(600, 0));
    assert_eq!(room.check(list(300, 1), list(400, 1)), Ok(()));
    let refused = room.check(list(300, 1), list(401, 1)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the node has no room: the pod would request 401m of cpu, 400m of 1000m are left by other pods, which request 600m"
    );
}

#[test]
fn the_node_object_counts_for_more_than_the_machine() {
    let mut node = Node::default();
    let machine = list(1, 1);
    for silent in [None, Some(&node)] {
        let capacity = Capacity::of_node_or(silent, machine);
        assert_eq!((capacity.from, capacity.amounts), (Capacity::MACHINE, machine));
    }
    node.status.allocatable = list(2, 2);
    assert_eq!(Capacity::of_node_or(Some(&node), machine), allocatable(list(2, 2)));
}

#[test]
fn what_nobody_says_the_node_has_bounds_nothing() {
    let room = Room {
        capacity: allocatable(ResourceList {
            cpu: None,
            ..list(0, 10)
        }),
        ..room(list(5, 5))
    };
    assert_eq!(room.check(list(1, 1), list(9000, 5)), Ok(()));
    assert_eq!(room.check(list(1, 1), list(1, 6)).unwrap_err().left(), 5);
}

fn account(takes: &[ResourceList]) -> NodeRequests {
    takes.iter().map(|take| (0, *take)).collect()
}

#[test]
fn yielding_depends_on_the_setting() {
    let own = list(100, 100);
    let account = NodeRequests::from_iter([(0, list(300, 0)), (5, own), (5, list(200, 7)), (9, list(400, 0))]);
    let room = Room {
        others: account.others(own),
        ..room(list(0, 0))
    };
    let fits = |ask, cpu| {
        let room = room.without(account.yields(5, own, ask));
        room.check(own, list(cpu, 100)).is_ok()
    };
    let most = |ask| (1..=2000).filter(|cpu| fits(ask, *cpu)).max();
    assert_eq!(most(AskWhenFull::Never), Some(100));
    assert_eq!(most(AskWhenFull::Priority), Some(400));
    assert_eq!(most(AskWhenFull::Always), Some(1000));
}

fn amounts() -> impl Strategy<Value = ResourceList> {
    (0..1500_u64, 0..1500_u64).prop_map(|(cpu, memory)| list(cpu, memory))
}

proptest! {
    #[test]
    fn exactly_what_grows_beyond_what_is_left_is_refused(take in amounts(), before in amounts(), after in amounts()) {
        let room = room(take);
        let too_much = |resource| {
            let [take, before, after] = [take, before, after].map(|list| list.amount(resource));
            after > before && take + after > 1000
        };
        let refused = room.check(before, after);
        prop_assert_eq!(refused.is_err(), Resource::ALL.into_iter().any(too_much));
        if let Err(refused) = refused {
            prop_assert!(too_much(refused.resource) && refused.left() < refused.after);
        }
    }

    #[test]
    fn a_pods_room_depends_on_others_alone(
        mut takes in prop::collection::vec(amounts(), 1..20),
        which: prop::sample::Index,
        other in amounts(),
    ) {
        let own = which.index(takes.len());
        let before = account(&takes);
        let others = before.others(takes[own]);
        let mut changed = before;
        changed.change(0, takes[own], other);
        takes[own] = other;
        let after = account(&takes);
        prop_assert_eq!(&changed, &after);
        prop_assert_eq!(after.others(other), others);
        prop_assert_eq!(others.pods, takes.len() - 1);
    }

    #[test]
    fn pods_never_take_more_than_there_is(
        mut takes in prop::collection::vec((0..100_u64, 0..100_u64).prop_map(|(cpu, memory)| list(cpu, memory)), 1..10),
        wishes in prop::collection::vec((any::<prop::sample::Index>(), amounts()), 0..40),
    ) {
        let mut account = account(&takes);
        for (which, wish) in wishes {
            let own = which.index(takes.len());
            let room = Room { others: account.others(takes[own]), ..room(ResourceList::default()) };
            if room.check(takes[own], wish).is_ok() {
                account.change(0, takes[own], wish);
                takes[own] = wish;
            }
            for resource in Resource::ALL {
                let taken: u64 = takes.iter().map(|take| take.amount(resource)).sum();
                prop_assert!(taken <= 1000, "{taken} of {resource}");
            }
        }
    }
}
