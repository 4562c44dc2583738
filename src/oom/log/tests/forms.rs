//! The forms in which people have a log, bounds, and damage. The files of `tests/data/logs` are described there.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::oom::Level;

const POD: &str = "3f0c7c1e-52a4-4d7b-9a31-0d5a6be41f02";

fn read(log: &[u8]) -> (Vec<Kill>, NotUnderstood) {
    read_log(log).unwrap()
}

#[test]
fn every_form_of_a_log_has_the_same_kill() {
    // The pids of the kills at the pod's limit, of other kills, and the lines that are not understood.
    let others: BTreeMap<&str, (&[u32], &[u32], u64)> = BTreeMap::from([
        ("cut-lines", (&[][..], &[4242][..], 2)),
        ("rhel7-messages", (&[817_194, 818_294], &[], 0)),
        ("summary-lines-alone", (&[966], &[7134], 0)),
        ("talosctl-dmesg", (&[40_199], &[], 0)),
        // Nothing says who wrote a line of this form.
        ("journal-cat", (&[4242], &[1], 1)),
        // A command with a line break, which the journal stores as one message.
        ("journal-export", (&[4242], &[4243], 0)),
        ("journal-json", (&[4242], &[4243], 0)),
        ("journal-json-pretty", (&[4242], &[4243], 0)),
        ("journal-json-seq", (&[4242], &[4243], 0)),
        ("journal-json-sse", (&[4242], &[4243], 0)),
        ("journal-verbose", (&[4242], &[], 1)),
    ]);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs");
    let mut files = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "README" {
            continue;
        }
        files += 1;
        let (kills, not_understood) = read(&std::fs::read(&path).unwrap());
        let journal = name.starts_with("journal-short") || name == "journal-with-unit";
        let elsewhere_too: &[u32] = if journal { &[4243] } else { &[] };
        let usual: (&[u32], &[u32], u64) = (&[4242], elsewhere_too, 0);
        let (at_pod, elsewhere, lines) = others.get(&*name).copied().unwrap_or(usual);
        let pids = |is_at_pod: bool| -> Vec<u32> {
            let wanted = kills
                .iter()
                .filter(|kill| (kill.limit.level() == Level::Pod) == is_at_pod);
            wanted.map(|kill| kill.pid).collect()
        };
        if name == "two-machines" {
            assert_eq!(pids(true), [4242, 4242], "{name}");
            let containers: Vec<_> = kills.iter().map(|kill| kill.victim().1.unwrap().to_string()).collect();
            assert_ne!(containers[0], containers[1]);
            continue;
        }
        assert_eq!(pids(true), at_pod, "{name}: {kills:?}");
        assert_eq!(pids(false), elsewhere, "{name}: {kills:?}");
        assert_eq!(not_understood.lines, lines, "{name}: {not_understood:?}");
        for kill in kills.iter().filter(|kill| kill.limit.level() == Level::Pod) {
            let (pod, container) = kill.victim();
            assert_eq!(pod.unwrap().uid.as_str(), POD, "{name}");
            assert!(container.is_some(), "{name}");
        }
    }
    assert!(files > 40, "{files}");
}

#[test]
fn lines_not_understood_are_counted() {
    let log = "eth0: up\nnode x1 says: Out of memory: Killed process 1 (x) total-vm:1kB\nKilled process many\n";
    let (kills, not_understood) = read(log.as_bytes());
    assert_eq!(kills, []);
    let (number, text) = not_understood.first.unwrap();
    assert_eq!((not_understood.lines, number), (2, 2));
    assert!(text.starts_with("node x1 says: "), "{text}");
}

#[test]
fn the_next_line_of_a_message_is_no_line() {
    let killed = "Out of memory: Killed process 1 (x) total-vm:1kB";
    for (header, lines) in [
        ("[    1.500000] ", 1),
        ("[Fri Nov 21 02:53:00 2025] ", 1),
        ("Nov 21 02:53:00 node-a kernel: ", 1),
        ("Nov 21 02:53:00 node-a app[77]: ", 0),
    ] {
        let indent = " ".repeat(header.len());
        let log = format!("{header}no file x\n{indent}{killed}\n");
        let (kills, not_understood) = read(log.as_bytes());
        assert_eq!((kills, not_understood.lines), (Vec::new(), lines), "{header}");
        let log = format!("{header}no file x\n    {killed}\n");
        assert_eq!(read(log.as_bytes()).0.len(), 1, "{header}: it is not indented so far");
    }
}

