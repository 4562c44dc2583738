use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::device::cannot_open;
use super::syslog::SyslogError;
use super::*;
use crate::oom::numbers::Numbers;
use crate::oom::{Event, Line};

const KILLED: &str = "Memory cgroup out of memory: Killed process 7 (x) total-vm:4kB, anon-rss:3kB";

fn summary(pid: u32) -> String {
    format!(
        "oom-kill:constraint=X,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid={pid},uid=0"
    )
}

/// Reads a record with this number and this time in milliseconds, a millisecond later.
fn record(tracker: &mut Tracker, seq: u64, text: &str) -> Option<Notice> {
    let line = Line::of_record(format!("3,{seq},{seq}000,-;{text}\n").as_bytes()).unwrap();
    let event = tracker.line(line, Duration::from_millis(seq + 1));
    event.map(Notice::Event)
}

/// The number, time in microseconds and cgroup of a kill, and whether it is replayed.
fn kill(notice: &Notice) -> Option<(u64, u128, bool, Option<String>)> {
    match notice {
        Notice::Event(LogEvent {
            event: Event::Kill(kill),
            seq,
            place,
            replayed,
        }) => Some((
            *seq,
            place.time.as_micros(),
            *replayed,
            kill.task_cgroup.as_ref().map(ToString::to_string),
        )),
        _ => None,
    }
}

#[test]
fn replayed_and_live_kills_differ() {
    let mut tracker = Tracker::default();
    assert_eq!(record(&mut tracker, 5, "first"), None);
    let replayed = record(&mut tracker, 6, KILLED);
    assert_eq!(kill(&replayed.unwrap()), Some((number(6), 6_000, true, None)));
    tracker.at_end(machine_kill_count, || Duration::ZERO);
    let live = record(&mut tracker, 7, &KILLED.replace('7', "8"));
    assert_eq!(
        kill(&live.unwrap()),
        Some((number(7), 8_000, false, None)),
        "a live record has the time it was read at"
    );
}

/// Two CPUs print out of order, the log's clock goes back, a clock stands still: the numbers of kills ascend all the same.
#[test]
fn numbers_of_kills_ascend() {
    for text in [KILLED, "Kill process 7 (x) sharing same memory"] {
        let mut tracker = Tracker::default();
        let mut pids = 100..;
        let mut next = |us: u64| {
            let process = format!("process {}", pids.next().unwrap());
            let record = format!("3,5,{us},-;{}\n", text.replace("process 7", &process));
            let line = Line::of_record(record.as_bytes()).unwrap();
            tracker.line(line, Duration::from_secs(1)).unwrap().seq
        };
        let names = [137, 136, 138, 20_000, 9_000].map(&mut next).map(record_name);
        assert_eq!(
            names,
            ["time-137", "time-137-2", "time-138", "time-20000", "time-20000-2"]
        );
        let many: Vec<u64> = (0..5000).map(|_| next(30_000)).collect();
        assert!(many.is_sorted_by(|one, other| one < other));
    }
}

#[test]
fn overwritten_records_explain_nothing() {
    let mut tracker = Tracker::default();
    assert_eq!(record(&mut tracker, 5, &summary(7)), None);
    tracker.lost();
    let notice = record(&mut tracker, 9, KILLED);
    assert_eq!(kill(&notice.unwrap()), Some((number(9), 9_000, true, None)));
}

#[test]
fn garbage_is_passed_over() {
    for garbage in [&b""[..], b"\xff\xfe", b"3,x,1,-;", b";;;;"] {
        assert_eq!(Line::of_record(garbage), None);
    }
}

fn started(device: &Path) -> KmsgReader {
    let mut reader = KmsgReader::new(device.to_owned());
    reader.open(Duration::ZERO);
    reader
}

fn without_end(problem: &str) -> String {
    let end = "; kills are counted, and reported without process and cause";
    problem.strip_suffix(end).unwrap().to_owned()
}

fn ended(device: &Path) -> String {
    without_end(&started(device).problem.unwrap())
}

#[test]
fn a_log_that_cannot_be_read_says_what_to_grant() {
    let dir = tempfile::tempdir().unwrap();
    let missing = ended(&dir.path().join("kmsg"));
    assert!(
        missing.starts_with("cannot open") && missing.contains("hostPath"),
        "{missing}"
    );
    let denied = cannot_open(DEVICE.as_ref(), &Errno::EPERM.into()).to_string();
    assert!(denied.contains("CAP_SYSLOG"), "{denied}");
}

