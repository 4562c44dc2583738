//! What vscaled 0.1 left, as an agent of that version wrote it on a node (see `tests/data/kills`): four kills, of which a
//! receiver acknowledged the first.

use super::*;

const BOOT: &str = "399fbd7f-9965-4646-9df5-7147e6a293c3";

fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kills/0.1")
}

/// A state directory of that version.
fn left() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("spool")).unwrap();
    for name in ["spool/reports.journal", "oom.journal"] {
        let recorded = recording().join(Path::new(name).file_name().unwrap());
        fs::copy(recorded, directory.path().join(name)).unwrap();
    }
    for lock in ["spool/reports.lock", "oom.lock"] {
        fs::write(directory.path().join(lock), "").unwrap();
    }
    directory
}

fn kills(records: &[u64]) -> Vec<String> {
    records.iter().map(|record| format!("{BOOT}-log-{record}")).collect()
}

fn latest(recovered: &Recovered) -> Vec<String> {
    recovered.latest.iter().map(|kill| kill.id.clone()).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_the_version_before_left_is_carried_over_once() {
    let directory = left();
    let (mut log, recovered) = open(directory.path());
    assert_eq!((&recovered.problem, recovered.forgotten), (&None, 0));
    assert_eq!(latest(&recovered), kills(&[425, 505, 586, 667]));
    assert_eq!(log.status().pending_for(Destination::Grpc), 3);
    let checkpoint = String::from_utf8(recovered.checkpoint.clone().unwrap()).unwrap();
    assert!(
        checkpoint.contains(BOOT) && checkpoint.contains(r#""upTo":667"#),
        "{checkpoint}"
    );
    assert_eq!(pending_ids(&mut log), kills(&[505, 586, 667]));
    assert_eq!(names(directory.path()), ["kills.log", "oom.journal"]);
    log.acknowledge(Destination::Grpc, &[2]);
    drop(log);

    let (mut log, again) = open(directory.path());
    assert_eq!(
        (latest(&again), again.checkpoint),
        (latest(&recovered), recovered.checkpoint)
    );
    assert_eq!(pending_ids(&mut log), kills(&[586, 667]));
}

#[test]
fn an_attempt_that_was_interrupted_is_repeated_without_a_second_delivery() {
    let directory = left();
    let (mut log, _) = open(directory.path());
    log.acknowledge(Destination::Grpc, &[2, 3, 4]);
    drop(log);
    let before = left();
    fs::rename(before.path().join("oom.journal"), directory.path().join("oom.journal")).unwrap();
    fs::rename(before.path().join("spool"), directory.path().join("spool")).unwrap();
    let (mut log, recovered) = open(directory.path());
    assert_eq!((pending_ids(&mut log), latest(&recovered).len()), (Vec::new(), 4));
}

#[test]
fn what_was_damaged_is_set_aside_and_what_came_before_the_damage_is_carried_over() {
    let directory = left();
    let path = directory.path().join("oom.journal");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(8).rposition(|part| part == b"\"id\":\"39").unwrap();
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    // Intact bytes after the damage tell it from a torn end.
    bytes.extend(frame::frame(b"").unwrap());
    fs::write(&path, &bytes).unwrap();
    let (mut log, recovered) = open(directory.path());
    assert!(recovered.problem.unwrap().contains("oom.journal.set-aside"));
    assert_eq!(fs::read(directory.path().join("oom.journal.set-aside")).unwrap(), bytes);
    assert_eq!(
        pending_ids(&mut log),
        kills(&[505, 586, 667]),
        "the spool has the last one, too"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_set_aside_and_the_rest_is_carried_over() {
    let directory = left();
    let path = directory.path().join("oom.journal");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let (mut log, recovered) = open(directory.path());
    assert_eq!((recovered.problem, log.is_in_memory_only()), (None, false));
    assert_eq!(pending_ids(&mut log), kills(&[505, 586, 667]));
    assert_eq!(
        names(directory.path()),
        ["kills.log", "oom.journal", "oom.journal.set-aside"]
    );
}

#[test]
fn a_checkpoint_carried_over_does_not_come_back_where_the_marker_finds_no_room() {
    let directory = left();
    let in_the_way = directory.path().join("oom.journal.new");
    fs::create_dir(&in_the_way).unwrap();
    let (mut log, _) = open(directory.path());
    log.commit(commit(1..=1));
    drop(log);
    assert_eq!(
        names(directory.path()),
        ["kills.log", "oom.journal.new"],
        "the others are removed"
    );
    let (_, recovered) = open(directory.path());
    assert_eq!(recovered.checkpoint.as_deref(), Some(&b"up to 1"[..]));
}

#[test]
fn a_destination_that_is_not_selected_any_more_gets_nothing_of_it() {
    let directory = left();
    let pods = Destinations::from_iter([Destination::PodEvents]);
    let (log, recovered) = KillLog::open(directory.path(), Bounds::default(), pods);
    assert_eq!((recovered.forgotten, log.pending()), (3, 0));
    assert_eq!(latest(&recovered).len(), 4);
}
