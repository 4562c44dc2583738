//! Files that a crash cut off, or a disk changed.

use super::*;
use crate::report::log::frame::Stored;

/// A log of six entries: commits of one, two and three kills, an acknowledgement in between.
fn log_bytes() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    commit(&mut log, 1..=1);
    commit(&mut log, 2..=3);
    log.acknowledge(Destination::Grpc, &[1, 2]);
    commit(&mut log, 4..=6);
    drop(log);
    fs::read(directory.path().join(FILE)).unwrap()
}

/// What is there after each entry that can be read: the checkpoint and what is pending.
fn states() -> [(Option<Vec<u8>>, Vec<String>); 5] {
    let up_to = |number: u64| Some(format!("up to {number}").into_bytes());
    [
        (None, Vec::new()),
        (up_to(1), named(1..=1)),
        (up_to(3), named(1..=3)),
        (up_to(3), named(3..=3)),
        (up_to(6), named(3..=6)),
    ]
}

/// The ends of the entries.
fn ends(log: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    frame::read(&HEADER, log, |payload| {
        let begin = ends.last().copied().unwrap_or(HEADER.len());
        ends.push(begin + frame::frame(payload)?.len());
        Ok(())
    });
    ends
}

fn opened(bytes: &[u8]) -> (tempfile::TempDir, Recovered, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILE), bytes).unwrap();
    let (mut log, recovered) = open(directory.path());
    let found = pending_ids(&mut log);
    (directory, recovered, found)
}

#[test]
fn a_cut_log_keeps_kills_with_their_checkpoint() {
    let bytes = log_bytes();
    let ends = ends(&bytes);
    assert_eq!(ends.len(), states().len());
    for cut in 0..bytes.len() {
        let (directory, recovered, found) = opened(&bytes[..cut]);
        let steps = ends.iter().filter(|end| **end <= cut).count();
        let (checkpoint, expected) = states()[steps.saturating_sub(1)].clone();
        assert_eq!((recovered.checkpoint, found), (checkpoint, expected), "cut at {cut}");
        assert_eq!(recovered.problem, None, "cut at {cut}: a torn end is nobody's fault");
        // And it goes on from there.
        let (mut log, _) = open(directory.path());
        commit(&mut log, 7..=7);
        drop(log);
        assert!(pending_ids(&mut open(directory.path()).0).ends_with(&named(7..=7)));
    }
}

#[test]
fn damage_is_set_aside_and_the_rest_kept() {
    let whole = log_bytes();
    let ends = ends(&whole);
    let mut damaged = whole.clone();
    damaged[ends[1] + 40] ^= 1;
    let (directory, recovered, found) = opened(&damaged);
    let (checkpoint, expected) = states()[1].clone();
    assert_eq!((recovered.checkpoint, found), (checkpoint, expected.clone()));
    let problem = recovered.problem.unwrap();
    assert!(
        problem.contains("was damaged at byte") && problem.contains("set-aside"),
        "{problem}"
    );
    let aside = directory.path().join("kills.log.set-aside");
    assert_eq!(fs::read(aside).unwrap(), damaged);
    // What was kept is in a log of its own.
    let (mut log, again) = open(directory.path());
    assert_eq!((again.problem, pending_ids(&mut log)), (None, expected));
}

#[test]
fn damage_that_stays_in_place_doubles_nothing() {
    let mut damaged = log_bytes();
    let at = ends(&damaged)[1] + 40;
    damaged[at] ^= 1;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    fs::write(&path, &damaged).unwrap();
    let aside = directory.path().join("kills.log.set-aside");
    fs::create_dir(&aside).unwrap();
    let (mut log, recovered) = open(directory.path());
    let problem = recovered.problem.unwrap();
    assert!(problem.contains("cannot set aside"), "{problem}");
    for _ in 0..3 {
        assert!(!log.sync());
        assert_eq!(pending_ids(&mut log), named(1..=1), "delivered, and once");
    }
    assert_eq!(fs::read(&path).unwrap(), damaged);
    fs::remove_dir(&aside).unwrap();
    assert!(log.sync() && log.problem().unwrap().contains("was damaged"));
    assert_eq!(fs::read(&aside).unwrap(), damaged);
    drop(log);
    assert_eq!(pending_ids(&mut open(directory.path()).0), named(1..=1));
}

#[test]
fn what_is_no_log_is_set_aside() {
    for bytes in [&b"{\"version\":1}"[..], b"vskillz\x01"] {
        let (directory, recovered, found) = opened(bytes);
        assert!(recovered.problem.unwrap().contains("no log of the version"));
        assert_eq!(found, [""; 0]);
        let aside = directory.path().join("kills.log.set-aside");
        assert_eq!(fs::read(aside).unwrap(), bytes);
    }
}

#[test]
fn a_report_of_a_newer_agent_is_not_guessed_at() {
    let head = Entry {
        stored: vec![Stored {
            number: 1,
            pending: 4,
            length: 17,
        }],
        ..Entry::default()
    };
    let mut bytes = HEADER.to_vec();
    bytes.extend(head.frame(br#"{"rumour":"weird"}"#).unwrap());
    let (_directory, recovered, found) = opened(&bytes);
    assert_eq!(found, [""; 0]);
    assert!(recovered.problem.unwrap().contains("set-aside"));
}

#[test]
fn a_report_is_delivered_as_stored() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    commit(&mut log, 1..=3);
    commit(&mut log, 4..=4);
    let path = directory.path().join(FILE);
    let text = fs::read(&path).unwrap();
    let at = text.windows(5).position(|part| part == b"web-2").unwrap();
    let mut changed = text.clone();
    changed[at + 4] = b'9';
    fs::write(&path, changed).unwrap();
    assert_eq!(pending_ids(&mut log), named(1..=4));
    drop(log);
    let (log, recovered) = open(directory.path());
    assert_eq!(log.totals.lost.get(), 1);
    assert!(recovered.problem.unwrap().contains("was damaged at byte"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn flipped_bits_give_no_wrong_report(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4),
    ) {
        let whole = log_bytes();
        let mut bytes = whole.clone();
        for (at, bit) in &flips {
            bytes[at.index(whole.len())] ^= 1 << bit;
        }
        let first = bytes.iter().zip(&whole).position(|(now, before)| now != before);
        let intact = match first {
            Some(first) if first < HEADER.len() => 0,
            Some(first) => ends(&whole).iter().filter(|end| **end <= first).count(),
            None => states().len(),
        };
        let (_directory, recovered, found) = opened(&bytes);
        let (checkpoint, expected) = states()[intact.saturating_sub(1)].clone();
        prop_assert_eq!((recovered.checkpoint, found), (checkpoint, expected));
    }
}