#[tokio::test]
async fn a_file_is_not_the_kernels_log() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let is_ended = |text: &str| text.ends_with("came to its end: it is not the kernel's log");
    assert!(is_ended(&ended(file.path())));
    let mut reader = started("/dev/null".as_ref());
    let refused = match reader.problem.take() {
        None => reader.next().await.unwrap_err().to_string(),
        Some(problem) => without_end(&problem),
    };
    assert!(is_ended(&refused), "{refused}");
}

#[tokio::test]
async fn a_silent_log_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("kmsg");
    mkfifo(&device, Mode::S_IRWXU).unwrap();
    let mut log = File::options().read(true).write(true).open(&device).unwrap();
    let mut reader = started(&device);
    assert_eq!(reader.next_now().unwrap(), None);
    assert!(reader.read_up_to().is_some());
    log.write_all(format!("3,5,5000,-;{KILLED}\n").as_bytes()).unwrap();
    let told = reader.next().await.unwrap();
    assert!(matches!(kill(&told), Some((_, _, false, None))), "{told:?}");
    log.write_all(format!("3,6,6000,-;{}\n", KILLED.replace("process 7", "process 8")).as_bytes())
        .unwrap();
    let asked = monotonic();
    assert!(reader.read_up_to().unwrap() < asked);
    let told = told_now(&mut reader);
    assert_eq!(kills(&told), [(number(6), false)]);
    assert!(reader.read_up_to().unwrap() >= asked, "everything was told by then");
}

/// A log of syslog(2): its text now, and the number of calls.
type Text = Arc<Mutex<(String, usize)>>;

fn reader_of(text: &Text) -> KmsgReader {
    let text = Arc::clone(text);
    let read_all = move || {
        let mut text = text.lock().unwrap();
        text.1 += 1;
        Ok(text.0.clone().into_bytes())
    };
    let mut reader = KmsgReader::new(SYSLOG.into());
    reader.begin(Box::new(Syslog::new(Box::new(read_all)).unwrap()));
    reader
}

/// The line of a kill at this millisecond in the format of `SYSLOG_ACTION_READ_ALL`.
fn killed(pid: u32, millisecond: u64) -> String {
    let kill = KILLED.replace("process 7", &format!("process {pid}"));
    format!("<3>[{:5}.{:03}000] {kill}\n", millisecond / 1000, millisecond % 1000)
}

/// The number of the first kill at this millisecond.
fn number(millisecond: u64) -> u64 {
    record_number(millisecond * 1000, 1)
}

#[tokio::test]
async fn kills_at_one_time_have_own_numbers() {
    let text = Text::default();
    text.lock().unwrap().0 = killed(7, 1500) + &killed(8, 1500);
    let mut reader = reader_of(&text);
    let mut told = kills(&told_now(&mut reader));
    text.lock().unwrap().0 += &(killed(9, 1500) + &killed(10, 1510));
    reader.wake();
    tokio::time::sleep(Duration::from_millis(501)).await;
    told.extend(kills(&told_now(&mut reader)));
    let names: Vec<_> = told.iter().map(|(seq, _)| record_name(*seq)).collect();
    assert_eq!(
        names,
        ["time-1500000", "time-1500000-2", "time-1500000-3", "time-1510000"]
    );
    assert!(told.is_sorted_by_key(|(seq, _)| *seq));
}

#[tokio::test]
async fn both_sources_give_a_kill_one_number() {
    let kills_at = [(7, 1500), (8, 1500), (9, 1510)];
    let text = Text::default();
    text.lock().unwrap().0 = kills_at.iter().map(|(pid, at)| killed(*pid, *at)).collect();
    let by_syslog = kills(&told_now(&mut reader_of(&text)));
    let mut tracker = Tracker::default();
    let by_device = (100..).zip(kills_at).filter_map(|(seq, (pid, at))| {
        let kill = KILLED.replace("process 7", &format!("process {pid}"));
        let record = format!("3,{seq},{at}000,-;{kill}\n");
        let event = tracker.line(Line::of_record(record.as_bytes())?, Duration::from_secs(2))?;
        Some((event.seq, event.replayed))
    });
    assert_eq!(by_device.collect::<Vec<_>>(), by_syslog);
    assert_eq!(by_syslog.len(), 3);
}

/// All notices that the reader returns now.
fn told_now(reader: &mut KmsgReader) -> Vec<Notice> {
    std::iter::from_fn(|| reader.next_now().unwrap()).collect()
}

