//! The state file: for each pod the desired state ([`DesiredState`]) and the patches of its spec ([`Resize`]).
//!
//! One JSON file, replaced whole ([`files::replace_atomically`]). A file that cannot be parsed is renamed, never
//! overwritten and never used in part.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::CanaryWait;
use crate::files;
use crate::model::objects::{Pod, PodId};
use crate::plan::shrink::FailedShrinks;
use crate::reconcile::desired::{DesiredState, GrowthPause};
use crate::reconcile::resize::Resize;
use crate::sources::NodeView;

const FILE_NAME: &str = "state.json";
/// Raised when the content changes its meaning.
const VERSION: u32 = 1;

/// The state file in its directory.
#[derive(Debug)]
pub(crate) struct StateFile {
    directory: PathBuf,
}

/// The part that every version of the file has.
#[derive(Debug, Deserialize)]
struct Header {
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    version: u32,
    /// The saved pods by UID.
    pods: BTreeMap<String, SavedPod>,
}

/// The saved state of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPod {
    pub(crate) pod: PodId,
    /// The pod's latest object: the desired state can be enforced before any source answers.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "shared")]
    pub(crate) described: Option<Arc<Pod>>,
    #[serde(rename = "standing")]
    pub(crate) state: SavedTargets,
    #[serde(default, skip_serializing_if = "FailedShrinks::is_empty")]
    pub(crate) regrets: FailedShrinks,
    /// Until when the guard does not grow limits that the API server denied.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) pauses: BTreeMap<String, GrowthPause>,
    /// When a container last ran its `on-memory-pressure` hook.
    #[serde(default, rename = "pressed", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) evidence_at: BTreeMap<String, Timestamp>,
    /// A change that other pods of the VPA get first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<CanaryWait>,
}

/// The desired state and the resize of a pod, in one object of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedTargets {
    #[serde(flatten)]
    pub(crate) desired: DesiredState,
    #[serde(flatten)]
    pub(crate) resize: Resize,
}

/// The content of the state file at the start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// The saved pods by UID.
    pub(crate) pods: BTreeMap<String, SavedPod>,
    /// Why the content is not complete. Reported until the agent ends: nothing repairs it.
    pub(crate) problem: Option<String>,
}

impl Restored {
    /// The saved pods, as a view.
    pub(crate) fn described(&self) -> NodeView {
        NodeView {
            pods: self.pods.values().filter_map(|saved| saved.described.clone()).collect(),
            ..NodeView::default()
        }
    }
}

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("{action} {path}: {source}; check that stateDir exists, is writable and has free space", path = .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A newer agent wrote the file. The file stays: this agent cannot read it, and the newer agent may come back.
    #[error(
        "{path}: a newer vscaled wrote this file (version {version}, this one knows up to {VERSION}); it is left alone: start \
         that vscaled again, or move the file away and lose what it says", path = .path.display()
    )]
    Newer { path: PathBuf, version: u32 },
}

impl StateFile {
    /// The state file in this directory, which is created if it is missing.
    ///
    /// Errors: [`StateError`] when the directory cannot be made.
    pub(crate) fn in_directory(directory: &Path) -> Result<Self, StateError> {
        fs::create_dir_all(directory).map_err(failed("create", directory))?;
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    /// Reads the file; one that cannot be parsed is renamed, and reported as a problem.
    ///
    /// Errors: [`StateError`] when the file cannot be read or renamed, or when a newer agent wrote it.
    pub(crate) fn load(&self) -> Result<Restored, StateError> {
        let path = self.path();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Restored::default()),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        if let Ok(Header { version }) = serde_json::from_slice(&text)
            && version > VERSION
        {
            return Err(StateError::Newer { path, version });
        }
        let reason = match serde_json::from_slice::<Saved>(&text) {
            Ok(Saved { version: VERSION, pods }) => return Ok(Restored { pods, problem: None }),
            Ok(saved) => format!(
                "version {} is not the version {VERSION} this agent writes",
                saved.version
            ),
            Err(error) => error.to_string(),
        };
        let aside = self.directory.join(format!("{FILE_NAME}.set-aside"));
        fs::rename(&path, &aside).map_err(failed("set aside", &path))?;
        let problem = format!(
            "the state file was not understood at the start ({reason}) and is now {}; overrides from before are lost, \
             and pods that an earlier agent wrote to go back to what their specs and VPAs say",
            aside.display()
        );
        tracing::error!("{problem}");
        Ok(Restored {
            problem: Some(problem),
            ..Restored::default()
        })
    }

