//! Reads the files of the directory, each again only when it may have changed.
//!
//! A file is taken for unchanged while its [`Stamp`] is the same. A file that changed just before it was read is read once more
//! next time: the clock of a file system ticks every few milliseconds, and a second change within a tick leaves no trace (git
//! calls such entries racy).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nix::libc::O_NONBLOCK;

use super::Problem;
use crate::sources::{NodeView, parse_manifests};

/// The largest file that is read, in bytes. The manifests of a full node take some hundred KiB.
pub(super) const MAX_FILE: u64 = 64 << 20;

/// More than a tick of any file system's clock.
const TICK: SignedDuration = SignedDuration::from_millis(50);

/// What a pod's node is called where this one has no name.
const UNNAMED: &str = "this-node";

/// The directory as it was last read.
#[derive(Debug)]
pub(super) struct Reader {
    directory: PathBuf,
    node_name: String,
    /// What is wrong with the directory itself; at first, that nobody has read it.
    problem: Option<String>,
    files: BTreeMap<OsString, Manifest>,
}

#[derive(Debug, Default)]
struct Manifest {
    /// Identifies what was last read; none if it must be read again.
    stamp: Option<Stamp>,
    /// The last content that could be read.
    good: NodeView,
    /// What is wrong with the content now.
    problem: Option<String>,
}

/// Device, inode, size and time of the last change of the inode: together they change whenever the file does, ticks aside.
type Stamp = (u64, u64, u64, i64, i64);

impl Reader {
    pub(super) fn new(directory: PathBuf, node_name: String) -> Self {
        Self {
            directory,
            node_name,
            problem: Some("not read yet".to_owned()),
            files: BTreeMap::new(),
        }
    }

    /// Brings everything up to date but the files that are `writing`, and says whether something changed. Blocks.
    pub(super) fn read(&mut self, writing: &HashSet<OsString>) -> bool {
        let names = match manifests_in(&self.directory) {
            Ok(names) => names,
            Err(error) => {
                let problem = Some(format!("the directory cannot be read: {error}"));
                return std::mem::replace(&mut self.problem, problem.clone()) != problem;
            }
        };
        let before = self.files.len();
        self.files.retain(|name, _| names.contains(name));
        let mut changed = self.files.len() != before;
        changed |= self.problem.take().is_some();
        for name in names.difference(writing) {
            changed |= self.read_file(name);
        }
        changed
    }

    /// What the files say together, and what is wrong with the directory and with single files. Of an object that is
    /// described twice, the first by file name counts; the other is a problem.
    pub(super) fn combined(&self) -> (NodeView, Vec<Problem>) {
        let mut all = NodeView::default();
        let problem = |path: &Path, message: &String| Problem {
            path: path.to_owned(),
            message: message.clone(),
        };
        let mut problems: Vec<_> = self.problem.iter().map(|why| problem(&self.directory, why)).collect();
        // The objects so far, each with its UID and its file.
        let mut described: HashMap<String, Vec<(String, &OsStr)>> = HashMap::new();
        for (name, file) in &self.files {
            let path = self.directory.join(name);
            problems.extend(file.problem.iter().map(|why| problem(&path, why)));
            all.merge(file.good.clone(), |kind, metadata| {
                let (object, uid) = match kind {
                    // There is one, whatever it is called.
                    "Node" => ("the Node".to_owned(), ""),
                    "Pod" => (format!("Pod {}", metadata.full_name()), metadata.uid.as_str()),
                    kind => (format!("{kind} {}", metadata.full_name()), ""),
                };
                let same_name = described.entry(object.clone()).or_default();
                // Pods that follow each other share a name but no UID; without a UID, a name is all there is to go by.
                let same = |known: &&(String, _)| known.0 == uid || known.0.is_empty() || uid.is_empty();
                let Some((_, earlier)) = same_name.iter().find(same) else {
                    same_name.push((uid.to_owned(), name));
                    return true;
                };
                let why = format!("{object} is described by {} already, which counts", earlier.display());
                problems.push(problem(&path, &why));
                false
            });
        }
        (all, problems)
    }