fn kills(notices: &[Notice]) -> Vec<(u64, bool)> {
    let kills = notices.iter().filter_map(kill);
    kills.map(|(seq, _, replayed, _)| (seq, replayed)).collect()
}

#[tokio::test]
async fn syslog_returns_each_line_once() {
    let text = Text::default();
    text.lock().unwrap().0 = killed(7, 1500) + "<12>[    1.500001] " + KILLED + "\n";
    let mut reader = reader_of(&text);
    let first = told_now(&mut reader);
    assert_eq!(kills(&first), [(number(1500), true)], "a process wrote the other");
    assert_eq!(first.len(), 1);
    text.lock().unwrap().0 += &killed(8, 1600);
    assert_eq!(told_now(&mut reader), [], "nothing says that there is news");
    reader.wake();
    tokio::time::sleep(Duration::from_millis(501)).await;
    assert_eq!(kills(&told_now(&mut reader)), [(number(1600), false)]);
}

#[tokio::test]
async fn lines_of_one_record_are_one_text() {
    let record = |us: u64, text: &str| -> String {
        let lines = text.lines().map(|line| format!("<3>[    1.{us:06}][ T77] {line}\n"));
        lines.collect()
    };
    let named = KILLED.replace("7 (x)", "8 (new\nline)");
    // A file's name in an error is a tenant's, and so is a command's name.
    let records = [(500_001, format!("overlay: no file x\n{KILLED}")), (500_009, named)];
    let text = Text::default();
    text.lock().unwrap().0 = records.iter().map(|(us, text)| record(*us, text)).collect();
    let told = told_now(&mut reader_of(&text));
    let [Notice::Event(event)] = told.as_slice() else {
        panic!("{told:?}")
    };
    let Event::Kill(kill) = &event.event else {
        panic!("{event:?}")
    };
    assert_eq!((kill.pid, &*kill.comm), (8, "new\nline"));
}

/// A fast machine prints the two within a microsecond.
#[tokio::test]
async fn a_summary_is_no_line_of_a_task() {
    let row = "[      7]     0     7     6649     6544     6400      144         0    94208        0           900 x";
    let crash = "[7] 0[9]: segfault at 0 ip 0 sp 0 error 4 in a";
    for (first, cgroup) in [(row, Some("/a")), (crash, None)] {
        let report = summary(7);
        let lines = [(6, 1, first), (6, 1, report.as_str()), (3, 9, KILLED)];
        let text = Text::default();
        text.lock().unwrap().0 = lines
            .map(|(priority, us, text)| format!("<{priority}>[    1.50000{us}] {text}\n"))
            .concat();
        let told = told_now(&mut reader_of(&text));
        let found: Vec<_> = told.iter().filter_map(kill).map(|(.., cgroup)| cgroup).collect();
        assert_eq!(found, [cgroup.map(str::to_owned)], "{first}");
    }
}

#[tokio::test]
async fn syslog_is_called_twice_a_second() {
    let text = Text::default();
    text.lock().unwrap().0 = killed(7, 1500);
    let mut reader = reader_of(&text);
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(1200) {
        reader.wake();
        tokio::time::sleep(Duration::from_millis(1)).await;
        told_now(&mut reader);
    }
    let calls = u128::try_from(text.lock().unwrap().1).unwrap();
    assert!(2 <= calls && calls <= 1 + began.elapsed().as_millis() / 500, "{calls}");
    // The reader knows the log as of the last call.
    let asked = monotonic();
    reader.wake();
    told_now(&mut reader);
    tokio::time::sleep(Duration::from_millis(501)).await;
    assert!(reader.read_up_to().unwrap() < monotonic() - Duration::from_millis(100));
    told_now(&mut reader);
    assert!(reader.read_up_to().unwrap() >= asked);
}

#[tokio::test]
async fn a_log_wrapped_between_calls_has_lost_lines() {
    let text = Text::default();
    text.lock().unwrap().0 = killed(7, 1500);
    let mut reader = reader_of(&text);
    told_now(&mut reader);
    text.lock().unwrap().0 = killed(9, 9000);
    reader.wake();
    tokio::time::sleep(Duration::from_millis(501)).await;
    let told = told_now(&mut reader);
    assert_eq!(told[0], Notice::Lost);
    assert_eq!(kills(&told), [(number(9000), false)]);
}

