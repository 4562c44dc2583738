//! Real files; what is damaged in them is damaged as a crash or a bad disk would.

mod full;
mod torn;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::report::content::Report;
use crate::report::testing::kill_of;

const FILE: &str = "kills.log";

fn all() -> Destinations {
    Destination::ALL.iter().copied().collect()
}

fn grpc() -> Destinations {
    Destinations::from_iter([Destination::Grpc])
}

fn open(directory: &Path) -> (KillLog, Recovered) {
    let (mut log, recovered) = KillLog::open(directory, Bounds::default(), grpc());
    log.sync();
    (log, recovered)
}

/// Commits kills of `web` with these numbers, and a checkpoint that names the last. Returns whether the disk has them.
fn commit(log: &mut KillLog, numbers: std::ops::RangeInclusive<u64>) -> bool {
    let checkpoint = Some(format!("up to {}", numbers.end()).into_bytes());
    log.commit(
        numbers.map(|number| kill_of("web", number).into()).collect(),
        checkpoint,
    );
    !log.is_in_memory_only()
}

fn pending_ids(log: &mut KillLog) -> Vec<String> {
    ids(&log.next_for(Destination::Grpc, 0, usize::MAX, |_, _| true))
}

fn ids(pending: &[Pending]) -> Vec<String> {
    pending.iter().map(|pending| pending.report.id().into_owned()).collect()
}

fn named(numbers: std::ops::RangeInclusive<u64>) -> Vec<String> {
    numbers.map(|number| format!("web-{number}")).collect()
}

#[test]
fn commits_survive_until_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, recovered) = open(directory.path());
    assert_eq!((recovered.checkpoint, recovered.problem), (None, None));
    assert!(commit(&mut log, 1..=3));
    assert_eq!(log.acknowledge(Destination::Grpc, &[1, 3]), 2);
    drop(log);

    let (mut log, recovered) = open(directory.path());
    assert_eq!(recovered.checkpoint.as_deref(), Some(&b"up to 3"[..]));
    assert_eq!(log.status().pending_for(Destination::Grpc), 1);
    let pending = log.next_for(Destination::Grpc, 0, 9, |_, _| true);
    assert_eq!(pending[0].report, Report::from(kill_of("web", 2)));
    assert_eq!(pending.len(), 1);
    log.acknowledge(Destination::Grpc, &[2]);
    drop(log);
    assert_eq!(open(directory.path()).0.pending(), 0);
}

#[test]
fn new_destinations_get_only_new_reports() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), Bounds::default(), all());
    commit(&mut log, 1..=2);
    log.acknowledge(Destination::PodEvents, &[1, 2]);
    assert_eq!(log.next_for(Destination::PodEvents, 0, 9, |_, _| true), []);
    assert_eq!(pending_ids(&mut log), named(1..=2));
    drop(log);
    // The VPA's Events are not selected any more: nobody waits for them.
    let two = Destinations::from_iter([Destination::PodEvents, Destination::Grpc]);
    let (log, _) = KillLog::open(directory.path(), Bounds::default(), two);
    assert_eq!(
        [Destination::PodEvents, Destination::Grpc].map(|one| log.status().pending_for(one)),
        [0, 2]
    );
    drop(log);
    let pods = Destinations::from_iter([Destination::PodEvents]);
    let (log, _) = KillLog::open(directory.path(), Bounds::default(), pods);
    assert_eq!(log.pending(), 0);
}

#[test]
fn without_destinations_nothing_is_pending() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), Bounds::default(), Destinations::empty());
    commit(&mut log, 1..=2);
    assert_eq!(log.pending(), 0);
    drop(log);
    let (_, recovered) = KillLog::open(directory.path(), Bounds::default(), Destinations::empty());
    assert_eq!(recovered.checkpoint.as_deref(), Some(&b"up to 2"[..]));
    assert_eq!(recovered.latest.len(), 2);
}

#[test]
fn the_latest_kills_survive_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    let most = u64::try_from(LATEST).unwrap();
    for number in 1..=most + 50 {
        commit(&mut log, number..=number);
        log.acknowledge(Destination::Grpc, &[number]);
    }
    log.rewrite();
    drop(log);
    let (log, recovered) = open(directory.path());
    let latest: Vec<_> = recovered.latest.iter().map(|kill| kill.id.clone()).collect();
    assert_eq!((latest, log.pending()), (named(51..=most + 50), 0));
}

#[test]
fn a_log_that_somebody_removed_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    commit(&mut log, 1..=2);
    fs::remove_file(directory.path().join(FILE)).unwrap();
    commit(&mut log, 3..=3);
    drop(log);
    let (mut log, recovered) = open(directory.path());
    assert_eq!(pending_ids(&mut log), named(1..=3));
    assert_eq!(recovered.checkpoint.as_deref(), Some(&b"up to 3"[..]));
}

