use proptest::prelude::*;

use super::*;
use crate::oom::{Level, VictimMemory};

const UID: &str = "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn container(number: u64) -> CgroupPath {
    CgroupPath::new(&format!("/kubepods/burstable/pod{UID}/{number:064x}")).unwrap()
}

fn kill(pid: u32, limit: Limit, task: Option<CgroupPath>) -> Kill {
    Kill {
        pid,
        comm: "x".to_owned(),
        limit,
        task_cgroup: task,
        group: None,
        memory: VictimMemory::default(),
        oom_score_adj: None,
        uid: None,
        invoker: None,
        seq: None,
        timestamp_us: None,
    }
}

fn unexplained(pid: u32) -> Kill {
    kill(pid, Limit::Unknown, None)
}

fn named(pid: u32, number: u64) -> Kill {
    kill(pid, Limit::Cgroup(container(number)), Some(container(number)))
}

fn once() -> NonZeroU64 {
    NonZeroU64::MIN
}

fn summary(kill: &OomKill) -> (Option<&CgroupPath>, &'static str, Option<u32>) {
    (
        kill.cgroup.as_ref(),
        kill.evidence.confidence(),
        kill.victim().map(|kill| kill.pid),
    )
}

#[test]
fn a_named_kill_is_told_at_once_and_speaks_for_the_counter() {
    for counter_first in [true, false] {
        let mut joiner = Joiner::new(true);
        if counter_first {
            assert_eq!(joiner.counted(ms(0), ms(1), &container(1), once()), []);
        }
        let told = joiner.logged(ms(1), named(7, 1), None).unwrap();
        assert_eq!(summary(&told), (Some(&container(1)), "exact", Some(7)));
        assert_eq!(told.level(), Level::Container);
        if !counter_first {
            assert_eq!(joiner.counted(ms(0), ms(900), &container(1), once()), []);
        }
        assert_eq!((joiner.settle(ms(5000)), joiner.due()), (vec![], None));
    }
}

#[test]
fn what_proc_still_knew_is_as_good_unless_the_process_was_leaving() {
    let mut joiner = Joiner::new(true);
    let told = joiner.logged(ms(0), unexplained(7), Some(container(1))).unwrap();
    assert_eq!(summary(&told), (Some(&container(1)), "procfs", Some(7)));
    assert_eq!(joiner.logged(ms(0), unexplained(8), Some(CgroupPath::root())), None);
    let leaving = kill(9, Limit::Cgroup(container(2)), Some(CgroupPath::root()));
    assert_eq!(
        summary(&joiner.logged(ms(0), leaving, None).unwrap()),
        (Some(&container(2)), "exact", Some(9))
    );
}

#[test]
fn the_only_counter_that_rose_tells_where() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.logged(ms(0), unexplained(7), None), None);
    assert_eq!(joiner.counted(ms(0), ms(900), &container(1), once()), []);
    assert_eq!((joiner.settle(ms(1500)), joiner.due()), (vec![], Some(HOLD)));
    let told = joiner.settle(HOLD);
    assert_eq!(
        told.iter().map(summary).collect::<Vec<_>>(),
        [(Some(&container(1)), "only-counter-that-rose", Some(7))]
    );
    assert_eq!(joiner.due(), None);
}

#[test]
fn of_several_counters_each_gets_a_kill_and_none_a_certain_victim() {
    let mut joiner = Joiner::new(true);
    for pid in [7, 8] {
        assert_eq!(joiner.logged(ms(0), unexplained(pid), None), None);
        assert_eq!(joiner.counted(ms(0), ms(1), &container(pid.into()), once()), []);
    }
    let told = joiner.settle(HOLD);
    for (told, number) in told.iter().zip([7, 8]) {
        assert_eq!(summary(told), (Some(&container(number)), "ambiguous", None));
        let Evidence::Ambiguous(candidates) = &told.evidence else {
            panic!("{told:?}")
        };
        assert_eq!(candidates.iter().map(|kill| kill.pid).collect::<Vec<_>>(), [7, 8]);
    }
    assert_eq!(told.len(), 2);
}

#[test]
fn a_pods_limit_narrows_down_where_its_victim_was() {
    let mut joiner = Joiner::new(true);
    let pod = container(1).parent().unwrap();
    let elsewhere = CgroupPath::new("/kubepods/other").unwrap();
    assert_eq!(
        joiner.logged(ms(0), kill(7, Limit::Cgroup(pod), Some(CgroupPath::root())), None),
        None
    );
    assert_eq!(joiner.counted(ms(0), ms(1), &elsewhere, once()), []);
    assert_eq!(joiner.counted(ms(0), ms(2), &container(1), once()), []);
    let told: Vec<OomKill> = [ms(300), HOLD].into_iter().flat_map(|now| joiner.settle(now)).collect();
    let found: Vec<_> = told.iter().map(summary).collect();
    assert_eq!(
        found,
        [
            (Some(&elsewhere), "counter-alone", None),
            (Some(&container(1)), "only-counter-that-rose", Some(7)),
        ]
    );
    assert_eq!(told[1].level(), Level::Pod);
}

