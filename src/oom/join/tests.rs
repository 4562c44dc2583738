mod stories;

use std::num::NonZeroU64;

use super::*;
use crate::oom::{Level, Limit, ReportedMemory};

const UID: &str = "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A place at this time, of an unknown number.
fn place(milliseconds: u64) -> LogPlace {
    LogPlace {
        time: ms(milliseconds),
        is_exact: true,
        numbers: Numbers::ANY,
    }
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
        usage: None,
        memory: ReportedMemory::default(),
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

fn rise(after: Duration, by: Duration, cgroup: &CgroupPath, kills: NonZeroU64) -> CounterDelta {
    CounterDelta {
        cgroup: cgroup.clone(),
        after,
        by,
        numbers: Numbers::ANY,
        kills,
        again: 0,
    }
}

fn once() -> NonZeroU64 {
    NonZeroU64::MIN
}

fn summary(kill: &OomKill) -> (Option<&CgroupPath>, Confidence, Option<u32>) {
    (
        kill.cgroup.as_ref(),
        kill.confidence,
        kill.victim().map(|kill| kill.pid),
    )
}

fn all_known(milliseconds: u64) -> Progress {
    let now = ms(milliseconds);
    Progress {
        log: now,
        counters: now,
    }
}

fn found(told: &[OomKill]) -> Vec<(Option<&CgroupPath>, Confidence, Option<u32>)> {
    told.iter().map(summary).collect()
}

#[test]
fn thousands_of_kills_leave_others_waiting() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.logged(place(5), unexplained(7), None), None);
    for pid in 100..2100 {
        assert!(joiner.logged(place(10), named(pid, 1), None).is_some());
    }
    let unread = Progress {
        log: ms(20),
        counters: ms(0),
    };
    assert_eq!(joiner.decide_up_to(unread), [], "no counter was read since");
    for (number, kills) in [(1, 2000), (2, 1)] {
        let kills = NonZeroU64::new(kills).unwrap();
        assert_eq!(joiner.counted(rise(ms(0), ms(20), &container(number), kills)), []);
    }
    assert_eq!(
        found(&joiner.decide_up_to(all_known(1000))),
        [(Some(&container(2)), Confidence::OnlyCounterThatRose, Some(7))],
        "and none of the thousands a second time"
    );
    assert!(!joiner.is_waiting());
}

#[test]
fn a_told_kill_waits_for_a_counter_that_is_read_late() {
    let mut joiner = Joiner::new(true);
    assert!(joiner.logged(place(6000), named(7, 1), None).is_some());
    let unread = |log| Progress {
        log: ms(log),
        counters: ms(5900),
    };
    assert_eq!(joiner.decide_up_to(unread(11_500)), []);
    let one = NonZeroU64::MIN;
    assert_eq!(joiner.counted(rise(ms(5900), ms(11_600), &container(1), one)), []);
    assert_eq!(joiner.decide_up_to(all_known(20_000)), [], "it was told");
    assert!(joiner.logged(place(21_000), named(8, 1), None).is_some());
    joiner.decide_up_to(unread(60_000));
    assert!(joiner.logged.is_empty(), "a counter may never be read");
}

#[test]
fn a_named_kill_accounts_for_the_counter() {
    for counter_first in [true, false] {
        let mut joiner = Joiner::new(true);
        if counter_first {
            assert_eq!(joiner.counted(rise(ms(0), ms(900), &container(1), once())), []);
        }
        let told = joiner.logged(place(1), named(7, 1), None).unwrap();
        assert_eq!(summary(&told), (Some(&container(1)), Confidence::Exact, Some(7)));
        assert_eq!(told.victim().unwrap().limit.level(), Level::Container);
        if !counter_first {
            assert_eq!(joiner.counted(rise(ms(0), ms(900), &container(1), once())), []);
        }
        assert_eq!(joiner.decide_up_to(all_known(2000)), []);
        assert!(!joiner.is_waiting());
    }
}

#[test]
fn a_cgroup_from_proc_is_as_good() {
    let mut joiner = Joiner::new(true);
    let told = joiner.logged(place(0), unexplained(7), Some(container(1))).unwrap();
    assert_eq!(summary(&told), (Some(&container(1)), Confidence::Procfs, Some(7)));
    assert_eq!(joiner.logged(place(0), unexplained(8), Some(CgroupPath::root())), None);
    let leaving = kill(9, Limit::Cgroup(container(2)), Some(CgroupPath::root()));
    let told = joiner.logged(place(0), leaving, None).unwrap();
    assert_eq!(summary(&told), (Some(&container(2)), Confidence::Exact, Some(9)));
}

