//! Reads what a cgroup's memory consists of, and asks the kernel to reclaim some of it.

use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::file::if_present;
use super::{CgroupDir, CgroupError, page_size};
use crate::model::{Bytes, CgroupVersion, Resource};
use crate::plan::shrink::{MemoryReading, Reclaim, WatchReading};

/// v2's file through which the kernel reclaims memory on request (from Linux 5.19).
const RECLAIM: &str = "memory.reclaim";

impl CgroupDir {
    /// The memory in use, and what it consists of.
    ///
    /// Errors: [`CgroupError`]; [`Absent`](super::Reason::Absent) on the root of v2.
    pub fn memory_reading(&self) -> Result<MemoryReading, CgroupError> {
        // In this order: memory that is charged between the two reads counts as held, not as evictable.
        let stat = self.dir(Resource::Memory).text("memory.stat")?.unwrap_or_default();
        let usage = self.memory_usage()?;
        Ok(MemoryReading::new(
            self.version(),
            page_size(),
            usage,
            self.memory_peak()?,
            &stat,
        ))
    }

    /// The memory in use, with the counters of kills and stalls.
    pub fn watch_reading(&self) -> Result<WatchReading, CgroupError> {
        let kills = match self.version() {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        };
        let kills = self.dir(Resource::Memory).text(kills)?.unwrap_or_default();
        let stalls = match self.version() {
            // The kernel accounts for pressure in v2's hierarchy only.
            CgroupVersion::V1 => None,
            CgroupVersion::V2 => self.dir(Resource::Memory).text("memory.pressure")?,
        };
        Ok(WatchReading {
            memory: self.memory_reading()?,
            kills: field(&kills, "oom_kill").unwrap_or_default(),
            stalled: stalls.as_deref().and_then(full_stall),
        })
    }

    /// How the kernel can be made to reclaim this cgroup's memory.
    pub fn reclaim_way(&self) -> Result<Reclaim, CgroupError> {
        if self.version() == CgroupVersion::V1 {
            return Ok(Reclaim::ByTheWrite);
        }
        let file = if_present(self.dir(Resource::Memory).open_file(RECLAIM, OFlag::O_WRONLY))?;
        Ok(file.map_or(Reclaim::Never, |_| Reclaim::OnRequest))
    }

    /// Has the kernel reclaim up to this many bytes: less is no error. Changes no limit. Blocks while the kernel reclaims.
    ///
    /// Errors: [`CgroupError`]; [`Absent`](super::Reason::Absent) on v1 and before Linux 5.19.
    pub fn reclaim(&self, bytes: Bytes) -> Result<(), CgroupError> {
        let file = self.dir(Resource::Memory).open_file(RECLAIM, OFlag::O_WRONLY)?;
        match file.write(&bytes.get().to_string()) {
            // EAGAIN: the kernel reclaimed less. EINTR: a signal came.
            Ok(()) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(errno) => Err(file.failed(errno, "write the file")),
        }
    }
}

/// The value of a field in a file of `name value` lines.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let fields = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = fields.into_iter().find(|(field, _)| *field == name)?;
    value.trim().parse().ok()
}

/// For how long all tasks were stalled at once, in `full avg10=… avg60=… avg300=… total=MICROSECONDS`.
fn full_stall(text: &str) -> Option<Duration> {
    let full = text.lines().find(|line| line.starts_with("full "))?;
    let (_, total) = full.rsplit_once("total=")?;
    total.trim().parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_stalls_are_read_as_the_kernel_prints_them() {
        let events = "low 0\nhigh 0\nmax 17\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(field(events, "oom_kill"), Some(1));
        assert_eq!(
            field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"),
            Some(3)
        );
        assert_eq!(field(events, "sock_throttled"), None);
        let pressure =
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1200\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=850\n";
        assert_eq!(full_stall(pressure), Some(Duration::from_micros(850)));
        assert_eq!(full_stall("some avg10=0.00 total=1\n"), None);
    }
}