#[test]
fn no_line_of_a_message_is_something_else() {
    const HEADER: &str = "Nov 21 02:53:00 node-a app[77]: ";
    let indent = " ".repeat(HEADER.len());
    let long = format!("{indent}{}\n", "x".repeat(100)).repeat(LONGEST_LINE / 100);
    for (before, last) in [
        ("\n", KILLED.to_owned()),
        (&*format!("{indent}\n"), KILLED.to_owned()),
        (&*long, KILLED.to_owned()),
        ("", format!("MESSAGE={KILLED}")),
        ("", format!("{{\"MESSAGE\":\"{KILLED}\"}}")),
    ] {
        let log = format!("{HEADER}no file x\n{before}{indent}{last}\n");
        assert_eq!(read(log.as_bytes()).0, [], "{last}");
        let log = format!("{HEADER}no file x\n{last}\n");
        assert_eq!(read(log.as_bytes()).0.len(), 1, "{last}: it is not indented");
    }
}

#[test]
fn a_driver_without_memory_is_no_kill() {
    for line in [
        "[  179.500000] TCP: out of memory -- consider tuning tcp_mem",
        "Nov 21 02:53:00 node-a kernel: [   70.500000] NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",
        "4,812,70500000,-;example 0000:00:02.0: Out of memory",
    ] {
        assert_eq!(read(line.as_bytes()), (Vec::new(), NotUnderstood::default()), "{line}");
    }
}

/// As in pages whose markup has braces, and in the logs of programs that print their own notation.
#[test]
fn text_around_and_in_braces_is_no_silence() {
    for line in [
        format!("{{noformat}}[    1.500000] {KILLED}{{noformat}}"),
        format!("{{job=\"x\"}} {KILLED}"),
        format!("{{\"a\":1}} {KILLED}"),
        format!("{{'message': '{KILLED}'}}"),
        format!("{{msg: {KILLED}"),
        format!("[[{{ {KILLED}"),
        format!("{{\"a\":\"{}\"}} {KILLED}", "x".repeat(2 << 20)),
    ] {
        let (kills, not_understood) = read(line.as_bytes());
        let start: String = line.chars().take(40).collect();
        assert_eq!((kills.len(), not_understood.lines), (0, 1), "{start}");
    }
}

#[test]
fn a_kernel_that_panics_kills_no_process() {
    for reason in [
        "Out of memory: system-wide panic_on_oom is enabled",
        "Out of memory and no killable processes...",
    ] {
        let log = format!(
            "[    1.500000] Kernel panic - not syncing: {reason}\n\
             [    1.600000] ---[ end Kernel panic - not syncing: {reason} ]---\n"
        );
        assert_eq!(read(log.as_bytes()), (Vec::new(), NotUnderstood::default()), "{reason}");
    }
}

#[test]
fn a_report_that_is_logged_twice_is_one_kill() {
    let report = "[    1.500000] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=x,pid=7,uid=0\n";
    let (kills, _) = read(report.repeat(3).as_bytes());
    assert_eq!(
        kills.iter().map(|kill| (kill.pid, &*kill.comm)).collect::<Vec<_>>(),
        [(7, "x")]
    );
}

#[test]
fn a_report_without_its_process_is_a_kill() {
    let task = |second: u32, pod: &str| {
        format!("[   {second}.500000] Task in /{pod}/c killed as a result of limit of /{pod}\n")
    };
    let log = [task(11, "a"), task(11, "a"), task(21, "b")].concat();
    let (kills, _) = read(log.as_bytes());
    let places: Vec<_> = kills
        .iter()
        .map(|kill| (kill.pid, kill.limit.cgroup().unwrap().as_str()))
        .collect();
    assert_eq!(places, [(0, "/a"), (0, "/b")]);
}

#[test]
fn reports_about_several_cgroups_are_several_kills() {
    let report = |pod: &str| format!("[   11.500000] Task in /{pod}/c killed as a result of limit of /{pod}\n");
    let log = ["a", "b", "c", "a"].map(report).concat();
    let (kills, _) = read(log.as_bytes());
    let limits: Vec<_> = kills.iter().map(|kill| kill.limit.cgroup().unwrap().as_str()).collect();
    assert_eq!(limits, ["/a", "/b", "/c"]);
    let killed = log + "[   11.600000] Killed process 7 (x) total-vm:4kB, anon-rss:3kB\n";
    let (kills, _) = read(killed.as_bytes());
    let explained: Vec<_> = kills.iter().map(|kill| (kill.pid, &kill.limit)).collect();
    assert_eq!(explained, [(7, &Limit::Unknown)], "it may be any of them");
}

