//! A full disk: a file system of a few pages.

use std::fs;
use std::process::Command;

use tempfile::TempDir;
use vscaled::report::log::{Bounds, KillLog};
use vscaled::report::{Destination, Destinations};

use super::station::kill;
use crate::support::mounts::unmount_below;

/// A file system of this many KiB, unmounted when the value is dropped.
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

fn open(disk: &Disk) -> KillLog {
    KillLog::open(
        disk.0.path(),
        Bounds::default(),
        Destinations::from_iter([Destination::Grpc]),
    )
    .0
}

fn told(log: &mut KillLog) -> u64 {
    let pending = log.next_for(Destination::Grpc, 0, usize::MAX, |_, _| true);
    pending.iter().map(|pending| pending.report.count()).sum()
}

#[test]
fn a_full_disk_is_reported_and_loses_nothing() {
    let disk = Disk::of(512);
    let mut log = open(&disk);
    let ballast = disk.0.path().join("ballast");
    fs::write(&ballast, vec![0; 300 << 10]).unwrap();
    let mut stored = 0;
    while !log.is_in_memory_only() {
        stored += 1;
        log.commit(vec![kill(stored).into()], Some(vec![7; 4096]));
        assert!(stored < 10_000, "the disk never filled up");
    }
    let problem = log.problem().unwrap();
    assert!(
        problem.contains("No space left") && problem.contains("kept in memory only"),
        "{problem}"
    );
    for number in stored + 1..=stored + 50 {
        log.commit(vec![kill(number).into()], None);
        assert!(log.is_in_memory_only());
    }
    assert_eq!(told(&mut log), stored + 50);

    fs::remove_file(ballast).unwrap();
    assert!(log.sync());
    assert_eq!(log.problem(), None);
    log.commit(vec![kill(stored + 51).into()], None);
    drop(log);
    assert_eq!(told(&mut open(&disk)), stored + 51);
}
