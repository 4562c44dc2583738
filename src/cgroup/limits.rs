//! Memory in use, and the rule that no limit goes below it.

use nix::fcntl::OFlag;

use super::file::Dir;
use super::{CgroupDir, CgroupError, Controller, Reason};
use crate::model::{Bytes, CgroupVersion, ControlFile, MemoryLimit, Setting};

impl CgroupDir {
    /// Bytes in use now, page cache and kernel memory included.
    ///
    /// Errors: [`CgroupError`]; [`Reason::Absent`] on the root of v2.
    pub fn memory_usage(&self) -> Result<Bytes, CgroupError> {
        self.bytes(match self.version() {
            CgroupVersion::V1 => "memory.usage_in_bytes",
            CgroupVersion::V2 => "memory.current",
        })
    }

    /// The most bytes ever in use; `None` where the kernel does not keep it (v2 before 5.19).
    pub fn memory_peak(&self) -> Result<Option<Bytes>, CgroupError> {
        let peak = self.bytes(match self.version() {
            CgroupVersion::V1 => "memory.max_usage_in_bytes",
            CgroupVersion::V2 => "memory.peak",
        });
        match peak {
            Ok(peak) => Ok(Some(peak)),
            Err(CgroupError {
                reason: Reason::Absent, ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Refuses a lower memory limit that no reclaiming could make room for at this moment. Lets a whole plan be
    /// checked before its first step.
    ///
    /// Errors: [`Reason::BelowUsage`], or what reading the files says.
    pub fn check_usage(&self, current: Setting, wanted: Setting) -> Result<(), CgroupError> {
        let dir = self.dir_of(wanted.file())?;
        let Some((usage_file, bytes)) = lowered(current, wanted) else {
            return Ok(());
        };
        let reading = self.memory_reading()?;
        let usage = read_bytes(dir, usage_file)?;
        let held = usage.saturating_sub(reading.evictable.get());
        if bytes < held.max(reading.anonymous.get()) {
            let reason = Reason::BelowUsage { usage, wanted: bytes };
            return Err(dir.error(wanted.file().name(), reason));
        }
        Ok(())
    }

    fn bytes(&self, name: &'static str) -> Result<Bytes, CgroupError> {
        read_bytes(self.dir(Controller::Memory), name).map(Bytes::new)
    }
}

/// Refuses a memory limit that is lower than `current` and than what is in use, cached or not. Raising is always allowed,
/// even to a limit that is still too low.
pub(super) fn refuse_below_usage(dir: &Dir, current: Setting, wanted: Setting) -> Result<(), CgroupError> {
    let Some((usage_file, bytes)) = lowered(current, wanted) else {
        return Ok(());
    };
    let usage = read_bytes(dir, usage_file)?;
    if bytes < usage {
        let reason = Reason::BelowUsage { usage, wanted: bytes };
        return Err(dir.error(wanted.file().name(), reason));
    }
    Ok(())
}

/// The limit in bytes, and the file that counts against it, if writing `wanted` lowers a memory limit.
fn lowered(current: Setting, wanted: Setting) -> Option<(&'static str, u64)> {
    let limit = wanted.memory()?;
    let MemoryLimit::Bytes(bytes) = limit else {
        return None;
    };
    (limit < current.memory()?).then_some((usage_file(wanted.file()), bytes))
}

/// The file that counts what a memory limit bounds.
pub(super) const fn usage_file(limit: ControlFile) -> &'static str {
    match limit {
        ControlFile::MemswLimit => "memory.memsw.usage_in_bytes",
        ControlFile::MemoryLimit => "memory.usage_in_bytes",
        ControlFile::MemoryMax
        | ControlFile::CpuMax
        | ControlFile::CpuMaxBurst
        | ControlFile::CpuWeight
        | ControlFile::CpuShares
        | ControlFile::CfsQuota
        | ControlFile::CfsPeriod
        | ControlFile::CfsBurst => "memory.current",
    }
}

pub(super) fn read_bytes(dir: &Dir, name: &'static str) -> Result<u64, CgroupError> {
    let line = dir.open_file(name, OFlag::O_RDONLY)?.read()?;
    let text = line.text();
    text.parse()
        .map_err(|_| dir.error(name, Reason::NotANumber(text.to_owned())))
}
