//! Markers for the next start of an agent that is killed: which cgroup it had frozen, and which limits a runtime may have
//! changed.
//!
//! Each marker is a file. The agent writes it before it freezes a cgroup or calls the runtime, and removes it after it has
//! restored the cgroup. The file outlives the process, not the machine: a reboot ends the cgroup as well, so the agent does
//! not sync it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::freezer::Freezer;
use crate::cgroup::{CgroupError, Dir};

const DIRECTORY: &str = "frozen";

/// The content of a marker.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    /// The cgroup's directory in the file system.
    cgroup: PathBuf,
    /// The directory's inode number: a later cgroup at the same path has another one.
    number: u64,
    /// The values of the cgroup's limits before a call to the runtime. With these the cgroup was not frozen.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, String>,
}

/// The marker of one cgroup.
#[derive(Debug)]
pub(in crate::actuate) struct Marker(PathBuf);

/// The cgroups that an earlier agent had frozen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftBehind {
    /// The cgroups that were still frozen, and are thawed now.
    pub thawed: Vec<PathBuf>,
    /// Markers that cannot be read, and cgroups that cannot be thawed, one sentence each.
    pub problems: Vec<String>,
}

impl Freezer {
    /// A freezer with its markers below a state directory. Makes the directory of the markers if it is missing.
    ///
    /// Errors: the directory cannot be made.
    pub fn below(state_directory: &Path) -> io::Result<Self> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// Writes a marker for a cgroup that is about to be frozen, or, with `limits`, whose limits a runtime may change.
    pub(in crate::actuate) fn place_marker(
        &self,
        cgroup: &Dir,
        limits: BTreeMap<String, String>,
    ) -> io::Result<Marker> {
        let kind = if limits.is_empty() { "" } else { "-limits" };
        let path = self.directory.join(format!("{:x}{kind}.json", cgroup.number()));
        let content = Content {
            cgroup: cgroup.path().to_owned(),
            number: cgroup.number(),
            limits,
        };
        fs::write(&path, serde_json::to_vec(&content)?)?;
        Ok(Marker(path))
    }

    /// Thaws every cgroup that an agent had frozen when it was killed, puts back the limits that a runtime changed meanwhile,
    /// and removes the markers. Keeps the marker of a cgroup where that fails.
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
            let marker = Marker(entry.path());
            let shown = marker.0.display().to_string();
            match marker.undo() {
                Ok(thawed) => left.thawed.extend(thawed),
                Err(problem) => left.problems.push(format!("{shown}: {problem}")),
            }
        }
        left
    }
}

impl Marker {
    /// Thaws the cgroup, or puts its limits back, and removes the marker. Returns the cgroup if it was frozen.
    fn undo(self) -> Result<Option<PathBuf>, String> {
        let text = fs::read(&self.0).map_err(|error| error.to_string())?;
        let content: Content = match serde_json::from_slice(&text) {
            Ok(content) => content,
            Err(error) => {
                // The agent was killed while it wrote the marker, before it froze the cgroup.
                self.remove();
                return Err(format!("not understood, and removed: {error}"));
            }
        };
        let thawed = match undo_content(&content) {
            Ok(thawed) => thawed,
            Err(error) if error.is_gone() => false,
            Err(error) => return Err(error.to_string()),
        };
        self.remove();
        Ok(thawed.then_some(content.cgroup))
    }

    /// Removes the marker of a cgroup that is restored. A marker that stays does no harm: at the next start its cgroup is not
    /// frozen, or is another one.
    pub(in crate::actuate) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(marker = %self.0.display(), %error, "the marker of a cgroup could not be removed");
        }
    }
}

/// Thaws the cgroup or puts its limits back; returns whether it was frozen.
fn undo_content(content: &Content) -> Result<bool, CgroupError> {
    let cgroup = Dir::open(content.cgroup.clone())?;
    if cgroup.number() != content.number {
        return Ok(false);
    }
    if content.limits.is_empty() {
        let was_frozen = cgroup.freezer_state()?.is_some_and(|state| state.requested);
        if was_frozen {
            cgroup.set_frozen(false)?;
        }
        return Ok(was_frozen);
    }
    if cgroup.restore_limits(&content.limits)? {
        tracing::warn!(cgroup = %content.cgroup.display(), limits = ?content.limits,
            "put back limits that the runtime had changed when the agent was killed");
    }
    Ok(false)
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
        let markers = Freezer::below(root.path()).unwrap();
        let freezer = cgroup(root.path(), "1\n");
        drop(markers.place_marker(&freezer, BTreeMap::new()).unwrap());
        let left = markers.thaw_left_behind();
        assert_eq!(left.thawed, [freezer.path()]);
        assert_eq!(left.problems, Vec::<String>::new());
        assert!(!asked(&freezer));
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
    }

    #[test]
    fn another_cgroup_of_the_same_path_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let markers = Freezer::below(root.path()).unwrap();
        drop(
            markers
                .place_marker(&cgroup(root.path(), "0\n"), BTreeMap::new())
                .unwrap(),
        );
        fs::rename(root.path().join("cgroup"), root.path().join("earlier")).unwrap();
        let other = cgroup(root.path(), "1\n");
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
        assert!(asked(&other), "somebody else froze it");
    }

    #[test]
    fn a_marker_of_a_cgroup_that_ended_or_was_cut_off_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let markers = Freezer::below(root.path()).unwrap();
        drop(
            markers
                .place_marker(&cgroup(root.path(), "0\n"), BTreeMap::new())
                .unwrap(),
        );
        fs::remove_dir_all(root.path().join("cgroup")).unwrap();
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
        fs::write(markers.directory.join("1.json"), "{\"cgro").unwrap();
        assert_eq!(markers.thaw_left_behind().problems.len(), 1);
        assert_eq!(markers.thaw_left_behind(), LeftBehind::default());
    }

    #[test]
    fn limits_that_a_runtime_changed_while_the_agent_was_killed_are_put_back_at_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let markers = Freezer::below(root.path()).unwrap();
        cgroup(root.path(), "1\n");
        let file = root.path().join("cgroup/memory.swap.max");
        fs::write(&file, "104857600\n").unwrap();
        let dir = Dir::open(root.path().join("cgroup")).unwrap();
        let chosen = dir.custom_limits().unwrap();
        drop(markers.place_marker(&dir, chosen).unwrap());
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
