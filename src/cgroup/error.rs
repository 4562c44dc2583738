//! The errors of cgroup files, in words an operator can act on.

use std::path::PathBuf;

use nix::errno::Errno;

use crate::model::{ControlFile, Setting};

/// The kernel or the agent refused to read or write a cgroup or one of its files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub struct CgroupError {
    /// The file, or the cgroup's directory.
    pub file: PathBuf,
    pub reason: Reason,
}

/// Why the read or the write failed. Every variant but [`Self::Mismatch`] leaves the file unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("the cgroup was removed: its pod or container has ended, nothing is left to resize")]
    Vanished,
    /// The cgroup was removed and another one has its path.
    #[error("the cgroup was removed and another one created at its path: open it again")]
    Recreated,
    /// The cgroup has no such file.
    #[error("the cgroup has no such file: it is the root, or its parent does not enable the controller for it")]
    Absent,
    /// The agent refuses the write: the limit is below the memory in use. v1's kernel would refuse it, v2's would kill.
    #[error(
        "not shrinkable now: {usage} bytes are in use, more than the wanted limit of {wanted} bytes; the limit was left \
         alone: choose a higher one, or wait until less is in use"
    )]
    BelowUsage {
        /// Bytes in use immediately before the write.
        usage: u64,
        /// Bytes wanted as the limit.
        wanted: u64,
    },
    /// EBUSY: v1 could not reclaim enough memory for the limit.
    #[error(
        "not shrinkable now: the kernel could not bring memory use down to {wanted} bytes (EBUSY, {usage} bytes in use) and \
         kept the limit: choose a higher one, or wait until less is in use"
    )]
    Busy {
        /// The value that was written.
        wanted: Setting,
        /// Bytes in use after the refusal; the kernel may have dropped page cache for the write.
        usage: u64,
    },
    /// EINVAL: the value violates a rule of the kernel.
    #[error("the kernel refused {wanted} (EINVAL): {}", rule(wanted.file()))]
    Invalid {
        /// The value that was written.
        wanted: Setting,
    },
    #[error(
        "the cgroup mount is read-only (EROFS): mount the host's /sys/fs/cgroup into this container writable \
         (hostPath volume, readOnly: false)"
    )]
    ReadOnly,
    #[error("not permitted ({0}): run as root, or with CAP_DAC_OVERRIDE, outside of a user namespace")]
    Denied(Errno),
    /// The write succeeded, but the file holds another value.
    #[error(
        "{wanted} was written but {read_back} is read back: another program writes this file, or the kernel bounds it"
    )]
    Mismatch {
        /// The value that was written.
        wanted: Setting,
        /// The value that the file holds.
        read_back: Setting,
    },
    /// The file's content is not a value of it.
    #[error("unexpected content{0}")]
    Unreadable(String),
    #[error("cannot {call}: {errno}")]
    Io { call: &'static str, errno: Errno },
}

impl CgroupError {
    /// Whether the opened cgroup no longer exists.
    pub const fn is_gone(&self) -> bool {
        matches!(self.reason, Reason::Vanished | Reason::Recreated)
    }

    /// `None` if the cgroup no longer exists.
    ///
    /// Errors: every other error of the result.
    pub fn unless_gone<T>(result: Result<T, Self>) -> Result<Option<T>, Self> {
        match result {
            Err(error) if error.is_gone() => Ok(None),
            other => other.map(Some),
        }
    }
}

/// What the kernel allows in a file (kernel/sched/core.c `tg_set_cfs_bandwidth`, mm/memcontrol.c).
const fn rule(file: ControlFile) -> &'static str {
    match file {
        ControlFile::CpuMax => {
            "the quota is `max` or at least 1000 and at least cpu.max.burst, the period 1000 to 1000000 microseconds"
        }
        ControlFile::CpuMaxBurst | ControlFile::CfsBurst => {
            "a burst is at most the quota, in microseconds: lower it before the quota, raise it after"
        }
        ControlFile::CpuWeight => "a weight is 1 to 10000",
        ControlFile::CpuShares => "shares are 2 to 262144",
        ControlFile::CfsQuota => {
            "a quota is -1 or at least 1000 microseconds, at least the burst, and its share of the period is at most \
             the parent's and at least every child's: grow the parent first, shrink the children first"
        }
        ControlFile::CfsPeriod => {
            "a period is 1000 to 1000000 microseconds, and the quota's share of it is at most the parent's and at \
             least every child's: with the period alone changed, that share changes too"
        }
        ControlFile::MemoryHigh | ControlFile::MemoryMin | ControlFile::MemoryLow => {
            "a value is `max` or a number of bytes"
        }
        ControlFile::MemoryMax => "a limit is `max` or a number of bytes",
        ControlFile::MemoryLimit => {
            "a limit is -1 or a number of bytes, at most memory.memsw.limit_in_bytes: raise that one first"
        }
        ControlFile::MemswLimit => {
            "a limit is -1 or a number of bytes, at least memory.limit_in_bytes: lower that one first"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CpuQuota, MemoryLimit};

    #[test]
    fn messages_name_file_value_and_next_step() {
        let error = |file: &str, reason| CgroupError {
            file: PathBuf::from(file),
            reason,
        };
        let quota = Setting::CfsQuota(CpuQuota::Micros(500));
        let text = error("/c/cpu.cfs_quota_us", Reason::Invalid { wanted: quota }).to_string();
        assert!(
            text.starts_with("/c/cpu.cfs_quota_us: the kernel refused 500 (EINVAL): a quota is -1 or"),
            "{text}"
        );

        let wanted = Setting::MemoryLimit(MemoryLimit::Bytes(4096));
        let busy = error("/c/memory.limit_in_bytes", Reason::Busy { wanted, usage: 8192 });
        assert!(
            busy.to_string()
                .contains("down to 4096 bytes (EBUSY, 8192 bytes in use)"),
            "{busy}"
        );

        let gone = error("/c", Reason::Recreated);
        assert!(gone.is_gone());
    }

    #[test]
    fn an_error_is_small_enough_to_return() {
        assert!(size_of::<CgroupError>() <= 128, "{}", size_of::<CgroupError>());
    }
}
