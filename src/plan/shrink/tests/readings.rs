//! What `memory.stat` says, by version.

use super::*;
use crate::model::{CgroupVersion, PageSize};

#[test]
fn tmpfs_is_held_and_cache_is_not() {
    let stat = "anon 1000\nfile 900\nkernel 300\nshmem 200\nfile_dirty 5\ninactive_anon 700\nactive_file 300\n\
                inactive_file 400\nunevictable 50\nslab_reclaimable 100\nslab_unreclaimable 40\n\
                workingset_refault_anon 3\nworkingset_refault_file 4\nworkingset_restore_file 9\n";
    let reading = MemoryReading::new(
        CgroupVersion::V2,
        PageSize::KIB_4,
        Bytes::new(2200),
        Some(Bytes::new(9000)),
        stat,
    );
    assert_eq!(reading.anonymous, Bytes::new(1200));
    assert_eq!(reading.evictable, Bytes::new(800));
    assert_eq!(reading.refaults, Bytes::new(7 * 4096));
    assert_eq!(reading.held(), Bytes::new(1400), "what is in use but cannot be dropped");
}

#[test]
fn v1_counts_descendants_under_names_of_its_own() {
    let stat = "cache 5\nrss 6\nshmem 7\nactive_file 8\ninactive_file 9\nworkingset_refault_file 1\ntotal_cache 900\n\
                total_rss 1000\ntotal_shmem 200\ntotal_active_file 300\ntotal_inactive_file 400\n\
                total_workingset_refault_anon 0\ntotal_workingset_refault_file 11\n";
    let reading = MemoryReading::new(CgroupVersion::V1, PageSize::KIB_64, Bytes::new(2000), None, stat);
    assert_eq!(reading.anonymous, Bytes::new(1200));
    assert_eq!(reading.evictable, Bytes::new(700));
    assert_eq!(reading.refaults, Bytes::new(11 * 65536));
    assert_eq!(reading.held(), Bytes::new(1300));
}

#[test]
fn where_the_files_disagree_more_is_held() {
    let stat = "anon 1000\nactive_file 5000\n";
    let reading = MemoryReading::new(CgroupVersion::V2, PageSize::KIB_4, Bytes::new(1100), None, stat);
    assert_eq!(reading.held(), Bytes::new(1000));
    let empty = MemoryReading::new(CgroupVersion::V2, PageSize::KIB_4, Bytes::new(1100), None, "");
    assert_eq!(empty.held(), Bytes::new(1100), "nothing is known to be evictable");
}
