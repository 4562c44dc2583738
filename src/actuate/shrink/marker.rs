//! What a killed agent leaves for the next one: which cgroup it had frozen.
//!
//! A file for each, made before the freeze and removed after the thaw. It is written to outlive the process, not the
//! machine: a reboot ends the cgroup as well, so nothing waits for the disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupError, CgroupFreezer};

/// Below the state directory.
const DIRECTORY: &str = "frozen";

/// The directory of markers.
#[derive(Debug)]
pub struct Markers {
    directory: PathBuf,
}

/// What one of them says.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    /// The cgroup's directory in the file system.
    cgroup: PathBuf,
    /// Its number there: a cgroup made later at the same path is somebody else's.
    number: u64,
}

/// The marker of one frozen cgroup.
#[derive(Debug)]
pub(super) struct Marker(PathBuf);

/// What became of the cgroups an earlier agent had frozen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftBehind {
    /// Those that were still frozen, and go on now.
    pub thawed: Vec<PathBuf>,
    /// What could not be thawed, or not be understood, one sentence each.
    pub problems: Vec<String>,
}

impl Markers {
    /// The markers below a state directory, whose place for them is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn below(state_directory: &Path) -> io::Result<Self> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// Says that this cgroup is about to be frozen.
    pub(super) fn place(&self, freezer: &CgroupFreezer) -> io::Result<Marker> {
        let path = self.directory.join(format!("{:x}.json", freezer.number()));
        let content = serde_json::to_vec(&Content {
            cgroup: freezer.directory().to_owned(),
            number: freezer.number(),
        })?;
        fs::write(&path, content)?;
        Ok(Marker(path))
    }

    /// Lets everything go on that an agent had frozen when it was killed, and forgets it. What cannot be thawed is kept for
    /// the next time.
    #[must_use]
    pub fn thaw_left_behind(&self) -> LeftBehind {
        let mut left = LeftBehind::default();
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) => {
                left.problems.push(format!("{}: {error}", self.directory.display()));
                return left;
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            match settle(&path) {
                Ok(Some(cgroup)) => left.thawed.push(cgroup),
                Ok(None) => {}
                Err(problem) => left.problems.push(format!("{}: {problem}", path.display())),
            }
        }
        left
    }
}

impl Marker {
    /// The cgroup is not frozen any more.
    pub(super) fn remove(self) {
        remove(&self.0);
    }
}

/// Thaws what a marker names, if it is there and frozen, and removes the marker.
fn settle(marker: &Path) -> Result<Option<PathBuf>, String> {
    let text = fs::read(marker).map_err(|error| error.to_string())?;
    let content: Content = match serde_json::from_slice(&text) {
        Ok(content) => content,
        Err(error) => {
            // Cut off while it was written, which was before anything was frozen.
            remove(marker);
            return Err(format!("not understood, and removed: {error}"));
        }
    };
    let thawed = match thaw(&content) {
        Ok(thawed) => thawed,
        Err(error) if error.is_gone() => false,
        Err(error) => return Err(error.to_string()),
    };
    remove(marker);
    Ok(thawed.then_some(content.cgroup))
}

fn thaw(content: &Content) -> Result<bool, CgroupError> {
    let freezer = CgroupFreezer::open(&content.cgroup)?;
    let asked = freezer.number() == content.number && freezer.state()?.is_some_and(|state| state.requested);
    if asked {
        freezer.set(false)?;
    }
    Ok(asked)
}

/// A marker that stays costs one look at the next start; by then its cgroup is not frozen, or another one.
fn remove(marker: &Path) {
    if let Err(error) = fs::remove_file(marker) {
        tracing::warn!(marker = %marker.display(), %error, "the marker of a frozen cgroup could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plain files in the place of a cgroup.
    fn cgroup(root: &Path, freeze: &str) -> CgroupFreezer {
        let directory = root.join("cgroup");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup.freeze"), freeze).unwrap();
        fs::write(directory.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        CgroupFreezer::open(&directory).unwrap()
    }

    fn asked(freezer: &CgroupFreezer) -> bool {
        freezer.state().unwrap().unwrap().requested
    }

    #[test]
    fn what_was_left_frozen_goes_on_at_the_next_start_and_is_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let markers = Markers::below(root.path()).unwrap();
        let freezer = cgroup(root.path(), "1\n");
        drop(markers.place(&freezer).unwrap());
        let left = markers.thaw_left_behind();
        assert_eq!(left.thawed, [freezer.directory()]);
        assert_eq!(left.problems, Vec::<String>::new());
        assert!(!asked(&freezer));
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
    }

    #[test]
    fn another_cgroup_of_the_same_path_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let markers = Markers::below(root.path()).unwrap();
        drop(markers.place(&cgroup(root.path(), "0\n")).unwrap());
        fs::rename(root.path().join("cgroup"), root.path().join("earlier")).unwrap();
        let other = cgroup(root.path(), "1\n");
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
        assert!(asked(&other), "somebody else froze it");
    }

    #[test]
    fn a_marker_of_a_cgroup_that_ended_or_was_cut_off_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let markers = Markers::below(root.path()).unwrap();
        drop(markers.place(&cgroup(root.path(), "0\n")).unwrap());
        fs::remove_dir_all(root.path().join("cgroup")).unwrap();
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
        fs::write(markers.directory.join("1.json"), "{\"cgro").unwrap();
        assert_eq!(markers.thaw_left_behind().problems.len(), 1);
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
    }
}
