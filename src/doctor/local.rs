//! The checks of this machine, with the rights of this process. Blocks for a moment.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use super::kernel::{DAC_OVERRIDE, inotify, kernel_log, missing_capabilities};
use super::{Check, Locations};
use crate::cgroup::Hierarchy;
use crate::model::Resource;

/// The least free space in bytes without a warning.
const LEAST_ROOM: u64 = 64 << 20;

/// Every check that needs no agent, in the order of the output.
const CHECKS: &[fn(&Locations) -> Check] = &[
    |_| kernel(),
    cgroups,
    cgroup_files,
    |_| privileges(),
    |_| kernel_log(),
    |_| inotify(),
    state_directory,
    audit_log,
];

/// Runs every check with the rights of this process.
pub fn local(locations: &Locations) -> Vec<Check> {
    CHECKS.iter().map(|check| check(locations)).collect()
}

fn kernel() -> Check {
    match nix::sys::utsname::uname() {
        Ok(name) => {
            let text = |part: &OsStr| part.to_string_lossy().into_owned();
            let found = [name.sysname(), name.release(), name.machine()].map(text).join(" ");
            Check::ok("kernel", found)
        }
        Err(error) => Check::warn("kernel", format!("uname: {error}"), "nothing depends on it"),
    }
}

fn cgroups(locations: &Locations) -> Check {
    match Hierarchy::discover(locations.cgroup_root.as_deref()) {
        Ok(hierarchy) => {
            let mut mounts = Resource::ALL
                .map(|one| hierarchy.mount(one).display().to_string())
                .to_vec();
            mounts.dedup();
            let found = format!("{} at {}", hierarchy.version(), mounts.join(" and "));
            Check::ok("cgroups", found)
        }
        Err(error) => Check::fail("cgroups", error.to_string(), "mount the host's /sys/fs/cgroup here"),
    }
}

/// Whether this user may write limits on this mount.
fn cgroup_files(locations: &Locations) -> Check {
    const NAME: &str = "cgroup files";
    let Ok(hierarchy) = Hierarchy::discover(locations.cgroup_root.as_deref()) else {
        return Check::fail(NAME, "there are none", "see cgroups");
    };
    for controller in Resource::ALL {
        // A file, as the agent writes files: without capabilities the directory at the top is read-only.
        let file = hierarchy.mount(controller).join("cgroup.procs");
        if let Err(error) = access(&file, AccessFlags::W_OK) {
            let found = format!("{} may not be written: {error}", file.display());
            let mend = match error {
                nix::errno::Errno::EROFS => {
                    "mount it read-write (in a container: a volume of the host's, and privileged)"
                }
                _ => "run as root",
            };
            return Check::fail(NAME, found, mend);
        }
    }
    Check::ok(NAME, "may be written")
}

fn privileges() -> Check {
    const NAME: &str = "privileges";
    let uid = nix::unistd::geteuid().as_raw();
    let missing = match missing_capabilities() {
        Ok(missing) => missing,
        Err(error) => return Check::warn(NAME, format!("uid {uid}, capabilities unknown: {error}"), "mount /proc"),
    };
    let found = match missing.as_slice() {
        [] => format!("uid {uid}, every capability that matters"),
        names => format!("uid {uid}, without {}", names.join(", ")),
    };
    if uid == 0 || !missing.contains(&DAC_OVERRIDE) {
        return Check::ok(NAME, found);
    }
    Check::fail(NAME, found, format!("run as root, or grant {}", missing.join(" and ")))
}

fn state_directory(locations: &Locations) -> Check {
    usable_directory(
        "state directory",
        &locations.state_dir,
        "overrides would not survive a restart (stateDir)",
    )
}

fn audit_log(locations: &Locations) -> Check {
    const NAME: &str = "audit log";
    let Some(file) = &locations.audit_file else {
        return Check::ok(NAME, "none is configured here");
    };
    let directory = file.parent().unwrap_or(Path::new("/"));
    let mut check = usable_directory(NAME, directory, "who changed what would not be kept (auditLog)");
    if check.mend.is_empty() {
        let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
        check.found = format!("{}, {} KiB", file.display(), bytes / 1024);
    }
    check
}

/// A writable directory, which exists or can be created, with free space.
fn usable_directory(name: &str, directory: &Path, consequence: &str) -> Check {
    let shown = directory.display();
    let Some(there) = directory.ancestors().find(|ancestor| ancestor.exists()) else {
        return Check::fail(name, format!("{shown} is nowhere"), consequence);
    };
    if let Err(error) = access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        let mend = format!("let this user write to it, or {consequence}");
        return Check::fail(name, format!("{} may not be written: {error}", there.display()), mend);
    }
    let room = match statvfs(there) {
        Ok(info) => info.blocks_available().saturating_mul(info.fragment_size()),
        Err(error) => return Check::warn(name, format!("{shown}: {error}"), consequence),
    };
    let will_be_made = if there == directory { "" } else { " will be made" };
    let found = format!("{shown}{will_be_made}, {} MiB free", room >> 20);
    if room < LEAST_ROOM {
        return Check::warn(name, found, format!("make room, or {consequence}"));
    }
    Check::ok(name, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_directory_that_is_not_there_yet_will_be_made_and_one_that_cannot_be_is_a_failure() {
        let temp = tempfile::tempdir().unwrap();
        let wanted = temp.path().join("a/b");
        let check = usable_directory("state directory", &wanted, "x");
        assert!(check.found.contains("will be made"), "{check:?}");
        assert!(!wanted.exists());
        let check = usable_directory("state directory", Path::new("/proc/self/nothing"), "all is lost");
        assert_eq!((&*check.status, check.mend.is_empty()), ("fail", false), "{check:?}");
    }

    #[test]
    fn every_check_says_what_it_found_and_the_ones_that_are_not_ok_what_to_do() {
        let temp = tempfile::tempdir().unwrap();
        let locations = Locations {
            cgroup_root: Some(PathBuf::from("/nowhere")),
            state_dir: temp.path().to_owned(),
            audit_file: Some(temp.path().join("audit.jsonl")),
        };
        let checks = local(&locations);
        assert_eq!(checks.len(), CHECKS.len());
        for check in &checks {
            assert!(!check.found.is_empty(), "{check:?}");
            assert_eq!(check.status == "ok", check.mend.is_empty(), "{check:?}");
        }
        let cgroups = checks.iter().find(|check| check.name == "cgroups").unwrap();
        assert_eq!(cgroups.status, "fail");
    }
}