    /// Reads a file if it may have changed, and says whether its content or its problem did.
    fn read_file(&mut self, name: &OsStr) -> bool {
        let path = self.directory.join(name);
        let known = self.files.get(name).and_then(|file| file.stamp);
        let (stamp, outcome) = match fs::metadata(&path) {
            Ok(metadata) if known == Some(stamp_of(&metadata)) => return false,
            // Gone since the directory was listed; the next event tells.
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
                return false;
            }
            Ok(_) => match read_text(&path) {
                Ok((stamp, text)) => (stamp, text.and_then(|text| self.parse(name, &text))),
                Err(error) => (None, Err(format!("cannot be read: {error}"))),
            },
            Err(error) => (None, Err(format!("cannot be read: {error}"))),
        };
        let file = self.files.entry(name.to_owned()).or_default();
        file.stamp = stamp;
        let (good, problem) = match outcome {
            Ok(view) => (Some(view), None),
            Err(problem) => (None, Some(problem)),
        };
        let changed = file.problem != problem || good.as_ref().is_some_and(|view| *view != file.good);
        file.problem = problem;
        file.good = good.unwrap_or_else(|| std::mem::take(&mut file.good));
        changed
    }

    fn parse(&self, name: &OsStr, text: &str) -> Result<NodeView, String> {
        let origin = name.to_string_lossy();
        let manifests = parse_manifests(&origin, text).map_err(|error| error.message)?;
        for warning in manifests.warnings {
            tracing::debug!("{warning}");
        }
        Ok(placed_here(manifests.view, &self.node_name))
    }
}

fn stamp_of(metadata: &Metadata) -> Stamp {
    let (device, inode) = (metadata.dev(), metadata.ino());
    (device, inode, metadata.len(), metadata.ctime(), metadata.ctime_nsec())
}

/// Whether any change after now will show in the stamp.
fn is_settled((_, _, _, seconds, nanoseconds): Stamp) -> bool {
    let changed = Timestamp::new(seconds, i32::try_from(nanoseconds).unwrap_or_default());
    changed.is_ok_and(|changed| Timestamp::now().duration_since(changed) > TICK)
}

/// The names of the directory's manifests. Hidden files are those of editors and of mounted ConfigMaps.
fn manifests_in(directory: &Path) -> io::Result<HashSet<OsString>> {
    let mut names = HashSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_manifest(&name) && !entry.file_type()?.is_dir() {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Whether a name is that of a manifest: by its ending, and not one that editors give to what they are not
/// done with (`.#x.yaml`, `#x.yaml#`, `x.yaml~`).
fn is_manifest(name: &OsStr) -> bool {
    let ending = Path::new(name).extension().and_then(OsStr::to_str);
    let temporary = matches!(name.as_encoded_bytes().first(), Some(b'.' | b'#'));
    matches!(ending, Some("yaml" | "yml" | "json")) && !temporary
}

/// A file's stamp, if it can be trusted, and the text, or why there is none.
fn read_text(path: &Path) -> io::Result<(Option<Stamp>, Result<String, String>)> {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok((None, Err("not a regular file".to_owned())));
    }
    let stamp = Some(stamp_of(&metadata)).filter(|stamp| is_settled(*stamp));
    let mut bytes = Vec::new();
    // One byte more than allowed tells; the file may also grow while it is read.
    if metadata.len() > MAX_FILE || file.take(MAX_FILE + 1).read_to_end(&mut bytes)? as u64 > MAX_FILE {
        return Ok((stamp, Err(format!("larger than {} MiB", MAX_FILE >> 20))));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("not UTF-8 text from byte {at} on")
    });
    Ok((stamp, text))
}

/// Leaves the pods bound to this node, or to none yet: a manifest here is placed here, like a static pod. Without a
/// name, the node takes all.
pub(super) fn placed_here(mut view: NodeView, node_name: &str) -> NodeView {
    let here = if node_name.is_empty() { UNNAMED } else { node_name };
    view.pods
        .retain(|pod| node_name.is_empty() || pod.spec.node_name.is_empty() || pod.spec.node_name == node_name);
    for pod in view.pods.iter_mut().filter(|pod| pod.spec.node_name.is_empty()) {
        here.clone_into(&mut Arc::make_mut(pod).spec.node_name);
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::parse_manifests;

    #[test]
    fn manifests_of_another_node_are_left_out_and_those_of_none_are_placed_here() {
        let pod = |name: &str, node: &str| {
            format!(
                "---\n{{kind: Pod, metadata: {{name: {name}, uid: u-{name}}}, spec: {{nodeName: '{node}', containers: [{{name: c}}]}}}}\n"
            )
        };
        let text = [pod("here", "n"), pod("there", "m"), pod("anywhere", "")].concat();
        let all = parse_manifests("test.yaml", &text).unwrap().view;
        let names = |view: &NodeView| -> Vec<String> {
            let pods = view.pods.iter();
            pods.map(|pod| format!("{} {}", pod.metadata.name, pod.spec.node_name))
                .collect()
        };
        assert_eq!(names(&placed_here(all.clone(), "n")), ["here n", "anywhere n"]);
        assert_eq!(
            names(&placed_here(all, "")),
            ["here n", "there m", "anywhere this-node"]
        );
    }
}
