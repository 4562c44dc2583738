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
use std::path::Path;

use anyhow::{Result, bail};
use nix::libc::{ENODEV, ENOENT};

/// `memory.events` of a cgroup: kills in it and below.
pub const EVENTS: &str = "memory.events";
/// `memory.events.local` of a cgroup: kills in it alone.
pub const EVENTS_LOCAL: &str = "memory.events.local";
/// v1 `memory.oom_control`: kills in the cgroup alone.
pub const OOM_CONTROL: &str = "memory.oom_control";
/// More than any kernel prints into these files.
const LONGEST: usize = 4096;
/// More than kernels print into `/proc/vmstat`, which is summed up anew for each part that is read of it.
const VMSTAT: usize = 16 << 10;

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
    /// Reads the counter in `file`: [`EVENTS`], [`EVENTS_LOCAL`] or [`OOM_CONTROL`] of a cgroup; `None` when the cgroup was
    /// removed, before or during the read: its last kills show in its parents (v2) and in the log. Blocks on the kernel.
    ///
    /// Errors: the file cannot be read, or is no list of counters with `oom_kill`; each with the file.
    pub fn of(file: &Path) -> Result<Option<Self>> {
        let read = || {
            let opened = File::open(file)?;
            let (inode, mut text) = (opened.metadata()?.ino(), String::with_capacity(LONGEST));
            opened.take(LONGEST as u64).read_to_string(&mut text)?;
            Ok((inode, text))
        };
        let name = file.display();
        let is_gone = |error: &io::Error| matches!(error.raw_os_error(), Some(ENOENT | ENODEV));
        let (inode, text) = match read() {
            Ok(read) => read,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => bail!("{name}: cannot be read: {error}"),
        };
        let (mut kills, mut groups) = (None, 0);
        for line in text.lines() {
            match line.split_once(' ').map(|(key, count)| (key, count.parse())) {
                Some(("oom_kill", Ok(count))) => kills = Some(count),
                Some(("oom_group_kill", Ok(count))) => groups = count,
                // A key that is not known here is ignored.
                Some((_, Ok(_))) => {}
                Some((_, Err(_))) | None => bail!("{name}: unexpected line {line:?}, a key and a number are expected"),
            }
        }
        // Since Linux 4.13; nothing was counted yet where v2 has no such line.
        if kills.is_none() && file.ends_with(OOM_CONTROL) {
            bail!("{name}: there is no oom_kill counter: Linux 4.13 or later is needed");
        }
        let kills = kills.unwrap_or(0);
        Ok(Some(Self { inode, kills, groups }))
    }
}

/// How often any process was killed on the machine since it began. Rises before the cgroup's own counter does.
pub fn machine_kill_count() -> Option<u64> {
    let mut text = String::with_capacity(VMSTAT);
    File::open("/proc/vmstat").ok()?.read_to_string(&mut text).ok()?;
    let (_, count) = text.split_once("\noom_kill ")?;
    count.split('\n').next()?.parse().ok()
}

#[cfg(test)]
mod tests;