#[test]
fn a_later_report_is_another_kill() {
    let report = |(second, pod): (u32, &str)| {
        format!("[   {second}.500000] Task in /{pod}/c killed as a result of limit of /{pod}\n")
    };
    let log = [(11, "a"), (14, "b"), (17, "a"), (18, "a")].map(report).concat();
    let (kills, _) = read(log.as_bytes());
    let limits: Vec<_> = kills.iter().map(|kill| kill.limit.cgroup().unwrap().as_str()).collect();
    assert_eq!(limits, ["/a", "/b", "/a"]);
}

#[test]
fn padded_lines_lose_nothing() {
    let log = "[    1.500000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=x,pid=7,uid=0     \n\
               [    1.500001] Memory cgroup out of memory: Killed process 7 (x) total-vm:1kB      \n";
    let (kills, not_understood) = read(log.as_bytes());
    assert_eq!(not_understood, NotUnderstood::default());
    assert_eq!(kills[0].task_cgroup.as_ref().map(CgroupPath::as_str), Some("/a/b"));
}

/// A log of any length, made while it is read.
struct Endless<'a> {
    lines: Box<dyn FnMut(u32) -> String + 'a>,
    left: u32,
    line: Vec<u8>,
}

impl io::Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.line.is_empty() && self.left > 0 {
            self.left -= 1;
            self.line = (self.lines)(self.left).into_bytes();
        }
        let length = self.line.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.line[..length]);
        self.line.drain(..length);
        Ok(length)
    }
}

#[test]
fn the_readers_memory_is_bounded() {
    let report =
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=x";
    let forms: [fn(&str, u32) -> String; 8] = [
        |_, pid| format!("Out of memory: Killed process {pid} (x) total-vm:1kB\n"),
        |report, pid| format!("{report},pid={pid},uid=0\n"),
        |_, pid| format!("Task in /{pid}/c killed as a result of limit of /{pid}\n"),
        |_, pid| format!("Nov 21 02:53:00 node-{pid} kernel: Killed process {pid} (x) total-vm:1kB\n"),
        |_, _| "Killed process".repeat(100),
        |_, pid| format!("{{\"pri\":3,\"x\":{{\"msg\":\"Killed process {pid} (x) total-vm:1kB\"}},"),
        |_, _| "MESSAGE\n12345678901234567890\n".to_owned(),
        |_, _| "oom-kill:constraint=,cpuset=\n".to_owned(),
    ];
    for (index, form) in forms.into_iter().enumerate() {
        let endless = Endless {
            lines: Box::new(move |left| form(report, left % 1_000_000 + 1)),
            left: 3_000,
            line: Vec::new(),
        };
        let mut log = io::BufReader::new(endless);
        let mut reader = LogReader::default();
        loop {
            let bytes = log.fill_buf().unwrap();
            if bytes.is_empty() {
                break;
            }
            let length = reader.push(bytes);
            log.consume(length);
            assert!(
                reader.line.len() <= LONGEST_LINE && reader.machines.len() <= MOST_MACHINES,
                "{index}"
            );
            assert!(
                reader.machines.values().all(|machine| machine.parser.held() < 4096),
                "{index}"
            );
            assert!(
                reader.objects.held() <= 1 << 20 && reader.entry.held() < 2 * LONGEST_LINE,
                "{index}"
            );
        }
    }
}

#[test]
fn a_log_twice_as_long_takes_twice_the_work() {
    // The kills of one process group, of which each line could be searched for among all before.
    let group = "Tasks in /a are going to be killed due to memory.oom.group set\n";
    let log = |kills: u32| -> String {
        let line = |pid| format!("Memory cgroup out of memory: Killed process {pid} (x) total-vm:1kB\n{group}");
        (0..kills).map(|kill| line(kill % 5000 + 1)).collect()
    };
    let compared = |kills: u32| {
        let log = log(kills);
        let mut reader = LogReader::default();
        let (mut rest, mut work) = (log.as_bytes(), 0);
        while !rest.is_empty() {
            rest = &rest[reader.push(rest)..];
            let kept = reader.found.kills.len().min(MOST_SEARCHED);
            work += reader
                .machines
                .values()
                .map(|machine| machine.parser.held())
                .sum::<usize>()
                + kept;
        }
        work
    };
    // Each line costs at most what is kept.
    let (once, twice) = (compared(3_000), compared(6_000));
    assert!(twice < once * 9 / 4, "{once} {twice}");
}