#[test]
fn nothing_is_decided_before_both_are_known() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.logged(place(100), unexplained(7), None), None);
    assert_eq!(
        joiner.decide_up_to(Progress {
            log: ms(4000),
            counters: ms(100)
        }),
        []
    );
    assert_eq!(joiner.counted(rise(ms(0), ms(900), &container(1), once())), []);
    assert_eq!(
        joiner.decide_up_to(Progress {
            log: ms(900),
            counters: ms(900)
        }),
        []
    );
    assert!(joiner.is_waiting());
    let told = joiner.decide_up_to(Progress {
        log: ms(1200),
        counters: ms(900),
    });
    assert_eq!(
        found(&told),
        [(Some(&container(1)), Confidence::OnlyCounterThatRose, Some(7))]
    );
    assert!(!joiner.is_waiting());
}

#[test]
fn several_counters_share_uncertain_victims() {
    let mut joiner = Joiner::new(true);
    for pid in [7, 8] {
        assert_eq!(joiner.logged(place(0), unexplained(pid), None), None);
        assert_eq!(joiner.counted(rise(ms(0), ms(1), &container(pid.into()), once())), []);
    }
    let told = joiner.decide_up_to(all_known(1000));
    for (told, number) in told.iter().zip([7, 8]) {
        assert_eq!(summary(told), (Some(&container(number)), Confidence::Ambiguous, None));
        assert_eq!(told.processes.iter().map(|kill| kill.pid).collect::<Vec<_>>(), [7, 8]);
    }
    assert_eq!(told.len(), 2);
}

#[test]
fn a_pods_limit_narrows_down_the_victim() {
    let mut joiner = Joiner::new(true);
    let pod = container(1).parent().unwrap();
    let elsewhere = CgroupPath::new("/kubepods/other").unwrap();
    let victim = kill(7, Limit::Cgroup(pod), Some(CgroupPath::root()));
    assert_eq!(joiner.logged(place(0), victim, None), None);
    assert_eq!(joiner.counted(rise(ms(0), ms(1), &elsewhere, once())), []);
    assert_eq!(joiner.counted(rise(ms(0), ms(2), &container(1), once())), []);
    let told = joiner.decide_up_to(Progress::END);
    let expected = [
        (Some(&container(1)), Confidence::OnlyCounterThatRose, Some(7)),
        (Some(&elsewhere), Confidence::CounterAlone, None),
    ];
    assert_eq!(found(&told), expected);
    assert_eq!(told[0].victim().unwrap().limit.level(), Level::Pod);
}

#[test]
fn more_kills_than_counted_are_all_uncertain() {
    let mut joiner = Joiner::new(true);
    for pid in [7, 8] {
        assert_eq!(joiner.logged(place(0), unexplained(pid), None), None);
    }
    assert_eq!(joiner.counted(rise(ms(0), ms(1), &container(1), once())), []);
    let told = joiner.decide_up_to(Progress::END);
    assert_eq!(
        found(&told),
        [
            (Some(&container(1)), Confidence::Ambiguous, None),
            (None, Confidence::LogAlone, Some(8))
        ]
    );
}

#[test]
fn either_side_alone_is_reported() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.counted(rise(ms(0), ms(1), &container(1), once())), []);
    assert_eq!(joiner.decide_up_to(all_known(300)), []);
    assert!(joiner.is_waiting(), "it may be logged late");
    assert_eq!(
        found(&joiner.decide_up_to(all_known(2002))),
        [(Some(&container(1)), Confidence::CounterAlone, None)]
    );
    assert_eq!(joiner.logged(place(35_000), unexplained(7), None), None);
    assert_eq!(
        found(&joiner.decide_up_to(all_known(36_000))),
        [(None, Confidence::LogAlone, Some(7))]
    );
    let told = Joiner::new(false).counted(rise(ms(0), ms(0), &container(1), NonZeroU64::new(3).unwrap()));
    assert_eq!(told.len(), 3, "without a log there is nothing to wait for");
}

