use std::fs::File;
use std::io::Write;
use std::path::Path;

use jiff::Timestamp;
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::oom::Event;

const KILLED: &str = "Memory cgroup out of memory: Killed process 7 (x) total-vm:4kB, anon-rss:3kB";

fn now(monotonic_us: i64) -> Now {
    Now {
        monotonic_us,
        wall: Timestamp::from_microsecond(monotonic_us).unwrap(),
    }
}

fn summary(pid: u32) -> String {
    format!(
        "oom-kill:constraint=X,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid={pid},uid=0"
    )
}

/// Reads a record of that number, printed at that microsecond, a millisecond later.
fn record(tracker: &mut Tracker, seq: u64, text: &str) -> Vec<Notice> {
    let bytes = format!("3,{seq},{seq}000,-;{text}\n");
    tracker
        .take(
            Attempt::Record(bytes.as_bytes()),
            now(i64::try_from(seq).unwrap() * 1000 + 1000),
        )
        .collect()
}

fn at_end(tracker: &mut Tracker) -> Vec<Notice> {
    tracker.take(Attempt::AtEnd, now(0)).collect()
}

/// Number, time, origin and cgroup of a kill.
fn kill(notice: &Notice) -> Option<(u64, i64, Origin, Option<String>)> {
    match notice {
        Notice::Event(LogEvent {
            event: Event::Kill(kill),
            seq,
            at,
            origin,
            ..
        }) => Some((
            *seq,
            at.as_microsecond(),
            *origin,
            kill.task_cgroup.as_ref().map(ToString::to_string),
        )),
        _ => None,
    }
}

#[test]
fn what_was_there_before_is_told_apart_from_what_comes() {
    let mut tracker = Tracker::new(None);
    assert_eq!(record(&mut tracker, 5, "first"), []);
    let replayed = record(&mut tracker, 6, KILLED);
    assert_eq!(kill(&replayed[0]), Some((6, 6_000, Origin::Replayed, None)));
    assert_eq!(at_end(&mut tracker), [Notice::CaughtUp]);
    assert_eq!(at_end(&mut tracker), []);
    let live = record(&mut tracker, 7, &KILLED.replace('7', "8"));
    assert_eq!(
        kill(&live[0]),
        Some((7, 8_000, Origin::Live, None)),
        "a live record has the time it was read at"
    );
}

#[test]
fn what_was_told_before_is_not_told_again_but_still_explains() {
    let mut tracker = Tracker::new(Some(6));
    assert_eq!(record(&mut tracker, 5, &KILLED.replace("process 7", "process 3")), []);
    assert_eq!(record(&mut tracker, 6, &summary(7)), []);
    let notices = record(&mut tracker, 7, KILLED);
    assert_eq!(
        kill(&notices[0]),
        Some((7, 7_000, Origin::Replayed, Some("/a".to_owned())))
    );
}

#[test]
fn a_position_beyond_the_log_silences_nothing_new() {
    let mut tracker = Tracker::new(Some(1_000_000));
    assert_eq!(record(&mut tracker, 5, KILLED), []);
    assert_eq!(at_end(&mut tracker), [Notice::CaughtUp]);
    assert_eq!(
        record(&mut tracker, 6, &KILLED.replace("process 7", "process 8")).len(),
        1
    );
}

#[test]
fn overwritten_records_are_counted_and_explain_nothing() {
    let mut tracker = Tracker::new(None);
    assert_eq!(record(&mut tracker, 5, &summary(7)), []);
    assert_eq!(tracker.take(Attempt::Overwritten, now(0)).count(), 0);
    let notices = record(&mut tracker, 9, KILLED);
    assert_eq!(notices[0], Notice::Lost(Loss::Overwritten { records: 3 }));
    assert_eq!(kill(&notices[1]), Some((9, 9_000, Origin::Replayed, None)));
    assert_eq!(tracker.take(Attempt::Overwritten, now(0)).count(), 0);
    assert_eq!(
        at_end(&mut tracker),
        [Notice::Lost(Loss::Overwritten { records: 0 }), Notice::CaughtUp]
    );
}

#[test]
fn a_record_that_is_too_long_is_told_once() {
    let mut tracker = Tracker::new(None);
    assert_eq!(record(&mut tracker, 5, "x"), []);
    let told: Vec<_> = tracker.take(Attempt::TooLong, now(0)).collect();
    assert_eq!(told, [Notice::Lost(Loss::TooLong)]);
    assert_eq!(record(&mut tracker, 7, "x"), []);
}

#[test]
fn garbage_is_passed_over() {
    let mut tracker = Tracker::new(None);
    for garbage in [&b""[..], b"\xff\xfe", b"3,x,1,-;", b";;;;"] {
        assert_eq!(tracker.take(Attempt::Record(garbage), now(0)).count(), 0);
    }
}

fn ended(device: &Path) -> KmsgError {
    let options = Options {
        device: device.to_owned(),
        ..Options::default()
    };
    KmsgReader::start(options).and_then(KmsgReader::stop).unwrap_err()
}

#[test]
fn a_log_that_cannot_be_read_says_what_to_grant() {
    let dir = tempfile::tempdir().unwrap();
    let missing = ended(&dir.path().join("kmsg"));
    assert!(
        matches!(missing, KmsgError::Open { .. }) && missing.to_string().contains("hostPath"),
        "{missing}"
    );
    let denied = KmsgError::Open {
        device: DEVICE.into(),
        source: Errno::EPERM.into(),
    };
    assert!(denied.to_string().contains("CAP_SYSLOG"), "{denied}");
}

#[tokio::test]
async fn a_file_is_not_the_kernels_log() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(ended(file.path()), KmsgError::Ended { .. }));
    let mut reader = KmsgReader::start(Options {
        device: "/dev/null".into(),
        ..Options::default()
    });
    if let Ok(reader) = &mut reader {
        assert_eq!(reader.next().await, None);
    }
    assert!(matches!(
        reader.and_then(KmsgReader::stop),
        Err(KmsgError::Ended { .. })
    ));
}

#[tokio::test]
async fn a_silent_log_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("kmsg");
    mkfifo(&device, Mode::S_IRWXU).unwrap();
    let mut log = File::options().read(true).write(true).open(&device).unwrap();
    let options = Options {
        device,
        ..Options::default()
    };
    let mut reader = KmsgReader::start(options).unwrap();
    assert_eq!(reader.next().await, Some(Notice::CaughtUp));
    log.write_all(format!("3,5,5000,-;{KILLED}\n").as_bytes()).unwrap();
    let told = reader.next().await.unwrap();
    assert!(matches!(kill(&told), Some((5, _, Origin::Live, None))), "{told:?}");
    log.write_all(format!("3,6,6000,-;{}\n", KILLED.replace("process 7", "process 8")).as_bytes())
        .unwrap();
    let asked = monotonic().unwrap();
    reader.ask();
    let mut kills = 0;
    let up_to = loop {
        match reader.next().await.unwrap() {
            Notice::UpTo(up_to) => break up_to,
            told => kills += usize::from(kill(&told).is_some()),
        }
    };
    assert!(
        kills == 1 && up_to >= asked,
        "the answer comes after what was logged before the question"
    );
    reader.stop().unwrap();
}
