//! `/proc/self/mountinfo`, as much of it as tests need.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One mounted file system.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    /// The options of the file system; of a v1 hierarchy they name its controllers.
    pub(crate) options: Vec<String>,
}

/// All mounts, in the order in which they were made.
pub(crate) fn all() -> Vec<Mount> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().map(parse).collect()
}

/// `… mount-point … - type source options`
fn parse(line: &str) -> Mount {
    let (mount, file_system) = line.split_once(" - ").expect("mountinfo has a separator");
    let mut file_system = file_system.split(' ');
    Mount {
        point: mount.split(' ').nth(4).expect("mountinfo has a mount point").into(),
        kind: file_system.next().unwrap_or_default().to_owned(),
        options: file_system
            .nth(1)
            .unwrap_or_default()
            .split(',')
            .map(str::to_owned)
            .collect(),
    }
}

/// Unmounts everything mounted below a directory, last mounted first.
pub(crate) fn unmount_below(directory: &Path) {
    for mount in all().iter().rev().filter(|mount| mount.point.starts_with(directory)) {
        let outcome = Command::new("umount").arg("--lazy").arg(&mount.point).status();
        if !outcome.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!("could not unmount {}: {outcome:?}", mount.point.display());
        }
    }
}
