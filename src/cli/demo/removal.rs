//! Removes directories and cgroups, patiently: what was killed leaves its cgroup a moment later.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::io::warn;

/// How long a cgroup may take to become empty.
const PATIENCE: Duration = Duration::from_secs(20);
/// How soon to look again.
pub(super) const AGAIN: Duration = Duration::from_millis(2);

/// Removes a directory with everything in it. One that is not there is fine.
pub(super) fn remove_directory(directory: &Path) -> Result<(), String> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{}: {error}", directory.display())),
        _ => Ok(()),
    }
}

/// Removes a cgroup with those below it, calling `before` for each; processes that were killed leave a moment later.
/// Returns how many there were, or what is left.
pub(super) fn remove_patiently(cgroup: &Path, before: &dyn Fn(&Path)) -> Result<usize, String> {
    let (began, mut removed) = (Instant::now(), 0);
    while let Err(error) = remove(cgroup, before, &mut removed) {
        if error.kind() != io::ErrorKind::ResourceBusy || began.elapsed() > PATIENCE {
            return Err(format!(
                "{}: {error} (processes: {})",
                cgroup.display(),
                inhabitants(cgroup).join(" ")
            ));
        }
        sleep(AGAIN);
    }
    if cgroup.exists() {
        Err(format!("{} is still there", cgroup.display()))
    } else {
        Ok(removed)
    }
}

fn remove(cgroup: &Path, before: &dyn Fn(&Path), removed: &mut usize) -> io::Result<()> {
    if !cgroup.exists() {
        return Ok(());
    }
    for below in below(cgroup)? {
        remove(&below, before, removed)?;
    }
    before(cgroup);
    match fs::remove_dir(cgroup) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => {
            *removed += usize::from(result.is_ok());
            result
        }
    }
}

/// The cgroups directly in one; none if it is gone.
fn below(cgroup: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(cgroup) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The processes in a cgroup and in those below it; one of another pid namespace is a 0.
pub(super) fn inhabitants(cgroup: &Path) -> Vec<String> {
    let own = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<String> = own.lines().map(str::to_owned).collect();
    all.extend(
        below(cgroup)
            .unwrap_or_default()
            .iter()
            .flat_map(|below| inhabitants(below)),
    );
    all
}

/// Kills what is directly in a cgroup of the demo's own.
pub(super) fn kill_all(cgroup: &Path) {
    let pids = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 0) {
        if let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
            warn(&format!("process {pid}: {error}"));
        }
    }
}
