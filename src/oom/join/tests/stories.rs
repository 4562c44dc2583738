//! Kills, counters and logs at random.

use proptest::prelude::*;

use super::*;

/// A kill, and when each side learns of it.
#[derive(Debug, Clone)]
struct Happening {
    at: u64,
    container: u64,
    /// The milliseconds that the kernel takes to log the kill.
    late: u64,
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

fn happening(until: u64) -> impl Strategy<Value = Happening> {
    let known = prop_oneof![
        Just(Known::ByName),
        Just(Known::ByProc),
        Just(Known::Not),
        Just(Known::Not)
    ];
    (1..until, 0..4_u64, 0..400_u64, known, prop::bool::weighted(0.95)).prop_map(
        |(at, container, log_delay, known, is_logged)| Happening {
            at,
            container,
            late: 0,
            log_delay,
            known,
            is_logged,
        },
    )
}

/// Feeds kills to a joiner and returns its results. Each counter is read once a second, at a moment of its own, and at
/// `extra` times, like after notifications.
fn play(happenings: &[Happening], extra: &[(u64, u64)]) -> Vec<OomKill> {
    play_numbered(happenings, extra, None)
}

/// The same with numbers of kills, each up to `unsure` too low.
fn play_numbered(happenings: &[Happening], extra: &[(u64, u64)], unsure: Option<u64>) -> Vec<OomKill> {
    let mut joiner = Joiner::new(true);
    let counted_by = |now| 10 + u64::try_from(happenings.iter().filter(|kill| kill.at <= now).count()).unwrap();
    let mut told = Vec::new();
    let mut last_read = [0; 4];
    let last = happenings.iter().map(|kill| kill.at + kill.late).max();
    let end = last.unwrap_or(0) + 6000;
    for now in 0..end {
        for (kill, pid) in happenings.iter().zip(1..) {
            let logged = kill.at + kill.late;
            if kill.is_logged && logged + kill.log_delay == now {
                let (mut logged, unexplained) = (place(logged), unexplained(pid));
                if let Some(unsure) = unsure {
                    let order = |other: &Happening, at| (other.at, at) <= (kill.at, pid);
                    let before = happenings.iter().zip(1..).filter(|(other, at)| order(other, *at));
                    let last = 10 + u64::try_from(before.count()).unwrap();
                    logged.numbers = Numbers {
                        first: last - unsure,
                        last,
                    };
                }
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
                let rise = |new| {
                    let mut rise = rise(ms(*after), ms(now), &container(number), new);
                    if unsure.is_some() {
                        (rise.numbers.first, rise.numbers.last) = (counted_by(*after), counted_by(now));
                    }
                    rise
                };
                told.extend(new.flat_map(|new| joiner.counted(rise(new))));
                *after = now;
            }
        }
        if now % 50 == 0 {
            // The agent reads each kill within 400 ms.
            let log = ms(now.saturating_sub(400));
            let counters = ms(last_read.into_iter().min().unwrap_or(0));
            told.extend(joiner.decide_up_to(Progress { log, counters }));
        }
    }
    assert!(!joiner.is_waiting());
    told
}

/// Checks the number of kills of each container, and that no victim is placed in another container.
fn check(happenings: &[Happening], told: &[OomKill]) -> Result<(), TestCaseError> {
    prop_assert_eq!(told.len(), happenings.len(), "{:?}", found(told));
    for number in 0..4 {
        let happened = happenings.iter().filter(|kill| kill.container == number).count();
        let path = container(number);
        prop_assert_eq!(
            told.iter().filter(|kill| kill.cgroup.as_ref() == Some(&path)).count(),
            happened
        );
    }
    check_places(happenings, told)
}

/// Checks that no victim is placed in another container.
fn check_places(happenings: &[Happening], told: &[OomKill]) -> Result<(), TestCaseError> {
    for told in told {
        let place = told.victim().map(|victim| place_of(happenings, victim));
        prop_assert!(place.is_none() || place == told.cgroup, "{:?}", told);
    }
    Ok(())
}

fn place_of(happenings: &[Happening], victim: &Kill) -> CgroupPath {
    container(happenings[usize::try_from(victim.pid).unwrap() - 1].container)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn kills_are_told_once_in_their_container(
        happenings in proptest::collection::vec(happening(4000), 0..25),
        extra in proptest::collection::vec((0..5000_u64, 0..4_u64), 0..10),
    ) {
        let told = play(&happenings, &extra);
        check(&happenings, &told)?;
        let all_logged = happenings.iter().all(|kill| kill.is_logged);
        for told in told {
            if told.confidence == Confidence::Ambiguous {
                let is_possible = |kill: &Arc<Kill>| Some(place_of(&happenings, kill)) == told.cgroup;
                prop_assert!(told.processes.iter().any(is_possible) || !all_logged, "{:?}", told);
            }
        }
    }

    /// Only kills with a logged cgroup are very late here: others could be told twice. All are within two seconds, so that
    /// the group is complete before [`PATIENCE`] ends: a group that is decided in part may take a rise for a kill by guess.
    #[test]
    fn late_kills_are_told_once(
        happenings in proptest::collection::vec((happening(2000), 0..1500_u64), 0..25),
        extra in proptest::collection::vec((0..5000_u64, 0..4_u64), 0..10),
    ) {
        let late = |(happening, late): (Happening, u64)| match happening.known {
            Known::ByName | Known::ByProc => Happening { late, ..happening },
            Known::Not => Happening { late: late / 10, ..happening },
        };
        let happenings: Vec<Happening> = happenings.into_iter().map(late).collect();
        check(&happenings, &play(&happenings, &extra))?;
    }

    #[test]
    fn late_records_beside_lost_ones_place_no_victim_elsewhere(
        happenings in proptest::collection::vec((happening(4000), 0..1500_u64, prop::bool::weighted(0.7)), 1..25),
        extra in proptest::collection::vec((0..5000_u64, 0..4_u64), 0..40),
    ) {
        let late = |(happening, late, is_logged): (Happening, u64, bool)| Happening { late, is_logged, ..happening };
        let happenings: Vec<Happening> = happenings.into_iter().map(late).collect();
        let mut told = play(&happenings, &extra);
        told.retain(|kill| kill.cgroup.is_some());
        check_places(&happenings, &told)?;
    }

    #[test]
    fn numbered_kills_are_told_once(
        happenings in proptest::collection::vec(happening(4000), 0..40),
        extra in proptest::collection::vec((0..5000_u64, 0..4_u64), 0..300),
        unsure in 0..3_u64,
    ) {
        check(&happenings, &play_numbered(&happenings, &extra, Some(unsure)))?;
    }

    #[test]
    fn a_flood_without_an_end_is_told_as_it_goes(happenings in proptest::collection::vec(happening(15_000), 40..120)) {
        check(&happenings, &play(&happenings, &[]))?;
    }
}

/// The property above found this: a group that lasts too long is decided in part, and later kills rest on guesses.
#[test]
fn nothing_is_certain_that_rests_on_a_guess() {
    let kill = |at, container, known, is_logged| Happening {
        at,
        container,
        late: 0,
        log_delay: 0,
        known,
        is_logged,
    };
    let happenings = [
        kill(2341, 2, Known::ByName, true),
        kill(341, 2, Known::ByName, true),
        kill(2761, 0, Known::Not, true),
        kill(1950, 0, Known::ByName, true),
        kill(1, 0, Known::ByName, true),
        kill(290, 0, Known::Not, true),
        kill(3171, 0, Known::ByName, false),
        kill(3171, 0, Known::ByName, true),
        kill(1341, 2, Known::Not, true),
    ];
    let told = play(&happenings, &[(1031, 1), (2107, 2), (142, 2), (1335, 1)]);
    check(&happenings, &told).unwrap();
}

/// Of a flood that is decided again and again, most records are lost.
#[test]
fn only_rises_with_kills_are_guessed() {
    let mut joiner = Joiner::new(true);
    for by in 1..=200 {
        assert_eq!(joiner.counted(rise(ms(0), ms(by), &container(1), once())), []);
    }
    assert_eq!(joiner.logged(place(130), unexplained(7), None), None);
    assert_eq!(joiner.decide_up_to(all_known(1200)).len(), 1);
    assert_eq!((joiner.guessed.len(), joiner.rises.len()), (1, 199));
}

/// There is no log, and a counter that cannot be read keeps the joiner from knowing all counters.
#[test]
fn no_record_is_awaited_without_progress() {
    let mut joiner = Joiner::new(false);
    let progress = Progress {
        log: Duration::MAX,
        counters: ms(0),
    };
    for (number, by) in [(1, 1), (2, 29_000), (3, 31_000)] {
        assert_eq!(joiner.counted(rise(ms(0), ms(by), &container(number), once())).len(), 1);
        assert_eq!(joiner.decide_up_to(progress), []);
    }
    assert_eq!(joiner.reported_by_counter.len(), 2);
}

#[test]
fn kills_counted_singly_are_certain() {
    let kill = |number: u64| Happening {
        at: 100 + number * 10,
        container: number * 7 % 4,
        late: 0,
        log_delay: 3,
        known: Known::Not,
        is_logged: true,
    };
    let happenings: Vec<Happening> = (0..50).map(kill).collect();
    let reads = |milliseconds: u64| (100..700).step_by(usize::try_from(milliseconds).unwrap());
    let all = |at: u64| (0..4).map(move |number| (at, number));
    let certain = |every: u64, unsure| {
        let extra: Vec<(u64, u64)> = reads(every).flat_map(all).collect();
        let told = play_numbered(&happenings, &extra, unsure);
        check(&happenings, &told).unwrap();
        told.iter()
            .filter(|kill| kill.confidence == Confidence::OnlyCounterThatRose)
            .count()
    };
    assert_eq!(certain(5, Some(0)), 50);
    assert!(
        certain(20, Some(0)) < 10,
        "two of different containers cannot be told apart"
    );
    assert_eq!(certain(5, None), 0, "by their times alone");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// So many kills that the joiner decides them before it knows all of them.
    #[test]
    fn a_dense_flood_is_reported_as_it_goes(
        happenings in proptest::collection::vec(happening(4_000), 250..400),
    ) {
        check(&happenings, &play(&happenings, &[]))?;
    }
}
