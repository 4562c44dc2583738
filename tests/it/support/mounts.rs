//! The part of `/proc/self/mountinfo` that tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    kind: String,
}

impl Mount {
    /// Whether this is a cgroup hierarchy, v1 or v2.
    pub(crate) fn is_cgroup(&self) -> bool {
        matches!(self.kind.as_str(), "cgroup" | "cgroup2")
    }
}

/// All mounts, oldest first.
pub(crate) fn all() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().map(parse).collect()
}

/// Parses `… … … … mount-point … - type source options`.
fn parse(line: &str) -> Mount {
    let (mount, file_system) = line.split_once(" - ").expect("mountinfo has a separator");
    Mount {
        point: mount.split(' ').nth(4).expect("mountinfo has a mount point").into(),
        kind: file_system.split(' ').next().unwrap_or_default().to_owned(),
    }
}

/// Whether a host with cgroup v1 also offers controllers through v2. crun refuses to run there.
pub(crate) fn is_hybrid() -> bool {
    let unified = all().into_iter().filter(|mount| mount.kind == "cgroup2");
    let offers =
        |mount: &Mount| fs::read_to_string(mount.point.join("cgroup.controllers")).is_ok_and(|text| text != "\n");
    all().iter().any(|mount| mount.kind == "cgroup") && unified.into_iter().any(|mount| offers(&mount))
}

/// Unmounts everything below a directory, newest first.
pub(crate) fn unmount_below(directory: &Path) {
    for mount in all().iter().rev().filter(|mount| mount.point.starts_with(directory)) {
        let outcome = Command::new("umount").arg("--lazy").arg(&mount.point).status();
        if !outcome.as_ref().is_ok_and(ExitStatus::success) {
            eprintln!("could not unmount {}: {outcome:?}", mount.point.display());
        }
    }
}
