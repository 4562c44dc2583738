//! How close a growth came to its limit, and what the kernel and the guard say of the moment in which a guarded process was
//! killed.

use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};

use crate::scene::Scene;

/// Files of a cgroup that say what memory it has, had, and was refused: of v2, then of v1.
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
/// Lines of `memory.stat` that say where memory went.
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
/// Lines of the agent's log that are shown: those about its last looks.
const LOOKS: usize = 40;

/// How close it was, by the guard's own looks.
#[derive(Debug, Default)]
pub(crate) struct Margin {
    /// How much later than it was due the latest look was.
    late: Duration,
    /// The longest time that acting was taken to last.
    act: Duration,
    /// The fastest growth that was seen.
    rate: u64,
    /// The least that was left to the limit at a look.
    room: u64,
}

impl Margin {
    /// That of a container, from the agent's log.
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
            // What rests is looked at later than that.
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

/// The kernel's log from a moment on.
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

    /// Everything that is known of the first pod's container, which was just killed.
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
        // The kernel's clock and that of the agent's log.
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

    /// Lines about the kill, with their microseconds since the kernel started.
    fn lines(&mut self) -> Vec<(i64, String)> {
        let (mut lines, mut record) = (Vec::new(), [0; 8192]);
        // One record for each read; an error is the end of what there is.
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
