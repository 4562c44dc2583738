//! Memory in use, and the rule that no limit is set below it.

use nix::fcntl::OFlag;
use nix::unistd::{SysconfVar, sysconf};

use super::file::{Dir, LONGEST, if_present};
use super::{CgroupDir, CgroupError, Reason};
use crate::model::{Bytes, CgroupVersion, ControlFile, MemoryLimit, PageSize, Resource, Setting};
use crate::plan::shrink::MemoryReading;

impl CgroupDir {
    /// Bytes in use now, page cache and kernel memory included.
    ///
    /// Errors: [`CgroupError`]; [`Reason::Absent`] on the root of v2.
    pub fn memory_usage(&self) -> Result<Bytes, CgroupError> {
        self.bytes(usage_file(limit_file(self.version())))
    }

    /// The most bytes that were ever in use; `None` where the kernel does not keep it (v2 before 5.19).
    pub fn memory_peak(&self) -> Result<Option<Bytes>, CgroupError> {
        if_present(self.bytes(match self.version() {
            CgroupVersion::V1 => "memory.max_usage_in_bytes",
            CgroupVersion::V2 => "memory.peak",
        }))
    }

    /// Refuses a lower memory limit that the kernel could not make room for now by reclaiming. A pass checks its whole plan
    /// with this before the first step.
    ///
    /// Errors: [`Reason::BelowUsage`], or a file cannot be read.
    pub fn check_usage(&self, current: Setting, wanted: Setting) -> Result<(), CgroupError> {
        refuse_below(self.dir_of(wanted.file())?, current, wanted, || {
            self.memory_reading().map(Some)
        })
    }

    fn bytes(&self, name: &'static str) -> Result<Bytes, CgroupError> {
        read_bytes(self.dir(Resource::Memory), name).map(Bytes::new)
    }
}

/// Refuses a memory limit that is lower than `current` and lower than the memory in use, caches included. Raising is always
/// allowed, even to a limit that is still too low.
pub(super) fn refuse_below_usage(dir: &Dir, current: Setting, wanted: Setting) -> Result<(), CgroupError> {
    refuse_below(dir, current, wanted, || Ok(None))
}

/// Refuses a memory limit that is lower than `current` and lower than the memory in use. With a reading, memory that the kernel
/// can evict does not count as in use.
fn refuse_below(
    dir: &Dir,
    current: Setting,
    wanted: Setting,
    reading: impl FnOnce() -> Result<Option<MemoryReading>, CgroupError>,
) -> Result<(), CgroupError> {
    let (before, after) = (current.memory(), wanted.memory());
    let Some(MemoryLimit::Bytes(bytes)) = after.filter(|after| before.is_some_and(|before| *after < before)) else {
        return Ok(());
    };
    // In this order: memory that is charged between the two reads counts as held, not as evictable.
    let reading = reading()?;
    let usage = read_bytes(dir, usage_file(wanted.file()))?;
    let held = reading.map_or(usage, |reading| {
        usage
            .saturating_sub(reading.evictable.get())
            .max(reading.anonymous.get())
    });
    if bytes < held {
        let reason = Reason::BelowUsage { usage, wanted: bytes };
        return Err(dir.error(wanted.file().name(), reason));
    }
    Ok(())
}

/// The file of a cgroup's memory limit.
pub(super) const fn limit_file(version: CgroupVersion) -> ControlFile {
    match version {
        CgroupVersion::V1 => ControlFile::MemoryLimit,
        CgroupVersion::V2 => ControlFile::MemoryMax,
    }
}

/// The file that counts the memory which a limit bounds.
pub(super) fn usage_file(limit: ControlFile) -> &'static str {
    match limit {
        ControlFile::MemswLimit => "memory.memsw.usage_in_bytes",
        ControlFile::MemoryLimit => "memory.usage_in_bytes",
        _ => "memory.current",
    }
}

pub(super) fn read_bytes(dir: &Dir, name: &'static str) -> Result<u64, CgroupError> {
    let mut buffer = [0; LONGEST];
    let text = dir.open_file(name, OFlag::O_RDONLY)?.line(&mut buffer)?;
    text.parse()
        .map_err(|_| dir.error(name, Reason::NotANumber(text.to_owned())))
}

/// The unit in which this kernel keeps memory limits: `sysconf(_SC_PAGESIZE)`.
#[must_use]
pub fn page_size() -> PageSize {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.and_then(PageSize::new).unwrap_or(PageSize::KIB_4)
}
