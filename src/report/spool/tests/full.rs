//! More reports than there is room for, and disks that refuse.

use super::*;
use crate::oom::Victim;

fn small() -> Bounds {
    Bounds {
        max_bytes: 1 << 20,
        max_reports: 200,
    }
}

fn told(spool: &mut Spool, to: Destination) -> u64 {
    let owed = spool.take(to, 0, usize::MAX);
    owed.iter().map(|owed| owed.report.count()).sum()
}

/// Kills of many pods, each in a commit of its own.
fn flood(spool: &mut Spool, from: u64, to: u64, pods: u64) {
    for number in from..=to {
        let mut kill = kill_of(&format!("web-{}", number % pods), number);
        kill.id = format!("kill-{number}");
        spool.commit(vec![Commit {
            reports: vec![kill],
            checkpoint: None,
        }]);
    }
}

#[test]
fn when_it_is_full_the_oldest_detail_becomes_counts_and_no_kill_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), small(), grpc());
    flood(&mut spool, 1, 5000, 7);
    assert!(spool.reports() <= 200, "{}", spool.reports());
    let owed = spool.take(Destination::Grpc, 0, usize::MAX);
    assert_eq!(owed.iter().map(|owed| owed.report.count()).sum::<u64>(), 5000);
    assert!(
        matches!(owed.last().unwrap().report, Report::Kill(_)),
        "the newest keep their detail"
    );
    let folded = owed.iter().find(|owed| owed.report.count() > 1).unwrap();
    assert!(folded.report.pod().is_some() && folded.report.container().is_some());
    let with_detail = owed
        .iter()
        .filter(|owed| matches!(owed.report, Report::Kill(_)))
        .count();
    assert_eq!(spool.totals().folded, 5000 - wide(with_detail));
    drop(spool);
    let (mut spool, recovered) = Spool::open(directory.path(), small(), grpc());
    assert_eq!(recovered.problem, None);
    assert_eq!(told(&mut spool, Destination::Grpc), 5000);
}

#[test]
fn kills_of_ever_new_pods_are_counted_for_the_node_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), small(), grpc());
    flood(&mut spool, 1, 2000, 2000);
    assert!(spool.reports() <= 200);
    let owed = spool.take(Destination::Grpc, 0, usize::MAX);
    assert_eq!(owed.iter().map(|owed| owed.report.count()).sum::<u64>(), 2000);
    assert!(
        owed.iter()
            .any(|owed| owed.report.count() > 1 && owed.report.pod().is_none())
    );
}

#[test]
fn what_may_have_been_sent_is_not_folded_so_that_it_is_not_counted_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), small(), grpc());
    flood(&mut spool, 1, 100, 1);
    let sent = spool.take(Destination::Grpc, 0, 50);
    flood(&mut spool, 101, 3000, 1);
    assert!(spool.totals().folded > 0);
    let again = spool.take(Destination::Grpc, 0, 50);
    assert_eq!(ids(&again), ids(&sent));
    // What comes after them in their connection is everything else, counted once.
    let rest = spool.take(Destination::Grpc, sent.last().unwrap().number, usize::MAX);
    assert_eq!(rest.iter().map(|owed| owed.report.count()).sum::<u64>(), 2950);
}

#[test]
fn what_a_destination_has_is_not_counted_for_it_again() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), small(), all());
    let mut acknowledged = 0;
    for from in (1..=3000).step_by(50) {
        flood(&mut spool, from, from + 49, 3);
        let owed = spool.take(Destination::PodEvents, 0, 40);
        acknowledged += owed.iter().map(|owed| owed.report.count()).sum::<u64>();
        let numbers: Vec<_> = owed.iter().map(|owed| owed.number).collect();
        spool.settle(Destination::PodEvents, &numbers);
    }
    assert!(spool.reports() <= 200);
    assert_eq!(acknowledged + told(&mut spool, Destination::PodEvents), 3000);
    assert_eq!(told(&mut spool, Destination::Grpc), 3000);
    assert_eq!(told(&mut spool, Destination::VpaEvents), 3000);
}

#[test]
fn one_report_never_takes_all_the_room() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(directory.path());
    let mut kill = kill_of("web", 1);
    let victim = Victim {
        comm: "x".repeat(15),
        ..kill.victim.clone().unwrap()
    };
    kill.candidates = vec![victim; 1000].into();
    spool.commit(vec![Commit {
        reports: vec![kill],
        checkpoint: None,
    }]);
    let owed = spool.take(Destination::Grpc, 0, 9);
    assert!(matches!(&owed[0].report, Report::Folded(folded) if folded.count == 1 && folded.pod.is_some()));
    assert_eq!(spool.totals().folded, 1);
}

#[test]
fn a_checkpoint_that_is_too_long_is_not_kept_and_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), small(), grpc());
    spool.commit(vec![commit(1..=1)]);
    spool.commit(vec![Commit {
        checkpoint: Some(vec![0; 1 << 19]),
        ..commit(2..=2)
    }]);
    assert!(spool.problem().unwrap().contains("524288 bytes"));
    assert_eq!(pending(&mut spool), named(1..=2));
    drop(spool);
    let (mut spool, recovered) = Spool::open(directory.path(), small(), grpc());
    assert_eq!(recovered.checkpoint.as_deref(), Some(&b"up to 1"[..]));
    assert_eq!(
        spool.commit(vec![commit(2..=2)])[0].duplicates,
        1,
        "found again, told once"
    );
}

#[test]
fn without_a_usable_directory_reports_are_kept_in_memory_and_written_once_there_is_one() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("spool");
    // A file in the place of the directory is in the way, also of root.
    fs::write(&directory, "in the way").unwrap();
    let (mut spool, recovered) = Spool::open(&directory, small(), grpc());
    assert!(recovered.problem.unwrap().contains("kept in memory only"));
    flood(&mut spool, 1, 1000, 3);
    assert!(spool.reports() <= 200, "the bounds hold in memory, too");
    assert!(!spool.restore());
    fs::remove_file(&directory).unwrap();
    assert!(spool.restore());
    assert_eq!(spool.problem(), None);
    drop(spool);
    let (mut spool, _) = Spool::open(&directory, small(), grpc());
    assert_eq!(told(&mut spool, Destination::Grpc), 1000);
}

#[test]
fn a_rewrite_that_fails_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (mut spool, _) = Spool::open(directory.path(), small(), grpc());
    spool.commit(vec![commit(1..=3)]);
    let in_the_way = directory.path().join("reports.journal.new");
    fs::create_dir(&in_the_way).unwrap();
    flood(&mut spool, 1, 500, 3);
    assert!(spool.is_in_memory_only());
    assert_eq!(told(&mut spool, Destination::Grpc), 503);
    fs::remove_dir(&in_the_way).unwrap();
    assert!(spool.restore());
    drop(spool);
    let (mut spool, _) = Spool::open(directory.path(), small(), grpc());
    assert_eq!(told(&mut spool, Destination::Grpc), 503);
}
