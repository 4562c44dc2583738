//! What demos left that were killed before they could clean up.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Instant;

use procfs::process::Process;

use super::cleanup::{PREFIX, SOON, bases};
use super::removal::{AGAIN, inhabitants, remove_directory, remove_patiently};
use super::tree::mounts;
use crate::cgroup::Hierarchy;

/// Removes what demos left that were killed before they could: named for a process that is no running demo, owned by
/// root, and with no process in it. Says what was removed and what could not be.
pub(super) fn remove_all(hierarchy: &Hierarchy) -> Vec<String> {
    let mut abandoned: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for parent in mounts(hierarchy).into_iter().chain(bases()) {
        for (name, path) in abandoned_in(&parent) {
            abandoned.entry(name).or_default().push(path);
        }
    }
    let remove = |(name, paths): (String, Vec<PathBuf>)| {
        // A demo in another pid namespace looks like this, and for a moment one that was just killed.
        let began = Instant::now();
        while let Some(path) = paths.iter().find(|path| !inhabitants(path).is_empty()) {
            if began.elapsed() > SOON {
                return format!("left alone: {} has processes in it", path.display());
            }
            sleep(AGAIN);
        }
        let remove = |path: &PathBuf| match path.join("cgroup.procs").exists() {
            true => remove_patiently(path, &|_| ()).err(),
            false => remove_directory(path).err(),
        };
        let left: Vec<String> = paths.iter().filter_map(remove).collect();
        if left.is_empty() {
            format!("removed what {name} had left when it was killed: {}", list(&paths))
        } else {
            format!("could not be removed: {}", left.join("; "))
        }
    };
    abandoned.into_iter().map(remove).collect()
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

fn abandoned_in(parent: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok);
    let abandoned = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let pid: u32 = name.strip_prefix(PREFIX)?.parse().ok()?;
        let found = fs::symlink_metadata(entry.path()).ok()?;
        (!is_demo(pid) && found.is_dir() && found.uid() == 0).then(|| (name, entry.path()))
    };
    entries.filter_map(abandoned).collect()
}

/// Whether a process, other than this one, may be a demo that runs: it has the same program's name, and has not ended.
fn is_demo(pid: u32) -> bool {
    let stat = |process: procfs::ProcResult<Process>| process.and_then(|process| process.stat());
    match (stat(Process::myself()), stat(Process::new(pid.cast_signed()))) {
        (Ok(this), Ok(other)) => this.pid != other.pid && this.comm == other.comm && !matches!(other.state, 'Z' | 'X'),
        // What cannot be looked at may be one; what is not there is none.
        (_, Err(procfs::ProcError::NotFound(_))) => false,
        (_, Err(_)) | (Err(_), Ok(_)) => true,
    }
}
