//! A target of the fuzzer: the mounts of a process.

use procfs::FromBufRead;

use super::*;

/// A table of mounts.
pub(crate) fn mounts(bytes: &[u8]) {
    if let Ok(table) = procfs::process::MountInfos::from_buf_read(bytes) {
        drop(Hierarchy::of_mounts(
            &table.into_iter().collect::<Vec<_>>(),
            "the fuzzer",
        ));
    }
}
