//! Real files; what is damaged in them is damaged as a crash or a bad disk would.

mod full;
mod torn;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::report::content::Report;
use crate::report::testing::kill_of;

const JOURNAL: &str = "reports.journal";

fn all() -> Destinations {
    Destination::ALL.into_iter().collect()
}

fn grpc() -> Destinations {
    Destinations::from_iter([Destination::Grpc])
}

fn open(directory: &Path) -> (Spool, Recovered) {
    Spool::open(directory, Bounds::default(), grpc())
}

/// A commit of kills of `web` with these numbers, and a checkpoint that names the last.
fn commit(numbers: std::ops::RangeInclusive<u64>) -> Commit {
    Commit {
        checkpoint: Some(format!("up to {}", numbers.end()).into_bytes()),
        reports: numbers.map(|number| kill_of("web", number)).collect(),
    }
}

fn pending(spool: &mut Spool) -> Vec<String> {
    ids(&spool.take(Destination::Grpc, 0, usize::MAX))
}

fn ids(owed: &[Owed]) -> Vec<String> {
    owed.iter().map(|owed| owed.report.id().into_owned()).collect()
}

fn named(numbers: std::ops::RangeInclusive<u64>) -> Vec<String> {
    numbers.map(|number| format!("web-{number}")).collect()
}

#[test]
fn what_is_committed_is_there_after_a_restart_until_it_is_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, recovered) = open(directory.path());
    assert_eq!((recovered.checkpoint, recovered.problem), (None, None));
    let committed = spool.commit(vec![commit(1..=3)]);
    assert_eq!(
        committed,
        [Committed {
            stored: 3,
            duplicates: 0,
            on_disk: true
        }]
    );
    assert_eq!(spool.settle(Destination::Grpc, &[1, 3]), 2);
    drop(spool);

    let (mut spool, recovered) = open(directory.path());
    assert_eq!(recovered.checkpoint.as_deref(), Some(&b"up to 3"[..]));
    assert_eq!(recovered.pending, [(Destination::Grpc, 1)]);
    let owed = spool.take(Destination::Grpc, 0, 9);
    assert_eq!(owed[0].report, Report::from(kill_of("web", 2)));
    assert_eq!(owed.len(), 1);
    spool.settle(Destination::Grpc, &[2]);
    drop(spool);
    assert_eq!(open(directory.path()).1.pending, [(Destination::Grpc, 0)]);
}

#[test]
fn the_same_id_is_stored_once_also_after_a_restart_and_an_acknowledgement() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    let twice = spool.commit(vec![commit(1..=2), commit(2..=3)]);
    assert_eq!((twice[1].stored, twice[1].duplicates), (1, 1));
    assert_eq!(pending(&mut spool), named(1..=3));
    spool.settle(Destination::Grpc, &[1, 2, 3]);
    spool.rewrite();
    drop(spool);
    let (mut spool, _) = open(directory.path());
    assert_eq!(spool.commit(vec![commit(1..=3)])[0].duplicates, 3);
    assert_eq!(pending(&mut spool), [""; 0]);
}

#[test]
fn destinations_are_owed_independently_and_new_ones_only_what_is_new() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), Bounds::default(), all());
    spool.commit(vec![commit(1..=2)]);
    spool.settle(Destination::PodEvents, &[1, 2]);
    assert_eq!(spool.take(Destination::PodEvents, 0, 9), []);
    assert_eq!(pending(&mut spool), named(1..=2));
    drop(spool);
    // The VPA's Events are not selected any more: nobody waits for them.
    let two = Destinations::from_iter([Destination::PodEvents, Destination::Grpc]);
    let (spool, recovered) = Spool::open(directory.path(), Bounds::default(), two);
    assert_eq!(recovered.pending, [(Destination::PodEvents, 0), (Destination::Grpc, 2)]);
    assert_eq!(recovered.forgotten, 0);
    drop(spool);
    let pods = Destinations::from_iter([Destination::PodEvents]);
    let (spool, recovered) = Spool::open(directory.path(), Bounds::default(), pods);
    assert_eq!(
        (recovered.forgotten, spool.reports()),
        (2, 0),
        "and it is said that nobody waits"
    );
}

