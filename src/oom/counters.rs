//! How often the kernel killed in a cgroup: `memory.events` (v2), `memory.oom_control` (v1).
//!
//! In come a cgroup's directory and what was known of it; out comes how many kills are new. Of all the counters only
//! `oom_kill` counts kills: v2's `oom` rises by any number for one kill, v1's eventfd also fires for innocent children.
//!
//! What the levels count differs. v2 `memory.events` counts kills in the cgroup and everything below it, also below
//! cgroups that are gone since; `memory.events.local` and v1 count those in the cgroup alone. A kill for want of memory on
//! the node counts like any other. A group kill counts its first victim twice (Linux 5.10 to at least 7.2).

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU64;
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
    /// Processes killed.
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
    Gone {
        /// The file.
        file: PathBuf,
    },
    /// The kernel refused.
    #[error("{}: cannot be read: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not a key and a number.
    #[error("{}: unexpected line {line:?}, a key and a number are expected", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line.
        line: String,
    },
    /// The kernel counts no kills in this file.
    #[error("{}: there is no oom_kill counter: Linux 4.13 or later is needed", file.display())]
    NoCounter {
        /// The file.
        file: PathBuf,
    },
}

/// A line that is not a key and a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unexpected line {0:?}, a key and a number are expected")]
pub struct UnexpectedLine(pub String);

impl MemoryEvents {
    /// Reads the file's content.
    ///
    /// # Errors
    /// [`UnexpectedLine`] quotes the first line that is not a key and a number.
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
    /// # Errors
    /// [`UnexpectedLine`] quotes the first line that is not a key and a number.
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
    /// # Errors
    /// [`CounterError`], each with the file.
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

/// What had been counted when a cgroup was first looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstSight {
    /// It was made while we watched, so all its kills are news.
    Made,
    /// It was there before we were; its kills may be from any time before.
    Found,
}

/// What a reading says beyond the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// That many kills since.
    Kills(NonZeroU64),
    /// That many kills before we first looked, reported or not by whoever watched then.
    PreExisting(NonZeroU64),
}

/// Up to where a cgroup's kills are known. Kept over restarts, together with the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Baseline(Reading);

impl Baseline {
    /// Takes the first reading of a cgroup.
    #[must_use]
    pub fn first(reading: Reading, sight: FirstSight) -> (Self, Change) {
        let change = match (sight, NonZeroU64::new(reading.kills)) {
            (_, None) => Change::None,
            (FirstSight::Made, Some(kills)) => Change::Kills(kills),
            (FirstSight::Found, Some(kills)) => Change::PreExisting(kills),
        };
        (Self(reading), change)
    }

    /// Takes a further reading at the same path. A counter only rises: another inode, or a smaller count, is another
    /// cgroup made since, and all its kills are news.
    #[must_use]
    pub fn next(self, reading: Reading) -> (Self, Change) {
        if reading.inode != self.0.inode || reading.kills < self.0.kills {
            return Self::first(reading, FirstSight::Made);
        }
        let change = NonZeroU64::new(reading.kills - self.0.kills).map_or(Change::None, Change::Kills);
        (Self(reading), change)
    }

    /// The reading up to which all is known.
    #[must_use]
    pub const fn reading(self) -> Reading {
        self.0
    }

    /// The baseline that was saved as this reading.
    #[must_use]
    pub const fn restored(reading: Reading) -> Self {
        Self(reading)
    }
}

#[cfg(test)]
mod tests;