    /// Replaces the whole file.
    ///
    /// Errors: [`StateError`]; the earlier content is then still there.
    pub(crate) fn save(&self, pods: BTreeMap<String, SavedPod>) -> Result<(), StateError> {
        let path = self.path();
        let content = Saved { version: VERSION, pods };
        // Written piece by piece: the whole text in memory would be larger than the pods themselves.
        files::replace_atomically(&path, |file| Ok(serde_json::to_writer(file, &content)?))
            .map(drop)
            .map_err(failed("write", &path))
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }
}

/// Serde for an `Arc`, which is written like the object itself.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Pod;

    pub(super) fn serialize<S: Serializer>(pod: &Option<Arc<Pod>>, serializer: S) -> Result<S::Ok, S::Error> {
        pod.as_deref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Pod>>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(Arc::new))
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io {
        action,
        path: path.clone(),
        source,
    }
}

/// A target of the fuzzer: a state file that can be parsed reads the same after it is written.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_state(bytes: &[u8]) {
    if let Ok(saved) = serde_json::from_slice::<Saved>(bytes) {
        let again = serde_json::to_vec(&saved).and_then(|text| serde_json::from_slice::<Saved>(&text));
        assert_eq!(again.ok().map(|again| again.pods), Some(saved.pods));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> BTreeMap<String, SavedPod> {
        let pod = PodId {
            uid: "u1".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        };
        let desired = DesiredState {
            returning: true,
            ..DesiredState::default()
        };
        let saved = SavedPod {
            pod,
            described: Some(Arc::default()),
            state: SavedTargets {
                desired,
                resize: Resize::default(),
            },
            regrets: FailedShrinks::default(),
            pauses: BTreeMap::new(),
            waits: None,
            evidence_at: BTreeMap::new(),
        };
        BTreeMap::from([("u1".to_owned(), saved)])
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::in_directory(&directory.path().join("new")).unwrap();
        assert_eq!(file.load().unwrap(), Restored::default());
        file.save(saved()).unwrap();
        assert_eq!(
            file.load().unwrap(),
            Restored {
                pods: saved(),
                problem: None
            }
        );
    }

    #[test]
    fn what_is_not_understood_is_set_aside_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::in_directory(directory.path()).unwrap();
        for broken in ["{\"version\":1,\"pods\":{", "{\"version\":0,\"pods\":{}}"] {
            fs::write(file.path(), broken).unwrap();
            let problem = file.load().unwrap().problem.unwrap();
            let aside = directory.path().join("state.json.set-aside");
            assert_eq!(fs::read_to_string(&aside).unwrap(), broken);
            assert!(problem.contains(&aside.display().to_string()), "{problem}");
            assert_eq!(file.load().unwrap(), Restored::default());
        }
    }

    #[test]
    fn what_a_newer_agent_wrote_is_an_error_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::in_directory(directory.path()).unwrap();
        let newer = "{\"version\":2,\"pods\":[\"another shape\"]}";
        fs::write(file.path(), newer).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains("version 2, this one knows up to 1"), "{error}");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), newer);
    }

    /// Files that agents of version 0.1 left (tests/data/state): read, kept whole, and written so that 0.1 reads them.
    #[test]
    fn what_the_version_before_left_is_carried_over() {
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state/0.1");
        let mut names = Vec::new();
        for entry in fs::read_dir(recorded).unwrap() {
            let entry = entry.unwrap();
            let directory = tempfile::tempdir().unwrap();
            let file = StateFile::in_directory(directory.path()).unwrap();
            fs::copy(entry.path(), file.path()).unwrap();
            let restored = file.load().unwrap();
            assert_eq!(restored.problem, None, "{}", entry.path().display());
            file.save(restored.pods).unwrap();
            let value = |path: &Path| serde_json::from_slice::<serde_json::Value>(&fs::read(path).unwrap()).unwrap();
            assert_eq!(value(&file.path()), value(&entry.path()), "{}", entry.path().display());
            names.push(entry.file_name());
        }
        assert_eq!(names.len(), 5, "{names:?}");
    }

    #[test]
    fn a_failed_write_keeps_the_earlier_content() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::in_directory(directory.path()).unwrap();
        file.save(saved()).unwrap();
        // A directory in the place of the file beside makes the write fail, also for root.
        fs::create_dir(directory.path().join("state.json.new")).unwrap();
        let error = file.save(BTreeMap::new()).unwrap_err().to_string();
        assert!(error.starts_with("write ") && error.contains("stateDir"), "{error}");
        assert_eq!(file.load().unwrap().pods, saved());
    }
}
