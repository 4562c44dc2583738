//! What a cgroup shows of its memory at one moment, and how the kernel can be made to reclaim it.

use std::time::Duration;

use super::{Bytes, CgroupVersion, PageSize};

/// The memory that the limit of a cgroup counts, and its parts. Includes descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryReading {
    pub usage: Bytes,
    /// The most that was ever in use. `None` if the kernel does not keep it (v2 before 5.19).
    pub peak: Option<Bytes>,
    /// Anonymous memory and tmpfs: without swap only its process can free it.
    pub anonymous: Bytes,
    /// Page cache and kernel caches that the kernel can drop.
    pub evictable: Bytes,
    /// Memory that the kernel had dropped and then read again, since the cgroup was made.
    pub refaults: Bytes,
}

impl MemoryReading {
    /// Makes a reading from the text of `memory.stat` and the two files beside it.
    ///
    /// `active_file` and `inactive_file` are more precise than `cache` or `file`: tmpfs and locked pages are on neither of these
    /// lists (mm/vmscan.c). An absent line counts as zero, which can only make less evictable.
    pub fn new(version: CgroupVersion, page: PageSize, usage: Bytes, peak: Option<Bytes>, stat: &str) -> Self {
        let mut reading = Self {
            usage,
            peak,
            ..Self::default()
        };
        let add = |to: &mut Bytes, bytes| *to = to.saturating_add(Bytes::new(bytes));
        for (name, value) in stat.lines().filter_map(|line| line.split_once(' ')) {
            let Ok(value) = value.trim().parse::<u64>() else {
                continue;
            };
            let name = match version {
                // Without the prefix, v1 leaves out descendants.
                CgroupVersion::V1 => match name.strip_prefix("total_") {
                    Some("rss") => "anon",
                    Some(name) => name,
                    None => continue,
                },
                CgroupVersion::V2 => name,
            };
            match name {
                "anon" | "shmem" => add(&mut reading.anonymous, value),
                "active_file" | "inactive_file" | "slab_reclaimable" => add(&mut reading.evictable, value),
                // One counter before Linux 5.9.
                "workingset_refault" | "workingset_refault_anon" | "workingset_refault_file" => {
                    add(&mut reading.refaults, value.saturating_mul(page.get()));
                }
                _ => {}
            }
        }
        reading
    }

    /// The memory that the kernel cannot reclaim. Kernel memory and locked pages are in use, and neither anonymous nor evictable.
    pub fn held(&self) -> Bytes {
        self.anonymous.max(self.usage.saturating_sub(self.evictable))
    }
}

/// A reading of a watched cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchReading {
    pub memory: MemoryReading,
    /// How many of its processes the kernel has ever killed for want of memory.
    pub kills: u64,
    /// How long all of its processes have ever stalled for want of memory. `None` without pressure accounting.
    pub stalled: Option<Duration>,
}

/// How the agent can make the kernel reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// By a request for a number of bytes: v2 from Linux 5.19 (`memory.reclaim`).
    OnRequest,
    /// By writing the limit: v1. The kernel refuses the write (EBUSY) if it cannot reclaim enough.
    ByTheWrite,
    /// Not without risk: v2 before 5.19. Writing the limit reclaims there, and kills if that is not enough.
    Never,
}
