//! What a killed agent leaves for the next one: which cgroup it had frozen, and which limits a runtime may have changed.
//!
//! A file for each, made before the freeze or the runtime's update and removed after the cgroup is as it was. It is written to outlive the process, not the
//! machine: a reboot ends the cgroup as well, so nothing waits for the disk.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupError, Dir};

const DIRECTORY: &str = "frozen";

/// The directory with a marker for each cgroup that is frozen.
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
    /// The values that its limits had before the runtime was told something; with them it was not frozen.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, String>,
}

/// The marker of one cgroup.
#[derive(Debug)]
pub(in crate::actuate) struct Marker(PathBuf);

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
    /// Errors: when it cannot be made.
    pub fn below(state_directory: &Path) -> io::Result<Self> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// Says that this cgroup is about to be frozen.
    pub(super) fn place(&self, cgroup: &Dir) -> io::Result<Marker> {
        self.write("", cgroup, BTreeMap::new())
    }

    /// Says that a runtime is about to be told something, which may change these limits of the cgroup.
    pub(in crate::actuate) fn place_limits(
        &self,
        cgroup: &Dir,
        limits: &BTreeMap<String, String>,
    ) -> io::Result<Marker> {
        self.write("-limits", cgroup, limits.clone())
    }

    fn write(&self, kind: &str, cgroup: &Dir, limits: BTreeMap<String, String>) -> io::Result<Marker> {
        let path = self.directory.join(format!("{:x}{kind}.json", cgroup.number()));
        let content = Content {
            cgroup: cgroup.path().to_owned(),
            number: cgroup.number(),
            limits,
        };
        fs::write(&path, serde_json::to_vec(&content)?)?;
        Ok(Marker(path))
    }

    /// Lets everything go on that an agent had frozen when it was killed, puts back the limits that a runtime changed
    /// meanwhile, and forgets both. What fails is kept for the next time.
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
            match undo(&path) {
                Ok(Some(cgroup)) => left.thawed.push(cgroup),
                Ok(None) => {}
                Err(problem) => left.problems.push(format!("{}: {problem}", path.display())),
            }
        }
        left
    }
}

impl Marker {
    /// The cgroup is as it was.
    pub(in crate::actuate) fn remove(self) {
        remove(&self.0);
    }
}

/// Thaws the cgroup that a marker names, or puts its limits back, and removes the marker. Returns the
/// cgroup if it was frozen.
fn undo(marker: &Path) -> Result<Option<PathBuf>, String> {
    let text = fs::read(marker).map_err(|error| error.to_string())?;
    let content: Content = match serde_json::from_slice(&text) {
        Ok(content) => content,
        Err(error) => {
            // Cut off while it was written, which was before anything was frozen.
            remove(marker);
            return Err(format!("not understood, and removed: {error}"));
        }
    };
    let thawed = match undo_content(&content) {
        Ok(thawed) => thawed,
        Err(error) if error.is_gone() => false,
        Err(error) => return Err(error.to_string()),
    };
    remove(marker);
    Ok(thawed.then_some(content.cgroup))
}

/// Whether the cgroup was frozen.
fn undo_content(content: &Content) -> Result<bool, CgroupError> {
    let cgroup = Dir::open(content.cgroup.clone())?;
    if cgroup.number() != content.number {
        return Ok(false);
    }
    if content.limits.is_empty() {
        let asked = cgroup.freezer_state()?.is_some_and(|state| state.requested);
        if asked {
            cgroup.set_frozen(false)?;
        }
        return Ok(asked);
    }
    if cgroup.put_back_limits(&content.limits)? {
        tracing::warn!(cgroup = %content.cgroup.display(), limits = ?content.limits,
            "put back limits that the runtime had changed when the agent was killed");
    }
    Ok(false)
}

/// A marker that stays costs one look at the next start; by then its cgroup is not frozen, or another one.
fn remove(marker: &Path) {
    if let Err(error) = fs::remove_file(marker) {
        tracing::warn!(marker = %marker.display(), %error, "the marker of a cgroup could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plain files in the place of a cgroup.
    fn cgroup(root: &Path, freeze: &str) -> Dir {
        let directory = root.join("cgroup");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup.freeze"), freeze).unwrap();
        fs::write(directory.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        Dir::open(directory).unwrap()
    }

    fn asked(cgroup: &Dir) -> bool {
        cgroup.freezer_state().unwrap().unwrap().requested
    }

    #[test]
    fn what_was_left_frozen_goes_on_at_the_next_start_and_is_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let markers = Markers::below(root.path()).unwrap();
        let freezer = cgroup(root.path(), "1\n");
        drop(markers.place(&freezer).unwrap());
        let left = markers.thaw_left_behind();
        assert_eq!(left.thawed, [freezer.path()]);
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

    #[test]
    fn limits_that_a_runtime_changed_while_the_agent_was_killed_are_put_back_at_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let markers = Markers::below(root.path()).unwrap();
        cgroup(root.path(), "1\n");
        let file = root.path().join("cgroup/memory.swap.max");
        fs::write(&file, "104857600\n").unwrap();
        let dir = Dir::open(root.path().join("cgroup")).unwrap();
        let chosen = dir.uncarried_limits().unwrap();
        drop(markers.place_limits(&dir, &chosen).unwrap());
        fs::write(&file, "0\n").unwrap();
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default(), "it was not frozen");
        assert_eq!(fs::read_to_string(&file).unwrap().lines().next(), Some("104857600"));
        fs::write(&file, "0\n").unwrap();
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
        assert_eq!(
            fs::read_to_string(&file).unwrap().lines().next(),
            Some("0"),
            "forgotten"
        );
    }
}