#[test]
fn what_the_kernel_logs_late_is_no_second_kill() {
    let pod = container(1).parent().unwrap();
    let elsewhere = CgroupPath::new("/kubepods/other").unwrap();
    // The log of the second kill names only the limit that was hit.
    for late in [named(7, 1), kill(7, Limit::Cgroup(pod), None)] {
        let mut joiner = Joiner::new(true);
        for cgroup in [&elsewhere, &container(1)] {
            assert_eq!(joiner.counted(rise(ms(0), ms(1), cgroup, once())), []);
        }
        assert_eq!(joiner.decide_up_to(all_known(1000)), []);
        let mut told = Vec::from_iter(joiner.logged(place(1900), late, None));
        told.extend(joiner.decide_up_to(all_known(2500)));
        let cgroups: Vec<_> = told.iter().map(|kill| kill.cgroup.as_ref()).collect();
        assert_eq!(cgroups, [Some(&container(1)), Some(&elsewhere)]);
        assert!(matches!(told[0].confidence, Confidence::Exact | Confidence::Ambiguous));
        assert_eq!(told[1].confidence, Confidence::CounterAlone);
        assert!(!joiner.is_waiting());
    }
}

#[test]
fn a_record_after_its_count_is_no_kill() {
    for is_named in [true, false] {
        let mut joiner = Joiner::new(true);
        assert_eq!(joiner.counted(rise(ms(0), ms(1), &container(1), once())), []);
        // The agent reads no record for five seconds.
        let stuck = Progress {
            log: ms(0),
            counters: ms(6000),
        };
        assert_eq!(
            found(&joiner.decide_up_to(stuck)),
            [(Some(&container(1)), Confidence::CounterAlone, None)]
        );
        // The next agent continues from here.
        joiner = Joiner {
            has_log: true,
            reported_by_counter: joiner.reported_by_counter,
            ..Joiner::default()
        };
        let mut late = if is_named { named(7, 1) } else { unexplained(7) };
        late.seq = Some(40);
        assert_eq!(joiner.logged(place(100), late, None), None);
        assert_eq!(joiner.decide_up_to(all_known(6500)), []);
        assert_eq!(
            (std::mem::take(&mut joiner.known_records), joiner.is_waiting()),
            (vec![40], false)
        );
        // The next kill in that container is a new one.
        assert!(joiner.logged(place(6600), named(8, 1), None).is_some());
    }
}

const fn number(number: u64) -> Numbers {
    Numbers {
        first: number,
        last: number,
    }
}

/// A joiner that has returned the first kill, of the first container, by its counter alone.
fn told_by_counter() -> Joiner {
    let mut joiner = Joiner::new(true);
    let first = CounterDelta {
        numbers: number(1),
        ..rise(ms(0), ms(1), &container(1), once())
    };
    assert_eq!(joiner.counted(first), []);
    assert_eq!(
        found(&joiner.decide_up_to(all_known(3000))),
        [(Some(&container(1)), Confidence::CounterAlone, None)]
    );
    joiner
}

#[test]
fn a_kill_logged_seconds_later_is_told_once() {
    for mut late in [named(7, 1), unexplained(7)] {
        let mut joiner = told_by_counter();
        late.seq = Some(40);
        assert_eq!(joiner.logged(place(9000), late, None), None);
        assert!(joiner.has_kills_waiting(), "the counters are to be read");
        assert_eq!(joiner.decide_up_to(all_known(9500)), []);
        assert_eq!(joiner.known_records, [40]);
        assert!(joiner.logged(place(9600), named(8, 1), None).is_some(), "a new kill");
    }
}

/// The place of a kill of which the agent only knows when it read the line, as through syslog(2).
fn read(milliseconds: u64) -> LogPlace {
    LogPlace {
        is_exact: false,
        ..place(milliseconds)
    }
}

#[test]
fn a_named_kill_read_late_takes_its_rise() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.counted(rise(ms(0), ms(1000), &container(1), once())), []);
    assert!(joiner.logged(read(12_000), named(7, 1), None).is_some());
    assert_eq!(joiner.decide_up_to(all_known(11_900)), []);
    assert_eq!(joiner.decide_up_to(all_known(20_000)), []);
}

#[test]
fn a_second_line_is_of_no_earlier_kill() {
    let mut joiner = told_by_counter();
    assert_eq!(joiner.logged(read(9000), named(7, 1), None), None);
    assert_eq!(joiner.logged_again(read(9001), 7, &container(1)), None);
    let twice = NonZeroU64::new(2).unwrap();
    assert_eq!(joiner.counted(rise(ms(3000), ms(9100), &container(1), twice)), []);
    let told = joiner.decide_up_to(all_known(20_000));
    assert_eq!(found(&told), [(Some(&container(1)), Confidence::Exact, Some(7))]);
}

#[test]
fn a_kill_after_a_lost_record_keeps_its_process() {
    let mut joiner = told_by_counter();
    assert!(joiner.logged(place(9000), named(9, 2), None).is_some(), "elsewhere");
    assert_eq!(joiner.logged(place(9000), named(8, 1), None), None);
    for number in [1, 2] {
        assert_eq!(joiner.counted(rise(ms(3000), ms(9100), &container(number), once())), []);
    }
    let told = joiner.decide_up_to(all_known(9500));
    assert_eq!(found(&told), [(Some(&container(1)), Confidence::Exact, Some(8))]);
    assert!(!joiner.is_waiting());
}

