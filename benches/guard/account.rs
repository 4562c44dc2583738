//! The distance of a growth from its limit, and the facts from the kernel and the guard about the moment in which a
//! guarded process was killed.

use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};

use crate::scene::Scene;

/// Files with a cgroup's current, earlier and refused memory: of v2, then of v1.
const FILES: [&str; 12] = [
    "memory.events",
    "memory.events.local",
    "memory.current",
    "memory.peak",
    "memory.high",
    "memory.max",
    "memory.pressure",
    "memory.stat",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.failcnt",
];
/// Lines of `memory.stat` about the distribution of memory.
const STAT: [&str; 12] = [
    "anon",
    "file",
    "kernel",
    "sock",
    "slab",
    "pagetables",
    "rss",
    "cache",
    "mapped_file",
    "pgfault",
    "pgscan",
    "pgsteal",
];
/// The number of log lines to show about the guard's last reads.
const LOOKS: usize = 40;

/// The distance from the limit, according to the guard's reads.
#[derive(Debug, Default)]
pub(crate) struct Margin {
    /// The largest delay of a read.
    late: Duration,
    /// The longest expected time to act.
    act: Duration,
    /// The fastest growth.
    rate: u64,
    /// The least memory left up to the limit at a read.
    room: u64,
}

impl Margin {
    /// Reads the margin of a container from the agent's log.
    pub(crate) fn of(log: &str) -> Self {
        let number = |line: &str, name: &str| -> u64 {
            let value = line
                .split(' ')
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        let mut margin = Self {
            room: u64::MAX,
            ..Self::default()
        };
        let mut due = u64::MAX;
        for line in log.lines().filter(|line| line.contains(" looked ")) {
            let [at, wait, act, limit, used, rate] =
                ["at", "wait", "act", "limit", "used", "rate"].map(|name| number(line, name));
            margin.late = margin.late.max(Duration::from_micros(at.saturating_sub(due)));
            margin.act = margin.act.max(Duration::from_micros(act));
            margin.rate = margin.rate.max(rate);
            margin.room = margin.room.min(limit.saturating_sub(used));
            // The guard reads an idle container later than that.
            due = if wait < 10_000 { at + wait } else { u64::MAX };
        }
        margin
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        write!(
            f,
            "a look was at most {:.1?} late, acting took {:.1?}, the rate was at most {} MiB/s, the room at least {} MiB",
            self.late,
            self.act,
            mib(self.rate),
            mib(self.room)
        )
    }
}

/// The kernel's log since a moment.
pub(crate) struct KernelLog(File);

impl KernelLog {
    pub(crate) fn from_now() -> anyhow::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// All facts about the first pod's container, which was just killed.
    pub(crate) fn account(&mut self, scene: &Scene) -> anyhow::Result<String> {
        let mut text = String::new();
        let pod = &scene.pods[0];
        for (level, cgroup) in [("pod", &pod.cgroup), ("container", &pod.containers["app"].cgroup)] {
            let directories = scene.node.cgroups().directories(cgroup);
            for (directory, file) in directories.iter().flat_map(|one| FILES.map(|file| (one, file))) {
                let Ok(content) = fs::read_to_string(directory.join(file)) else {
                    continue;
                };
                let wanted =
                    |line: &&str| file != "memory.stat" || STAT.iter().any(|name| line.split(' ').next() == Some(name));
                let lines: Vec<_> = content.lines().filter(wanted).collect();
                writeln!(text, "    {level} {file}: {}", lines.join(", "))?;
            }
        }
        // The kernel's clock and the clock of the agent's log.
        let [real, boot] = [ClockId::CLOCK_REALTIME, ClockId::CLOCK_MONOTONIC].map(clock_gettime);
        let offset = real?.num_microseconds() - boot?.num_microseconds();
        for (micros, line) in self.lines() {
            let at = jiff::Timestamp::from_microsecond(micros + offset)?;
            writeln!(text, "    kernel {at} {line}")?;
        }
        let log = scene.agent.log();
        let lines: Vec<_> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LOOKS)..] {
            writeln!(text, "    agent {line}")?;
        }
        Ok(text)
    }

    /// Lines about the kill, with their time in microseconds since boot.
    fn lines(&mut self) -> Vec<(i64, String)> {
        let (mut lines, mut record) = (Vec::new(), [0; 8192]);
        // One record for each read; an error marks the end of the log.
        while let Ok(length) = self.0.read(&mut record) {
            let text = String::from_utf8_lossy(&record[..length]).into_owned();
            let Some((head, line)) = text.split_once(';') else {
                continue;
            };
            let micros = head.split(',').nth(2).and_then(|micros| micros.parse().ok());
            let line = line.lines().next().unwrap_or_default().to_owned();
            lines.extend(micros.map(|micros| (micros, line)));
        }
        lines
    }
}