#[test]
fn a_log_of_a_newer_version_stays_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    let newer = b"vskills\x02whatever it means";
    fs::write(&path, newer).unwrap();
    let (mut log, recovered) = open(directory.path());
    let problem = recovered.problem.unwrap();
    assert!(
        problem.contains("a newer vscaled wrote it (format 2, this one knows up to 1)")
            && problem.contains("memory only"),
        "{problem}"
    );
    assert!(!commit(&mut log, 1..=1));
    assert!(!log.sync());
    drop(log);
    assert_eq!(fs::read(&path).unwrap(), newer);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the log");
}

#[test]
fn opening_leaves_the_file_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    commit(&mut open(directory.path()).0, 1..=2);
    let before = fs::read(&path).unwrap();
    let (mut log, recovered) = KillLog::open(directory.path(), Bounds::default(), grpc());
    assert_eq!(
        (recovered.problem, log.is_in_memory_only(), log.is_dirty),
        (None, false, true)
    );
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(commit(&mut log, 3..=3) && !log.is_dirty, "a new file, synced");
    drop(log);
    assert_eq!(pending_ids(&mut open(directory.path()).0), named(1..=3));
}

#[test]
fn reports_come_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    commit(&mut log, 1..=700);
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let part = log.next_for(Destination::Grpc, after, 64, |_, _| true);
        let Some(last) = part.last() else { break };
        after = last.number;
        found.extend(ids(&part));
    }
    assert_eq!(found, named(1..=700));
}

#[test]
fn a_journal_of_settled_reports_does_not_grow() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        max_bytes: 256 << 10,
        max_reports: 100,
    };
    let (mut log, _) = KillLog::open(directory.path(), bounds, grpc());
    for number in 1..=2000 {
        commit(&mut log, number..=number);
        let pending = log.next_for(Destination::Grpc, 0, 9, |_, _| true);
        log.acknowledge(Destination::Grpc, &[pending[0].number]);
        assert!(fs::metadata(directory.path().join(FILE)).unwrap().len() <= bounds.max_bytes);
    }
    assert_eq!((log.totals.folded.get(), log.totals.lost.get()), (0, 0));
}

#[test]
fn a_disk_that_is_waited_for_once_is_clean() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    log.sync();
    let before = log.totals.syncs.get();
    for number in 1..=50 {
        commit(&mut log, number..=number);
    }
    assert!(log.is_dirty);
    log.sync();
    log.sync();
    assert_eq!(log.totals.syncs.get(), before + 1);
    assert!(!log.is_dirty);
}

/// What a test does to a log.
#[derive(Debug, Clone)]
enum Act {
    Commit(u64),
    Settle { to: Destination, which: usize },
    Rewrite,
    Reopen,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (1u64..5).prop_map(Act::Commit),
        (prop::sample::select(Destination::ALL), 0usize..9).prop_map(|(to, which)| Act::Settle { to, which }),
        Just(Act::Rewrite),
        Just(Act::Reopen),
    ];
    prop::collection::vec(act, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn destinations_get_unacknowledged_reports(acts in acts()) {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, _) = KillLog::open(directory.path(), Bounds::default(), all());
        let mut expected: [Vec<String>; 3] = Default::default();
        let mut number = 0;
        for act in acts {
            match act {
                Act::Commit(count) => {
                    commit(&mut log, number + 1..=number + count);
                    expected.iter_mut().for_each(|ids| ids.extend(named(number + 1..=number + count)));
                    number += count;
                }
                Act::Settle { to, which } => {
                    let pending = log.next_for(to, 0, usize::MAX, |_, _| true);
                    if let Some(one) = pending.get(which) {
                        log.acknowledge(to, &[one.number]);
                        expected[to.index()].remove(which);
                    }
                }
                Act::Rewrite => log.rewrite(),
                Act::Reopen => {
                    drop(log);
                    let (opened, recovered) = KillLog::open(directory.path(), Bounds::default(), all());
                    prop_assert_eq!(recovered.problem, None);
                    let checkpoint = (number > 0).then(|| format!("up to {number}").into_bytes());
                    prop_assert_eq!(recovered.checkpoint, checkpoint);
                    log = opened;
                }
            }
            for to in Destination::ALL.iter().copied() {
                prop_assert_eq!(&ids(&log.next_for(to, 0, usize::MAX, |_, _| true)), &expected[to.index()]);
            }
        }
    }
}

#[test]
fn a_destination_that_waits_is_a_problem() {
    let mut status = LogStatus {
        problem: Some("the disk is full".to_owned()),
        pending_for: [1, 2, 3],
        ..LogStatus::default()
    };
    let waiting = Link::Waiting {
        error: "refused".to_owned(),
        until: jiff::Timestamp::UNIX_EPOCH,
    };
    status.links.insert(Destination::PodEvents, Link::Connected);
    status.links.insert(Destination::VpaEvents, waiting);
    assert_eq!(
        status.problems(),
        [
            "the disk is full",
            "vpa-events: refused; 2 reports wait, the next attempt is at 1970-01-01T00:00:00Z",
        ]
    );
    let pending = Destination::ALL
        .iter()
        .map(|destination| status.pending_for(*destination));
    assert_eq!(pending.collect::<Vec<_>>(), [1, 2, 3]);
}
