//! The page size of the running kernel.

use nix::unistd::{SysconfVar, sysconf};

use crate::model::PageSize;

/// The unit in which this kernel keeps memory limits: `sysconf(_SC_PAGESIZE)`.
#[must_use]
pub fn page_size() -> PageSize {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.and_then(PageSize::new).unwrap_or(PageSize::KIB_4)
}
