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
        let (mut kills, mut groups) = (None, 0);
        for line in text.lines() {
            match line.split_once(' ').map(|(key, count)| (key, count.parse())) {
                Some(("oom_kill", Ok(count))) => kills = Some(count),
                Some(("oom_group_kill", Ok(count))) => groups = count,
                // A key that is not known here is ignored.
                Some((_, Ok(_))) => {}
                Some((_, Err(_))) | None => {
                    return Err(CounterError::Line {
                        file: file.to_owned(),
                        line: line.to_owned(),
                    });
                }
            }
        }
        // Since Linux 4.13; nothing was counted yet where v2 has no such line.
        if kills.is_none() && file.ends_with(OOM_CONTROL) {
            return Err(CounterError::NoCounter { file: file.to_owned() });
        }
        let kills = kills.unwrap_or(0);
        Ok(Self { inode, kills, groups })
    }
}

#[cfg(test)]
mod tests;