#[test]
fn without_destinations_only_the_checkpoint_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), Bounds::default(), Destinations::NONE);
    spool.commit(vec![commit(1..=2)]);
    assert_eq!(spool.reports(), 0);
    drop(spool);
    let (_, recovered) = Spool::open(directory.path(), Bounds::default(), Destinations::NONE);
    assert_eq!(recovered.checkpoint.as_deref(), Some(&b"up to 2"[..]));
}

#[test]
fn reports_come_in_order_after_any_number_and_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    spool.commit(vec![commit(1..=700)]);
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let part = spool.take(Destination::Grpc, after, 64);
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
    let (mut spool, _) = Spool::open(directory.path(), bounds, grpc());
    for number in 1..=2000 {
        spool.commit(vec![commit(number..=number)]);
        let owed = spool.take(Destination::Grpc, 0, 9);
        spool.settle(Destination::Grpc, &[owed[0].number]);
        assert!(fs::metadata(directory.path().join(JOURNAL)).unwrap().len() <= bounds.max_bytes);
    }
    assert_eq!((spool.totals().folded, spool.totals().lost), (0, 0));
}

#[test]
fn a_disk_that_is_waited_for_once_is_clean() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    spool.sync();
    let before = spool.totals().syncs;
    spool.commit((1..=50).map(|number| commit(number..=number)).collect());
    assert!(spool.is_dirty());
    spool.sync();
    spool.sync();
    assert_eq!(spool.totals().syncs, before + 1);
    assert!(!spool.is_dirty());
}

#[test]
fn a_second_agent_does_not_write_into_the_spool_of_a_first() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _) = open(directory.path());
    first.commit(vec![commit(1..=1)]);
    let before = fs::read(directory.path().join(JOURNAL)).unwrap();
    let (mut second, recovered) = open(directory.path());
    assert!(recovered.problem.unwrap().contains("another vscaled uses it"));
    assert!(!second.commit(vec![commit(2..=2)])[0].on_disk);
    assert_eq!(pending(&mut second), named(2..=2), "it works in memory");
    assert!(!second.restore());
    assert_eq!(fs::read(directory.path().join(JOURNAL)).unwrap(), before);
}

/// What a test does to a spool.
#[derive(Debug, Clone)]
enum Act {
    Commit(u64),
    Settle(Destination, usize),
    Rewrite,
    Reopen,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (1u64..5).prop_map(Act::Commit),
        (prop::sample::select(&Destination::ALL[..]), 0usize..9).prop_map(|(to, which)| Act::Settle(to, which)),
        Just(Act::Rewrite),
        Just(Act::Reopen),
    ];
    prop::collection::vec(act, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_destination_is_owed_exactly_what_it_has_not_acknowledged(acts in acts()) {
        let directory = tempfile::tempdir().unwrap();
        let (mut spool, _) = Spool::open(directory.path(), Bounds::default(), all());
        let mut expected: [Vec<String>; 3] = Default::default();
        let mut number = 0;
        for act in acts {
            match act {
                Act::Commit(count) => {
                    spool.commit(vec![commit(number + 1..=number + count)]);
                    expected.iter_mut().for_each(|ids| ids.extend(named(number + 1..=number + count)));
                    number += count;
                }
                Act::Settle(to, which) => {
                    let owed = spool.take(to, 0, usize::MAX);
                    if let Some(one) = owed.get(which) {
                        spool.settle(to, &[one.number]);
                        expected[to.index()].remove(which);
                    }
                }
                Act::Rewrite => spool.rewrite(),
                Act::Reopen => {
                    drop(spool);
                    let (opened, recovered) = Spool::open(directory.path(), Bounds::default(), all());
                    prop_assert_eq!(recovered.problem, None);
                    let checkpoint = (number > 0).then(|| format!("up to {number}").into_bytes());
                    prop_assert_eq!(recovered.checkpoint, checkpoint);
                    spool = opened;
                }
            }
            for to in Destination::ALL {
                prop_assert_eq!(&ids(&spool.take(to, 0, usize::MAX)), &expected[to.index()]);
            }
        }
    }
}
