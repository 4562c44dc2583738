//! Reads how often the kernel killed in a cgroup: `memory.events` (v2), `memory.oom_control` (v1).
//!
//! In comes a cgroup's file; out comes a [`Reading`]. Only the counter `oom_kill` counts kills: `oom` of v2 rises by
//! any number for one kill, and the eventfd of v1 also fires for cgroups below in which the kernel does not kill.
//!
//! v2 `memory.events` counts kills in the cgroup and everything below it, also below cgroups that are gone since.
//! `memory.events.local` and v1 count kills in the cgroup alone. A kill because the node has no memory left counts like
//! any other. A group kill counts its first victim twice (Linux 5.10 to at least 7.2).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use nix::libc::{ENODEV, ENOENT};
use serde::{Deserialize, Serialize};

/// `memory.events` of a cgroup: kills in it and below.
pub const EVENTS: &str = "memory.events";
/// v1 `memory.oom_control`: kills in the cgroup alone.
pub const OOM_CONTROL: &str = "memory.oom_control";
/// Bytes; more than any kernel prints into these files.
const LONGEST: usize = 4096;
/// Bytes; more than kernels print into `/proc/vmstat`. The kernel sums up the whole file for each `read`.
const VMSTAT: usize = 16 << 10;

/// The counter of one cgroup, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The inode of the file: the identity of its cgroup, because kernfs gives every file one of its own.
    pub inode: u64,
    pub count: Count,
}

/// `oom_kill` and `oom_group_kill`: each group's first victim counts as two kills. `groups` is 0 where
/// the kernel does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Count {
    pub kills: u64,
    pub groups: u64,
}

/// The open counter of one cgroup.
#[derive(Debug)]
pub struct Counter {
    path: PathBuf,
    file: File,
    inode: u64,
}

impl Counter {
    /// Opens [`EVENTS`], `memory.events.local` or [`OOM_CONTROL`] of a cgroup. Returns `None` if the cgroup is gone.
    ///
    /// Errors: the file cannot be read.
    pub fn open(path: PathBuf) -> Result<Option<Self>> {
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.ino(), file)));
        let opened = unless_gone(&path, opened)?;
        Ok(opened.map(|(inode, file)| Self { path, file, inode }))
    }

    /// Reads the counter. Returns `None` when the cgroup was removed before or during the read: its last kills show in
    /// its parents (v2) and in the log. Blocks on the kernel.
    ///
    /// Errors: the file cannot be read, or is no list of counters with `oom_kill`; each error names the file.
    pub fn read(&self) -> Result<Option<Reading>> {
        let (name, inode) = (self.path.display(), self.inode);
        let mut buffer = [0; LONGEST];
        let Some(read) = unless_gone(&self.path, self.file.read_at(&mut buffer, 0))? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&buffer[..read]);
        let (mut kills, mut groups) = (None, 0);
        for line in text.lines() {
            match line.split_once(' ').map(|(key, count)| (key, count.parse())) {
                Some(("oom_kill", Ok(count))) => kills = Some(count),
                Some(("oom_group_kill", Ok(count))) => groups = count,
                // Newer kernels have further keys.
                Some((_, Ok(_))) => {}
                Some((_, Err(_))) | None => bail!("{name}: unexpected line {line:?}, a key and a number are expected"),
            }
        }
        // v1 has the line since Linux 4.13. On v2 a file without the line counts as zero.
        if kills.is_none() && self.path.ends_with(OOM_CONTROL) {
            bail!("{name}: there is no oom_kill counter: Linux 4.13 or later is needed");
        }
        let kills = kills.unwrap_or(0);
        let count = Count { kills, groups };
        Ok(Some(Reading { inode, count }))
    }
}

fn unless_gone<T>(file: &Path, done: io::Result<T>) -> Result<Option<T>> {
    match done {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(ENOENT | ENODEV)) => Ok(None),
        Err(error) => bail!("{}: cannot be read: {error}", file.display()),
    }
}

/// The number of OOM kills on the machine since boot. The kernel raises this count before the count of the cgroup.
pub fn machine_kill_count() -> Option<u64> {
    let (mut file, mut buffer, mut length) = (File::open("/proc/vmstat").ok()?, [0; VMSTAT], 0);
    loop {
        let read = file.read(&mut buffer[length..]).ok()?;
        length += read;
        let counted = str::from_utf8(&buffer[..length]).ok()?.split_once("\noom_kill ");
        match counted.and_then(|(_, count)| count.split_once('\n')) {
            Some((count, _)) => return count.parse().ok(),
            None if read == 0 => return None,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
