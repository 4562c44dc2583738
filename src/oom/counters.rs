//! How often the kernel killed in a cgroup: `memory.events` (v2), `memory.oom_control` (v1).
//!
//! In comes a cgroup's file; out comes a [`Reading`]. Of all the counters only `oom_kill` counts kills: v2's `oom` rises by
//! any number for one kill, v1's eventfd also fires for innocent children.
//!
//! What the levels count differs. v2 `memory.events` counts kills in the cgroup and everything below it, also below
//! cgroups that are gone since; `memory.events.local` and v1 count those in the cgroup alone. A kill for want of memory on
//! the node counts like any other. A group kill counts its first victim twice (Linux 5.10 to at least 7.2).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// `memory.events` of a cgroup: kills in it and below.
pub const EVENTS: &str = "memory.events";
/// `memory.events.local` of a cgroup: kills in it alone.
pub const EVENTS_LOCAL: &str = "memory.events.local";
/// v1 `memory.oom_control`: kills in the cgroup alone.
pub const OOM_CONTROL: &str = "memory.oom_control";
/// More than any kernel prints into these files.
const LONGEST: u64 = 4096;

/// The counters of v2. A key the kernel does not know is 0, a key not known here is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryEvents {
    /// Reclaims although usage was below `memory.low`.
    pub low: u64,
    /// Times a task was throttled for `memory.high`.
    pub high: u64,
    /// Times usage was about to pass `memory.max`.
    pub max: u64,
    /// Times an allocation was about to fail: not a count of kills.
    pub oom: u64,
    pub oom_kill: u64,
    /// Kills of the whole cgroup, since Linux 5.17.
    pub oom_group_kill: u64,
}

/// v1 `memory.oom_control`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OomControl {
    /// Whether tasks wait instead of being killed.
    pub oom_kill_disable: bool,
    /// Whether tasks are waiting now.
    pub under_oom: bool,
    /// Processes killed; `None` before Linux 4.13.
    pub oom_kill: Option<u64>,
}

/// A counter file that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The cgroup was removed, before or during the read. Its last kills show in its parents (v2) and in the log.
    #[error("{}: the cgroup was removed", file.display())]
    Gone { file: PathBuf },
    #[error("{}: cannot be read: {source}", file.display())]
    Read { file: PathBuf, source: io::Error },
    /// A line is not a key and a number.
    #[error("{}: unexpected line {line:?}, a key and a number are expected", file.display())]
    Line { file: PathBuf, line: String },
    /// The kernel counts no kills in this file.
    #[error("{}: there is no oom_kill counter: Linux 4.13 or later is needed", file.display())]
    NoCounter { file: PathBuf },
}

/// A line that is not a key and a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unexpected line {0:?}, a key and a number are expected")]
pub struct UnexpectedLine(pub String);

impl MemoryEvents {
    /// Reads the file's content.
    ///
    /// Errors: [`UnexpectedLine`] quotes the first line that is not a key and a number.
    pub fn parse(text: &str) -> Result<Self, UnexpectedLine> {
        let mut events = Self::default();
        for pair in pairs(text) {
            match pair? {
                ("low", count) => events.low = count,
                ("high", count) => events.high = count,
                ("max", count) => events.max = count,
                ("oom", count) => events.oom = count,
                ("oom_kill", count) => events.oom_kill = count,
                ("oom_group_kill", count) => events.oom_group_kill = count,
                _ => {}
            }
        }
        Ok(events)
    }
}

impl OomControl {
    /// Reads the file's content.
    ///
    /// Errors: [`UnexpectedLine`] quotes the first line that is not a key and a number.
    pub fn parse(text: &str) -> Result<Self, UnexpectedLine> {
        let mut control = Self::default();
        for pair in pairs(text) {
            match pair? {
                ("oom_kill_disable", flag) => control.oom_kill_disable = flag != 0,
                ("under_oom", flag) => control.under_oom = flag != 0,
                ("oom_kill", count) => control.oom_kill = Some(count),
                _ => {}
            }
        }
        Ok(control)
    }
}

fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, u64), UnexpectedLine>> {
    text.lines().map(|line| {
        let pair = line
            .split_once(' ')
            .and_then(|(key, count)| Some((key, count.parse().ok()?)));
        pair.ok_or_else(|| UnexpectedLine(line.to_owned()))
    })
}

/// The counter of one cgroup, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The inode of the file: the identity of its cgroup, because kernfs gives every file one of its own.
    pub inode: u64,
    /// `oom_kill`.
    pub kills: u64,
    /// `oom_group_kill`: so many groups, whose first victims are counted twice. 0 where the kernel does not say.
    pub groups: u64,
}

impl Reading {
    /// Reads the counter in `file`: [`EVENTS`], [`EVENTS_LOCAL`] or [`OOM_CONTROL`] of a cgroup. Blocks on the kernel.
    ///
    /// Errors: [`CounterError`], each with the file.
    pub fn of(file: &Path) -> Result<Self, CounterError> {
        let gone_or = |source: io::Error| {
            let file = file.to_owned();
            match source.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOENT | Errno::ENODEV) => CounterError::Gone { file },
                _ => CounterError::Read { file, source },
            }
        };
        let opened = File::open(file).map_err(gone_or)?;
        let inode = opened.metadata().map_err(gone_or)?.ino();
        let mut text = String::new();
        opened.take(LONGEST).read_to_string(&mut text).map_err(gone_or)?;
        let unexpected = |UnexpectedLine(line)| CounterError::Line {
            file: file.to_owned(),
            line,
        };
        let (kills, groups) = if file.ends_with(OOM_CONTROL) {
            (OomControl::parse(&text).map_err(unexpected)?.oom_kill, 0)
        } else {
            let events = MemoryEvents::parse(&text).map_err(unexpected)?;
            (Some(events.oom_kill), events.oom_group_kill)
        };
        let kills = kills.ok_or_else(|| CounterError::NoCounter { file: file.to_owned() })?;
        Ok(Self { inode, kills, groups })
    }
}

#[cfg(test)]
mod tests;
