//! More reports than there is room for, and disks that refuse.

use super::*;
use crate::oom::Victim;

fn small() -> Bounds {
    Bounds {
        max_bytes: 1 << 20,
        max_reports: 200,
    }
}

fn told(log: &mut KillLog, to: Destination) -> u64 {
    let pending = log.next_for(to, 0, usize::MAX, |_, _| true);
    pending.iter().map(|pending| pending.report.count()).sum()
}

/// Kills of many pods, each in a commit of its own.
fn flood(log: &mut KillLog, from: u64, to: u64, pods: u64) {
    for number in from..=to {
        let mut kill = kill_of(&format!("web-{}", number % pods), number);
        kill.id = format!("kill-{number}");
        log.commit(vec![kill.into()], None);
    }
}

#[test]
fn a_full_log_turns_details_into_counts() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), small(), grpc());
    flood(&mut log, 1, 5000, 7);
    assert!(log.pending() <= 200, "{}", log.pending());
    let pending = log.next_for(Destination::Grpc, 0, usize::MAX, |_, _| true);
    assert_eq!(pending.iter().map(|pending| pending.report.count()).sum::<u64>(), 5000);
    assert!(
        matches!(pending.last().unwrap().report, Report::Kill(_)),
        "the newest keep their detail"
    );
    let folded = pending.iter().find(|pending| pending.report.count() > 1).unwrap();
    let facts = folded.report.facts();
    assert!(facts.pod.is_some() && facts.container.is_some());
    let with_detail = pending
        .iter()
        .filter(|pending| matches!(pending.report, Report::Kill(_)))
        .count();
    assert_eq!(log.totals.folded.get(), 5000 - with_detail as u64);
    drop(log);
    let (mut log, recovered) = KillLog::open(directory.path(), small(), grpc());
    assert_eq!(recovered.problem, None);
    assert_eq!(told(&mut log, Destination::Grpc), 5000);
}

#[test]
fn kills_of_many_pods_become_node_counts() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), small(), grpc());
    flood(&mut log, 1, 2000, 2000);
    assert!(log.pending() <= 200);
    let pending = log.next_for(Destination::Grpc, 0, usize::MAX, |_, _| true);
    assert_eq!(pending.iter().map(|pending| pending.report.count()).sum::<u64>(), 2000);
    assert!(
        pending
            .iter()
            .any(|pending| pending.report.count() > 1 && pending.report.facts().pod.is_none())
    );
}

#[test]
fn reports_in_flight_are_not_aggregated() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), small(), grpc());
    flood(&mut log, 1, 100, 1);
    let sent = log.next_for(Destination::Grpc, 0, 50, |_, _| true);
    flood(&mut log, 101, 3000, 1);
    assert!(log.totals.folded.get() > 0);
    let again = log.next_for(Destination::Grpc, 0, 50, |_, _| true);
    assert_eq!(ids(&again), ids(&sent));
    // What comes after them in their connection is everything else, counted once.
    let rest = log.next_for(Destination::Grpc, sent.last().unwrap().number, usize::MAX, |_, _| true);
    assert_eq!(rest.iter().map(|pending| pending.report.count()).sum::<u64>(), 2950);
}

#[test]
fn acknowledged_kills_are_not_counted_again() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), small(), all());
    let mut acknowledged = 0;
    for from in (1..=3000).step_by(50) {
        flood(&mut log, from, from + 49, 3);
        let pending = log.next_for(Destination::PodEvents, 0, 40, |_, _| true);
        acknowledged += pending.iter().map(|pending| pending.report.count()).sum::<u64>();
        let numbers: Vec<_> = pending.iter().map(|pending| pending.number).collect();
        log.acknowledge(Destination::PodEvents, &numbers);
    }
    assert!(log.pending() <= 200);
    assert_eq!(acknowledged + told(&mut log, Destination::PodEvents), 3000);
    assert_eq!(told(&mut log, Destination::Grpc), 3000);
    assert_eq!(told(&mut log, Destination::VpaEvents), 3000);
}

#[test]
fn one_report_never_takes_all_the_room() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    let mut kill = kill_of("web", 1);
    let victim = Victim {
        comm: "x".repeat(15),
        ..kill.victim.clone().unwrap()
    };
    kill.candidates = vec![victim; 1000].into();
    log.commit(vec![kill.into()], None);
    let pending = log.next_for(Destination::Grpc, 0, 9, |_, _| true);
    assert!(matches!(&pending[0].report, Report::Aggregate(sum) if sum.count == 1 && sum.facts.pod.is_some()));
    assert_eq!(log.totals.folded.get(), 1);
}

#[test]
fn a_checkpoint_longer_than_the_bounds_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), small(), grpc());
    let checkpoint = vec![7; 2 << 20];
    for number in 1..=2 {
        log.commit(vec![kill_of("web", number).into()], Some(checkpoint.clone()));
    }
    assert_eq!(log.problem(), None);
    drop(log);
    let (mut log, recovered) = KillLog::open(directory.path(), small(), grpc());
    assert_eq!((recovered.problem, recovered.checkpoint), (None, Some(checkpoint)));
    assert_eq!(pending_ids(&mut log), named(1..=2));
}

#[test]
fn memory_keeps_reports_without_a_directory() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("log");
    // A file in the place of the directory is in the way, also of root.
    fs::write(&directory, "in the way").unwrap();
    let (mut log, recovered) = KillLog::open(&directory, small(), grpc());
    assert!(recovered.problem.unwrap().contains("kept in memory only"));
    flood(&mut log, 1, 1000, 3);
    assert!(log.pending() <= 200, "the bounds hold in memory, too");
    assert!(!log.sync());
    fs::remove_file(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    assert!(log.sync());
    assert_eq!(log.problem(), None);
    drop(log);
    let (mut log, _) = KillLog::open(&directory, small(), grpc());
    assert_eq!(told(&mut log, Destination::Grpc), 1000);
}

#[test]
fn a_log_found_late_says_what_it_drops() {
    let parent = tempfile::tempdir().unwrap();
    let (directory, away) = (parent.path().join("log"), parent.path().join("away"));
    fs::create_dir(&directory).unwrap();
    commit(&mut open(&directory).0, 1..=2);
    fs::rename(&directory, &away).unwrap();
    fs::write(&directory, "in the way").unwrap();
    let (mut log, _) = KillLog::open(&directory, small(), Destination::PodEvents.into());
    fs::remove_file(&directory).unwrap();
    fs::rename(&away, &directory).unwrap();
    let lines = parent.path().join("lines");
    let writer = Arc::new(File::create(&lines).unwrap());
    // With one subscriber alone, a test that logs this line on another thread first would decide that nobody wants it.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
    assert!(tracing::subscriber::with_default(subscriber, || log.sync()));
    let lines = fs::read_to_string(lines).unwrap();
    assert!(lines.contains("their receiver is no longer configured"), "{lines}");
}

#[test]
fn a_rewrite_that_fails_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = KillLog::open(directory.path(), small(), grpc());
    commit(&mut log, 1..=3);
    let in_the_way = directory.path().join("kills.log.new");
    fs::create_dir(&in_the_way).unwrap();
    flood(&mut log, 1, 500, 3);
    assert!(log.is_in_memory_only());
    assert_eq!(told(&mut log, Destination::Grpc), 503);
    fs::remove_dir(&in_the_way).unwrap();
    assert!(log.sync());
    drop(log);
    let (mut log, _) = KillLog::open(directory.path(), small(), grpc());
    assert_eq!(told(&mut log, Destination::Grpc), 503);
}
