//! A disk without room: a file system of a few pages, full to the brim.

use std::fs;
use std::process::Command;

use tempfile::TempDir;
use vscaled::report::spool::{Bounds, Commit, Spool};
use vscaled::report::{Destination, Destinations};

use super::station::kill;
use crate::support::mounts::unmount_below;

/// A file system of so many KiB, unmounted when this is dropped.
struct Disk(TempDir);

impl Disk {
    fn of(kib: usize) -> Self {
        let directory = tempfile::tempdir_in(crate::support::scratch()).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
            .arg(directory.path())
            .status();
        assert!(mounted.unwrap().success());
        Self(directory)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount_below(self.0.path());
    }
}

fn open(disk: &Disk) -> Spool {
    let directory = disk.0.path().join("spool");
    Spool::open(
        &directory,
        Bounds::default(),
        Destinations::from_iter([Destination::Grpc]),
    )
    .0
}

fn told(spool: &mut Spool) -> u64 {
    let owed = spool.take(Destination::Grpc, 0, usize::MAX);
    owed.iter().map(|owed| owed.report.count()).sum()
}

#[test]
fn a_full_disk_is_said_and_nothing_is_lost_and_all_is_written_once_there_is_room() {
    let disk = Disk::of(512);
    let mut spool = open(&disk);
    let ballast = disk.0.path().join("ballast");
    fs::write(&ballast, vec![0; 300 << 10]).unwrap();
    let mut stored = 0;
    while !spool.is_in_memory_only() {
        stored += 1;
        spool.commit(vec![Commit {
            reports: vec![kill(stored)],
            checkpoint: Some(vec![7; 4096]),
        }]);
        assert!(stored < 10_000, "the disk never filled up");
    }
    let problem = spool.problem().unwrap();
    assert!(
        problem.contains("No space left") && problem.contains("kept in memory only"),
        "{problem}"
    );
    for number in stored + 1..=stored + 50 {
        let done = spool.commit(vec![Commit {
            reports: vec![kill(number)],
            checkpoint: None,
        }]);
        assert!(!done[0].on_disk);
    }
    assert_eq!(told(&mut spool), stored + 50);

    fs::remove_file(ballast).unwrap();
    assert!(spool.restore());
    assert_eq!(spool.problem(), None);
    spool.commit(vec![Commit {
        reports: vec![kill(stored + 51)],
        checkpoint: None,
    }]);
    drop(spool);
    assert_eq!(told(&mut open(&disk)), stored + 51);
}