/// The kernel counts the second kill just after it logs the first one late, and logs the second late, too.
#[test]
fn two_late_records_are_two_kills() {
    let mut joiner = told_by_counter();
    assert_eq!(joiner.logged(place(5000), named(7, 1), None), None);
    assert_eq!(joiner.counted(rise(ms(4900), ms(5010), &container(1), once())), []);
    assert_eq!(joiner.decide_up_to(all_known(6000)).len(), 1);
    let second = LogPlace {
        numbers: number(2),
        ..place(8000)
    };
    assert_eq!(joiner.logged(second, named(8, 1), None), None);
    assert_eq!(joiner.decide_up_to(all_known(8500)), []);
    assert!(!joiner.is_waiting());
}

#[test]
fn only_the_latest_kill_of_a_container_is_awaited() {
    let mut joiner = told_by_counter();
    assert_eq!(joiner.counted(rise(ms(3000), ms(4000), &container(1), once())), []);
    assert_eq!(joiner.decide_up_to(all_known(7000)).len(), 1);
    assert_eq!(joiner.reported_by_counter.len(), 1);
    joiner.decide_up_to(all_known(40_000));
    assert_eq!(joiner.reported_by_counter, []);
}

/// In a flood, the agent reads the log much later than the counters.
#[test]
fn a_log_read_late_tells_no_kill_again() {
    let mut joiner = Joiner::new(true);
    for by in [1000, 8000] {
        let behind = Progress {
            log: ms(0),
            counters: ms(by + 6000),
        };
        assert_eq!(joiner.counted(rise(ms(by - 1000), ms(by), &container(1), once())), []);
        assert_eq!(
            found(&joiner.decide_up_to(behind)),
            [(Some(&container(1)), Confidence::CounterAlone, None)]
        );
    }
    for (pid, at) in [(7, 900), (8, 7900)] {
        assert_eq!(joiner.logged(place(at), named(pid, 1), None), None);
    }
    assert_eq!(joiner.decide_up_to(all_known(15_000)), []);
    assert!(!joiner.is_waiting());
}

#[test]
fn late_undecided_kills_are_awaited() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.counted(rise(ms(0), ms(1), &container(1), once())), []);
    assert!(joiner.logged(place(1900), named(7, 1), None).is_some());
    let progress = |counters| Progress {
        log: ms(2500),
        counters: ms(counters),
    };
    assert_eq!(joiner.decide_up_to(progress(1000)), []);
    assert!(joiner.is_waiting());
    assert_eq!(joiner.decide_up_to(progress(2000)), []);
    assert!(!joiner.is_waiting());
}

#[test]
fn a_stuck_side_is_not_awaited_forever() {
    let mut joiner = Joiner::new(true);
    assert_eq!(joiner.counted(rise(ms(0), ms(1), &container(1), once())), []);
    assert_eq!(
        joiner.decide_up_to(Progress {
            log: ms(0),
            counters: ms(5000)
        }),
        []
    );
    assert_eq!(
        joiner
            .decide_up_to(Progress {
                log: ms(0),
                counters: ms(5002)
            })
            .len(),
        1
    );
}

/// The order of events: the first container's counter rises and is read; a part of the log is lost; the second
/// container's counter rises and is read, and its record was in the lost part; only then is the record of the first
/// kill read, whose time looks as late as the read.
#[test]
fn a_kill_read_after_a_loss_is_not_certain_by_its_time() {
    let record = |is_exact, kill: Option<u64>| {
        let mut joiner = Joiner::new(true);
        let of = |cgroup, after, by, kill| CounterDelta {
            numbers: number(kill),
            ..rise(ms(after), ms(by), &container(cgroup), once())
        };
        assert_eq!(joiner.counted(of(1, 0, 1000, 1)), []);
        // Two seconds later nothing in the log has explained this rise.
        let first = joiner.decide_up_to(all_known(3100));
        assert_eq!(found(&first), [(Some(&container(1)), Confidence::CounterAlone, None)]);
        assert_eq!(joiner.counted(of(2, 3100, 3400, 2)), []);
        let at = LogPlace {
            time: ms(3500),
            is_exact,
            numbers: kill.map_or(Numbers::ANY, number),
        };
        assert_eq!(joiner.logged(at, unexplained(7), None), None);
        let told = joiner.decide_up_to(all_known(6000));
        assert_eq!(told[0].cgroup, Some(container(2)));
        told[0].confidence
    };
    assert_eq!(record(false, None), Confidence::Ambiguous);
    assert_eq!(record(true, None), Confidence::OnlyCounterThatRose);
    assert_eq!(record(false, Some(2)), Confidence::OnlyCounterThatRose);
}