#[test]
fn a_counter_without_a_log_and_a_log_without_a_counter_are_both_told() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.counted(ms(0), ms(0), &container(1), once()), []);
    assert_eq!(joiner.due(), Some(LOG_DELAY));
    assert_eq!(
        joiner.settle(LOG_DELAY).iter().map(summary).collect::<Vec<_>>(),
        [(Some(&container(1)), "counter-alone", None)]
    );
    assert_eq!(joiner.logged(ms(5000), unexplained(7), None), None);
    assert_eq!(
        joiner.settle(ms(7000)).iter().map(summary).collect::<Vec<_>>(),
        [(None, "log-alone", Some(7))]
    );
    let told = Joiner::new(false).counted(ms(0), ms(0), &container(1), NonZeroU64::new(3).unwrap());
    assert_eq!(told.len(), 3, "without a log there is nothing to wait for");
}

#[test]
fn the_first_victim_of_a_group_counts_once_though_the_kernel_counts_it_twice() {
    for is_named in [true, false] {
        let mut joiner = Joiner::new(true);
        let first = if is_named { named(7, 1) } else { unexplained(7) };
        let mut told: Vec<OomKill> = joiner.logged(ms(0), first, None).into_iter().collect();
        told.extend(joiner.logged(ms(1), named(8, 1), None));
        told.extend(joiner.logged_again(ms(2), 7, &container(1)));
        told.extend(joiner.counted(ms(0), ms(3), &container(1), NonZeroU64::new(3).unwrap()));
        told.extend(joiner.settle(ms(9000)));
        let mut found: Vec<_> = told.iter().map(summary).collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [
                (Some(&container(1)), "exact", Some(7)),
                (Some(&container(1)), "exact", Some(8))
            ]
        );
    }
}

/// A kill as it happens, and when each side hears of it.
#[derive(Debug, Clone)]
struct Happening {
    at: u64,
    container: u64,
    log_delay: u64,
    known: Known,
    is_logged: bool,
}

#[derive(Debug, Clone, Copy)]
enum Known {
    ByName,
    ByProc,
    Not,
}

fn happening() -> impl Strategy<Value = Happening> {
    let known = prop_oneof![
        Just(Known::ByName),
        Just(Known::ByProc),
        Just(Known::Not),
        Just(Known::Not)
    ];
    (1..6000_u64, 0..4_u64, 0..200_u64, known, prop::bool::weighted(0.95)).prop_map(
        |(at, container, log_delay, known, is_logged)| Happening {
            at,
            container,
            log_delay,
            known,
            is_logged,
        },
    )
}

/// Plays kills to a joiner and returns what it tells. Counters are read each second, each at a moment of its own, and at
/// `extra` times, as notifications make happen.
fn play(happenings: &[Happening], extra: &[(u64, u64)]) -> Vec<OomKill> {
    let mut joiner = Joiner::new(true);
    let mut told = Vec::new();
    let mut last_read = [0; 4];
    for now in 0..12_000_u64 {
        for (kill, pid) in happenings.iter().zip(1..) {
            if kill.is_logged && kill.at + kill.log_delay == now {
                let (logged, unexplained) = (ms(kill.at), unexplained(pid));
                told.extend(match kill.known {
                    Known::ByName => joiner.logged(logged, named(pid, kill.container), None),
                    Known::ByProc => joiner.logged(logged, unexplained, Some(container(kill.container))),
                    Known::Not => joiner.logged(logged, unexplained, None),
                });
            }
        }
        for (number, after) in (0..4).zip(&mut last_read) {
            if now % 1000 == number * 170 || extra.contains(&(now, number)) {
                let is_new = |kill: &&Happening| kill.container == number && *after < kill.at && kill.at <= now;
                let new = u64::try_from(happenings.iter().filter(is_new).count()).unwrap();
                let new = NonZeroU64::new(new).into_iter();
                told.extend(new.flat_map(|new| joiner.counted(ms(*after), ms(now), &container(number), new)));
                *after = now;
            }
        }
        told.extend(joiner.settle(ms(now)));
    }
    assert_eq!(joiner.due(), None);
    told
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_kill_is_told_once_for_its_container_and_no_victim_is_placed_wrongly(
        happenings in proptest::collection::vec(happening(), 0..25),
        extra in proptest::collection::vec((0..7000_u64, 0..4_u64), 0..10),
    ) {
        let told = play(&happenings, &extra);
        prop_assert_eq!(told.len(), happenings.len(), "{:?}", told);
        for number in 0..4 {
            let happened = happenings.iter().filter(|kill| kill.container == number).count();
            let path = container(number);
            prop_assert_eq!(told.iter().filter(|kill| kill.cgroup.as_ref() == Some(&path)).count(), happened);
        }
        let truth = |pid: u32| container(happenings[usize::try_from(pid).unwrap() - 1].container);
        for told in &told {
            match &told.evidence {
                Evidence::Ambiguous(candidates) => {
                    let is_possible = |kill: &Kill| Some(truth(kill.pid)) == told.cgroup;
                    let all_logged = happenings.iter().all(|kill| kill.is_logged);
                    prop_assert!(candidates.iter().any(is_possible) || !all_logged, "{:?}", told);
                }
                _ => {
                    let place = told.victim().map(|victim| truth(victim.pid));
                    prop_assert!(place.is_none() || place == told.cgroup, "{:?}", told);
                }
            }
        }
    }
}
