//! Promise: the parser finds every kill in a kernel's log once, with the cgroup whose limit was hit if the kernel
//! logged it, and takes no other text for a kill.
//!
//! The recordings are real (see `tests/data/kmsg/README.md`). The expectations were written by hand.

mod expected;
mod properties;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use vscaled::model::CgroupPath;
use vscaled::oom::{Kill, parse_log};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kmsg")
}

fn recording(name: &str) -> Vec<u8> {
    std::fs::read(directory().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn path(cgroup: Option<&CgroupPath>) -> Option<&str> {
    cgroup.map(CgroupPath::as_str)
}

/// The pid and the cgroups of a kill.
fn explanation(kill: &Kill) -> (u32, &str, Option<&str>, Option<&str>) {
    let (limit, task) = (path(kill.limit.cgroup()), path(kill.task_cgroup.as_ref()));
    (kill.pid, &kill.comm, limit, task)
}

#[test]
fn recordings_hold_their_kills() {
    for expected in expected::all() {
        let kills = parse_log(&recording(expected.file));
        let found: Vec<_> = kills.iter().map(explanation).collect();
        let wanted: Vec<_> = expected.kills.iter().map(expected::Kill::explanation).collect();
        assert_eq!(found, wanted, "{}", expected.file);
        for (kill, wanted) in kills.iter().zip(&expected.kills) {
            let (pod, container) = kill.victim();
            assert_eq!(kill.limit.level(), wanted.level, "{}: {}", expected.file, kill.pid);
            assert_eq!(
                pod.map(|pod| pod.uid.to_string()).as_deref(),
                wanted.pod,
                "{}",
                expected.file
            );
            assert_eq!(
                container.map(|container| container.to_string()).as_deref(),
                wanted.container,
                "{}",
                expected.file
            );
        }
    }
}

#[test]
fn no_recording_is_forgotten() {
    let entries = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut found: Vec<_> = entries
        .filter_map(|name| name.into_string().ok().filter(|name| name.ends_with(".txt")))
        .collect();
    let mut expected: Vec<_> = expected::all().into_iter().map(|expected| expected.file).collect();
    found.sort();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn a_kill_has_the_amounts_the_kernel_printed() {
    let kills = parse_log(&recording("s2-pod-limit-hit-v1.txt"));
    let [kill] = kills.as_slice() else { panic!("{kills:?}") };
    let kib = [
        kill.memory.total_vm_bytes,
        kill.memory.anon_rss_bytes,
        kill.memory.file_rss_bytes,
        kill.memory.shmem_rss_bytes,
    ]
    .map(|amount| amount / 1024);
    assert_eq!(kib, [26_596, 25_600, 544, 0]);
    assert_eq!((kill.uid, kill.oom_score_adj), (Some(0), Some(0)));
    assert_eq!((kill.seq, kill.timestamp_us), (Some(17_717), Some(923_743_969)));
    assert_eq!(kill.invoker, Some(6390));
}

/// The same log in the format of `dmesg`.
fn as_dmesg(records: &[u8], header: impl Fn(u64) -> String) -> String {
    let mut text = String::new();
    for record in records
        .split(|byte| *byte == b'\n')
        .filter_map(vscaled::oom::Line::of_record)
    {
        text += &format!(
            "{}{}\n",
            header(record.timestamp_us.unwrap()),
            record.text.replace('\n', "\\x0a")
        );
    }
    text
}

#[test]
fn a_pasted_log_tells_the_same_as_its_records() {
    let formats: [fn(u64) -> String; 4] = [
        |us| format!("[{:5}.{:06}] ", us / 1_000_000, us % 1_000_000),
        |us| format!("kern  :warn  : [{:5}.{:06}] ", us / 1_000_000, us % 1_000_000),
        |us| format!("Nov 21 02:53:{:02} node-1 kernel: ", us / 1_000_000 % 60),
        |_| String::new(),
    ];
    // Hostile commands contain texts that dmesg escapes; forgeries contain texts that plain dmesg prints like the
    // kernel's.
    for expected in expected::all()
        .iter()
        .filter(|expected| !expected.file.starts_with("s3b") && !expected.file.starts_with("s7"))
    {
        let wanted: Vec<_> = expected.kills.iter().map(expected::Kill::explanation).collect();
        for format in formats {
            let kills = parse_log(as_dmesg(&recording(expected.file), format).as_bytes());
            assert_eq!(
                kills.iter().map(explanation).collect::<Vec<_>>(),
                wanted,
                "{} {:?}",
                expected.file,
                format(0)
            );
        }
    }
}

fn parse(arguments: &[&str], input: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
    command
        .args(["oom", "parse"])
        .args(arguments)
        .current_dir(directory())
        .stdin(input);
    command.output().unwrap()
}

#[test]
fn the_command_prints_the_promised_json() {
    let file = "s2-pod-limit-hit-v1.txt";
    let output = parse(&[file, "-o", "json"], Stdio::null());
    assert!(output.status.success());
    let pod = "/oomlab/kubepods/burstable/pod6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";
    let container = "a1".repeat(32);
    let expected = serde_json::json!({"kills": [{
        "pid": 6346, "comm": "main-a", "oomCgroup": pod, "taskCgroup": format!("{pod}/{container}"), "level": "pod",
        "podUid": "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77", "containerId": container,
        "anonRssBytes": 26_214_400, "fileRssBytes": 557_056, "shmemRssBytes": 0, "totalVmBytes": 27_234_304,
        "oomScoreAdj": 0, "uid": 0, "seq": 17_717, "timestampUs": 923_743_969,
    }]});
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(),
        expected
    );
    let from_stdin = parse(
        &["-", "--output=json"],
        std::fs::File::open(directory().join(file)).unwrap().into(),
    );
    assert_eq!(from_stdin.stdout, output.stdout);
}

#[test]
fn only_an_unreadable_log_is_an_error() {
    let output = parse(&["-", "-o", "json"], Stdio::null());
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"{\n  \"kills\": []\n}\n".as_slice())
    );
    let output = parse(&["no-such-file"], Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("cannot read no-such-file"), "{message}");
}