/// The log is stuck, so the joiner gives up on two rises. Of their records, which come late, the first takes the rise of
/// the second by guess. Then the second fits no rise but a newer one of the first container, whose record is lost.
#[test]
fn a_kill_whose_rise_went_to_a_guess_is_not_certain() {
    let mut joiner = Joiner::new(true);
    for number in [1, 2] {
        assert_eq!(joiner.counted(rise(ms(0), ms(number), &container(number), once())), []);
    }
    let stuck = Progress {
        log: ms(0),
        counters: ms(6000),
    };
    assert_eq!(joiner.decide_up_to(stuck).len(), 2);
    assert_eq!(joiner.logged(place(400), unexplained(8), None), None);
    let progress = |log| Progress {
        log: ms(log),
        counters: ms(6000),
    };
    assert_eq!(
        joiner.decide_up_to(progress(1000)),
        [],
        "the kill is told by its counter"
    );
    assert_eq!(joiner.reported_by_counter.len(), 1);
    let left = joiner.reported_by_counter[0].cgroup.clone();
    assert_eq!(joiner.counted(rise(ms(1500), ms(1600), &left, once())), []);
    assert_eq!(joiner.logged(place(1700), unexplained(7), None), None);
    let told = joiner.decide_up_to(progress(5000));
    assert_eq!(found(&told), [(Some(&left), Confidence::Ambiguous, None)]);
}

#[test]
fn a_groups_first_victim_counts_once() {
    for is_named in [true, false] {
        let mut joiner = Joiner::new(true);
        let first = if is_named { named(7, 1) } else { unexplained(7) };
        let mut told: Vec<OomKill> = joiner.logged(place(0), first, None).into_iter().collect();
        told.extend(joiner.logged(place(1), named(8, 1), None));
        told.extend(joiner.logged_again(place(2), 7, &container(1)));
        told.extend(joiner.counted(rise(ms(0), ms(3), &container(1), NonZeroU64::new(3).unwrap())));
        told.extend(joiner.decide_up_to(Progress::END));
        let mut found = found(&told);
        found.sort_unstable();
        let expected = [7, 8].map(|pid| (Some(container(1)), Confidence::Exact, Some(pid)));
        assert_eq!(
            found,
            expected
                .each_ref()
                .map(|(path, confidence, pid)| (path.as_ref(), *confidence, *pid))
        );
    }
}

#[test]
fn a_second_count_is_no_kill() {
    let group_of_four = |again| CounterDelta {
        again,
        ..rise(ms(0), ms(1), &container(1), NonZeroU64::new(5).unwrap())
    };
    let mut counters_alone = Joiner::new(false);
    assert_eq!(counters_alone.counted(group_of_four(1)).len(), 4);
    assert_eq!(counters_alone.duplicates, [container(1)]);
    for logged_again in [true, false] {
        let mut joiner = Joiner::new(true);
        assert_eq!(joiner.counted(group_of_four(1)), []);
        assert!(joiner.logged(place(1), named(7, 1), None).is_some());
        if logged_again {
            assert_eq!(joiner.logged_again(place(1), 7, &container(1)), None);
        }
        let told = joiner.decide_up_to(all_known(3000));
        assert_eq!(found(&told), [(Some(&container(1)), Confidence::CounterAlone, None); 3]);
        assert_eq!(joiner.duplicates.len(), usize::from(!logged_again));
    }
}

#[test]
fn a_kill_is_found_in_the_counter_nearest_to_it() {
    let pod = container(1).parent().unwrap();
    for pod_first in [true, false] {
        let mut joiner = Joiner::new(true);
        assert!(joiner.logged(place(1), named(7, 1), None).is_some());
        let (above, inside) = (
            rise(ms(0), ms(1), &pod, once()),
            rise(ms(0), ms(2), &container(1), once()),
        );
        let both = if pod_first { [above, inside] } else { [inside, above] };
        both.into_iter().for_each(|rise| assert_eq!(joiner.counted(rise), []));
        let told = joiner.decide_up_to(all_known(3000));
        assert_eq!(
            found(&told),
            [(Some(&pod), Confidence::CounterAlone, None)],
            "the kill of a container that is gone"
        );
    }
}
