//! `vscalectl oom parse`: the kills in a kernel log, without a node and without an agent.

use anyhow::anyhow;
use clap::Args;
use serde::Serialize;

use crate::cli::amount::short;
use crate::cli::output::{Output, optional};
use crate::cli::page::Page;
use crate::cli::{Failure, io, table};
use crate::model::objects::PodUid;
use crate::model::{CgroupPath, ContainerId, Resource};
use crate::oom::{Kill, Level, ReportedMemory, read_log};

/// Lists the kills in a kernel log, each process once, with the level of the node whose limit was hit.
///
/// Ignores records that processes wrote into /dev/kmsg. The output of dmesg does not always
/// say who wrote a line (dmesg -x and dmesg -r do), so it can hold forgeries.
/// Ends with 1 if a line mentions a kill and is not understood.
#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Records of /dev/kmsg, or what dmesg, journalctl, syslog, talosctl or a console printed, also compressed by gzip; - is
    /// standard input
    #[arg(value_name = "FILE")]
    file: String,
    #[command(flatten)]
    output: Output,
}

/// Keeps the kills only, however long the log is. A log without kills is no error.
///
/// Errors: the file cannot be read, or a line that speaks of a kill is not understood.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let read = io::open_log(&arguments.file).and_then(read_log);
    let cannot_read = |error| Failure::usage(anyhow!("cannot read {}: {error}", arguments.file));
    let (kills, not_understood) = read.map_err(cannot_read)?;
    let shown: Vec<ShownKill> = kills.iter().map(shown).collect();
    arguments.output.print_list("kills", &shown, || render(&shown))?;
    match not_understood.first {
        None => Ok(()),
        Some((number, text)) => {
            let lines = not_understood.lines;
            Err(anyhow!(
                "lines that mention a kill and are not understood: {lines}; the first is line {number}: {text}"
            )
            .into())
        }
    }
}

/// The printed form, which is a promise to users and therefore a type of its own.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownKill<'a> {
    /// `null` where the log has only the cgroups.
    pid: Option<u32>,
    comm: &'a str,
    oom_cgroup: Option<&'a str>,
    task_cgroup: Option<&'a str>,
    level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_uid: Option<PodUid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_id: Option<ContainerId>,
    /// Absent where the log has no amounts.
    #[serde(flatten)]
    memory: Option<ReportedMemory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_score_adj: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp_us: Option<u64>,
}

fn shown(kill: &Kill) -> ShownKill<'_> {
    let (pod, container_id) = kill.victim();
    ShownKill {
        pid: Some(kill.pid).filter(|pid| *pid != 0),
        comm: &kill.comm,
        oom_cgroup: kill.limit.cgroup().map(CgroupPath::as_str),
        task_cgroup: kill.task_cgroup.as_ref().map(CgroupPath::as_str),
        level: kill.limit.level(),
        pod_uid: pod.map(|pod| pod.uid),
        container_id,
        memory: Some(kill.memory).filter(|memory| *memory != ReportedMemory::default()),
        oom_score_adj: kill.oom_score_adj,
        uid: kill.uid,
        seq: kill.seq,
        timestamp_us: kill.timestamp_us,
    }
}

/// One row for each kill.
fn render(kills: &[ShownKill<'_>]) -> Page {
    let rows = kills.iter().map(|kill| {
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        let beginning = |id: &ContainerId| id.as_str().chars().take(12).collect::<String>();
        [
            optional(kill.timestamp_us.map(seconds)),
            optional(kill.pid),
            kill.comm.to_owned(),
            kill.level.to_string(),
            short(Resource::Memory, kill.memory.map(|memory| memory.rss().get())),
            optional(kill.pod_uid.as_ref()),
            optional(kill.container_id.as_ref().map(beginning)),
            optional(kill.task_cgroup),
        ]
    });
    let header = "TIME  PID  COMMAND  LEVEL  RSS  POD  CONTAINER  CGROUP";
    table::list(header, rows).page()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::oom::parse_log;

    const UNEXPLAINED: &str = "Memory cgroup out of memory: Killed process 7 (a\u{1b}[2J) total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:1kB";

    #[test]
    fn what_is_not_known_is_null_or_left_out() {
        let kills = parse_log(UNEXPLAINED.as_bytes());
        let json = serde_json::to_value(shown(&kills[0])).unwrap();
        let expected = serde_json::json!({
            "pid": 7, "comm": "a\u{1b}[2J", "oomCgroup": null, "taskCgroup": null, "level": "unknown",
            "anonRssBytes": 3072, "fileRssBytes": 2048, "shmemRssBytes": 1024, "totalVmBytes": 4096,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn logs_may_be_compressed_or_in_utf16() {
        let line = format!("[  123.456789] {UNEXPLAINED}\r\n");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(line.as_bytes()).unwrap();
        let utf16 = ['\u{feff}'].into_iter().chain(line.chars());
        let utf16: String = utf16.collect();
        let utf16: Vec<u8> = utf16.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for log in [gzip.finish().unwrap(), utf16, line.into_bytes()] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, &log).unwrap();
            let opened = io::open_log(file.path().to_str().unwrap()).unwrap();
            let (kills, not_understood) = read_log(opened).unwrap();
            let pids: Vec<u32> = kills.iter().map(|kill| kill.pid).collect();
            assert_eq!((pids, not_understood.lines), (vec![7], 0));
        }
    }

    #[test]
    fn a_file_that_is_no_text_is_refused() {
        for (start, command) in [
            (&b"LPKSHHRH\0\0"[..], "journalctl -k"),
            (b"\xfd7zXZ\0\0", "xzcat"),
            (b"\x28\xb5\x2f\xfd\0", "zstdcat"),
            (b"BZh9", "bzcat"),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, start).unwrap();
            let error = io::open_log(file.path().to_str().unwrap()).map(drop).unwrap_err();
            assert!(error.to_string().ends_with(command), "{error}");
        }
    }

    #[test]
    fn a_command_cannot_write_to_the_terminal() {
        let kills = parse_log(UNEXPLAINED.as_bytes());
        let text = render(&[shown(&kills[0])]).shown(true);
        assert!(text.contains(r"a\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains("6Ki"), "{text}");
    }

    #[test]
    fn each_column_has_its_part_of_a_kill() {
        let kill = ShownKill {
            pid: Some(7),
            comm: "java",
            oom_cgroup: Some("/kubepods"),
            task_cgroup: Some("/kubepods/pod1/c"),
            level: Level::Pod,
            pod_uid: Some("u-1".into()),
            container_id: ContainerId::parse(&"a".repeat(64)),
            memory: Some(ReportedMemory {
                total_vm_bytes: 1 << 30,
                anon_rss_bytes: 3 << 10,
                ..ReportedMemory::default()
            }),
            oom_score_adj: Some(1),
            uid: Some(2),
            seq: Some(3),
            timestamp_us: Some(1_234_567),
        };
        let text = render(&[kill]).shown(false);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            text.lines().map(words).collect::<Vec<_>>(),
            [
                "TIME PID COMMAND LEVEL RSS POD CONTAINER CGROUP",
                "1.234567 7 java pod 3Ki u-1 aaaaaaaaaaaa /kubepods/pod1/c",
            ]
        );
    }
}