#[test]
fn the_first_record_after_a_loss_has_no_exact_time() {
    let mut tracker = Tracker::default();
    tracker.at_end(machine_kill_count, || Duration::ZERO);
    let place = |tracker: &mut Tracker, seq: u64, pid: &str, read_ms| {
        let text = format!("3,{seq},{},-;{}", seq * 1000, KILLED.replace("process 7", pid));
        let line = Line::of_record(text.as_bytes()).unwrap();
        tracker.line(line, Duration::from_millis(read_ms)).unwrap().place
    };
    tracker.lost();
    assert!(!place(&mut tracker, 1000, "process 7", 4000).is_exact);
    tracker.at_end(machine_kill_count, || Duration::from_millis(4000));
    let at_once = place(&mut tracker, 5000, "process 8", 5000);
    assert_eq!((at_once.is_exact, at_once.time), (true, Duration::from_secs(5)));
}

/// A log that is at its end when it is first read. Before the next read, the thread waits for a millisecond, and the kernel logs a kill.
#[derive(Debug, Default)]
struct ReadLate {
    was_read: bool,
}

impl Source for ReadLate {
    fn name(&self) -> &'static str {
        "a test"
    }

    fn read(&mut self) -> Result<Option<Attempt>> {
        let called = monotonic();
        if !std::mem::replace(&mut self.was_read, true) {
            return Ok(Some(Attempt::AtEnd(called)));
        }
        while monotonic() < called + Duration::from_millis(1) {
            std::thread::yield_now();
        }
        let record = format!("3,1,{},-;{KILLED}\n", monotonic().as_micros());
        Ok(Line::of_record(record.as_bytes()).map(Attempt::Line))
    }

    fn readable(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn no_kill_is_dated_before_it_was_logged() {
    let mut reader = KmsgReader::new(SYSLOG.into());
    reader.begin(Box::new(ReadLate::default()));
    assert_eq!(reader.next_now().unwrap(), None);
    let Some(Notice::Event(LogEvent { event, place, .. })) = reader.next_now().unwrap() else {
        panic!("no kill")
    };
    let Event::Kill(kill) = event else { panic!("{event:?}") };
    assert!(
        place.time >= Duration::from_micros(kill.timestamp_us.unwrap()),
        "{place:?}"
    );
}

#[test]
fn a_kill_beside_the_count_has_no_number() {
    let (mut tracker, seconds) = (Tracker::default(), Duration::from_secs);
    let now = std::cell::Cell::new(seconds(0));
    // The thread waits for ten seconds before it reads the count, and the kernel counts a kill whose line was not read.
    let count = || {
        now.set(seconds(10));
        Some(41)
    };
    tracker.at_end(count, || now.get());
    let line = Line::of_record(format!("3,1,9000000,-;{KILLED}\n").as_bytes()).unwrap();
    let place = tracker.line(line, seconds(10)).unwrap().place;
    assert_eq!(place.numbers, Numbers::ANY, "it is the 41st, not the 42nd");
}

#[tokio::test]
async fn syslog_read_late_has_no_exact_time() {
    let text = Text::default();
    text.lock().unwrap().0 = killed(7, 1500);
    let mut reader = reader_of(&text);
    told_now(&mut reader);
    text.lock().unwrap().0 += &killed(8, 1600);
    reader.wake();
    tokio::time::sleep(Duration::from_millis(501)).await;
    let Some(Notice::Event(event)) = told_now(&mut reader).pop() else {
        panic!("no kill")
    };
    assert!(!event.place.is_exact);
}

#[tokio::test]
async fn errors_of_syslog_say_what_to_do() {
    let without_times = || Ok(format!("<3>{KILLED}\n").into_bytes());
    let error = Syslog::new(Box::new(without_times)).unwrap_err();
    assert!(
        error.to_string().contains("/sys/module/printk/parameters/time"),
        "{error}"
    );
    // A call that is refused later ends the reading with the reason.
    let mut calls = 0;
    let refused_later = move || {
        calls += 1;
        if calls == 1 {
            Ok(Vec::new())
        } else {
            Err(SyslogError::Refused)
        }
    };
    let mut reader = KmsgReader::new(SYSLOG.into());
    reader.begin(Box::new(Syslog::new(Box::new(refused_later)).unwrap()));
    assert_eq!(reader.next_now().unwrap(), None);
    reader.wake();
    let refused = reader.next().await.unwrap_err().to_string();
    assert_eq!(refused, "syslog(2) is refused: grant CAP_SYSLOG");
}
