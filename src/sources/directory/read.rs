//! Reads all files of the directory, and parses those whose text changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc::O_NONBLOCK;

use crate::kubernetes::ObjectMemory;
use crate::sources::manifests::{give_back, parse_within};
use crate::sources::{KnownObjects, NodeView};

/// The largest file that is read, in bytes. The manifests of a full node take some hundred KiB, and a document takes many times
/// the memory of its text while it is parsed.
pub(super) const MAX_FILE: u64 = 8 << 20;

/// The memory for the objects of all files, in bytes, shared fairly among namespaces.
const MEMORY: u64 = 16 << 20;

/// Why the content of an emptied file stays: `command > file` empties the file long before the command writes.
const EMPTIED: &str =
    "the file is empty, as while it is being written; its last content stays in use until the file is removed";

/// The node name of pods where the configuration names no node.
const UNNAMED: &str = "this-node";

/// The directory or a file, and its problem, with document and field where there is one.
pub(super) type FileProblem = (PathBuf, String);

#[derive(Debug)]
pub(super) struct Reader {
    directory: PathBuf,
    node_name: String,
    files: BTreeMap<OsString, Manifest>,
    memory: ObjectMemory,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Manifest {
    /// The hash of the latest text, or of the reason why there is none. The text itself would double the memory.
    hash: Option<u64>,
    usable: KnownObjects,
    /// The memory that the content takes, in bytes, by namespace.
    held: BTreeMap<String, usize>,
    /// Whether objects were left out of the content.
    is_partial: bool,
    problem: Option<String>,
}

impl Reader {
    pub(super) fn new(directory: PathBuf, node_name: String) -> Self {
        Self {
            directory,
            node_name,
            files: BTreeMap::new(),
            memory: ObjectMemory::new(MEMORY),
            hasher: RandomState::new(),
        }
    }

    /// Reads all files but those in `writing`. Returns the objects of all files, and the problems of the directory and of
    /// files. If several files describe an object, the first by file name counts, and the others are problems. Blocks.
    pub(super) fn read(&mut self, writing: &HashSet<OsString>) -> (NodeView, Vec<FileProblem>) {
        let updated = self.update(writing).map_err(|error| {
            let message = format!("the directory cannot be read: {error}");
            (self.directory.clone(), message)
        });
        let mut problems = Vec::from_iter(updated.err());
        let mut all = NodeView::default();
        // The objects so far, each with its UID and its file.
        let mut described: HashMap<String, Vec<(String, &OsStr)>> = HashMap::new();
        for (name, file) in &self.files {
            let path = self.directory.join(name);
            problems.extend(file.problem.clone().map(|message| (path.clone(), message)));
            all.add(file.usable.clone(), |kind, metadata| {
                let (object, uid) = match kind {
                    // A directory describes one node, of any name.
                    "Node" => ("the Node".to_owned(), ""),
                    "Pod" => (format!("Pod {}", metadata.full_name()), metadata.uid.as_str()),
                    kind => (format!("{kind} {}", metadata.full_name()), ""),
                };
                let same_name = described.entry(object.clone()).or_default();
                // Successive pods share a name but no UID. Without a UID, the name decides.
                let same = |known: &&(String, _)| known.0 == uid || known.0.is_empty() || uid.is_empty();
                let Some((_, earlier)) = same_name.iter().find(same) else {
                    same_name.push((uid.to_owned(), name));
                    return true;
                };
                let message = format!("{object} is described by {} already, which applies", earlier.display());
                problems.push((path.clone(), message));
                false
            });
        }
        self.memory.expect(all.pods().map(|pod| pod.metadata.namespace.clone()));
        (all, problems)
    }

    /// Forgets the files that are gone, and reads the others but those in `writing`.
    fn update(&mut self, writing: &HashSet<OsString>) -> io::Result<()> {
        let names = manifests_in(&self.directory)?;
        let mut freed = false;
        self.files.retain(|name, file| {
            let is_there = names.contains(name);
            if !is_there {
                give_back(&self.memory, &file.held);
                freed = true;
            }
            is_there
        });
        // In this order, files that share the memory get the same parts of it each time.
        let mut present: Vec<_> = names.difference(writing).collect();
        present.sort_unstable();
        for name in present {
            freed |= self.read_file(name);
        }
        if freed {
            // There may be memory for objects that were left out.
            let partial = self.files.values_mut().filter(|file| file.is_partial);
            partial.for_each(|file| file.hash = None);
        }
        Ok(())
    }

    /// Reads a file, and parses it if its text has changed. Returns whether the file takes less memory than before.
    fn read_file(&mut self, name: &OsStr) -> bool {
        let text = read_text(&self.directory.join(name));
        let text = text.unwrap_or_else(|error| Err(format!("cannot be read: {error}")));
        let hash = Some(self.hasher.hash_one(&text));
        let file = self.files.entry(name.to_owned()).or_default();
        if file.hash == hash {
            return false;
        }
        file.hash = hash;
        let is_emptied = text.as_ref().is_ok_and(String::is_empty) && !file.held.is_empty();
        let text = if is_emptied { Err(EMPTIED.to_owned()) } else { text };
        let (memory, node_name) = (&self.memory, &self.node_name);
        let parse = |text: String| {
            let parsed = parse_within(&name.to_string_lossy(), &text, node_name, memory);
            parsed.map_err(|error| error.message)
        };
        match text.and_then(parse) {
            Ok(manifests) => {
                for warning in &manifests.warnings {
                    tracing::debug!("{warning}");
                }
                give_back(memory, &file.held);
                let sum = |held: &BTreeMap<String, usize>| held.values().sum::<usize>();
                let is_smaller = sum(&manifests.held) < sum(&file.held);
                file.is_partial = manifests.left_out.is_some();
                file.held = manifests.held;
                file.usable = placed_here(manifests.view, node_name);
                file.problem = manifests.left_out.map(|(first, count)| {
                    format!(
                        "{first} and {} more objects are left out: the node keeps {} KiB of manifests, fairly by namespace",
                        count - 1,
                        MEMORY >> 10,
                    )
                });
                is_smaller
            }
            Err(message) => {
                file.problem = Some(message);
                false
            }
        }
    }
}

/// The names of the directory's manifests. Editors and mounted ConfigMaps have hidden files.
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

/// Whether a name is that of a manifest: by its extension, and without the marks of editors'
/// temporary files (`.#x.yaml`, `#x.yaml#`, `x.yaml~`).
fn is_manifest(name: &OsStr) -> bool {
    let ending = Path::new(name).extension().and_then(OsStr::to_str);
    let temporary = matches!(name.as_encoded_bytes().first(), Some(b'.' | b'#'));
    matches!(ending, Some("yaml" | "yml" | "json")) && !temporary
}

/// The text of a file, or the reason why its content is no text.
fn read_text(path: &Path) -> io::Result<Result<String, String>> {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Err("not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed shows that the file is too large. The file may also grow while it is read.
    if metadata.len() > MAX_FILE || file.take(MAX_FILE + 1).read_to_end(&mut bytes)? as u64 > MAX_FILE {
        return Ok(Err(format!("larger than {} MiB", MAX_FILE >> 20)));
    }
    Ok(String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("not UTF-8 text from byte {at} on")
    }))
}

/// Pods bound to no node become pods of this node, like static pods.
fn placed_here(mut view: KnownObjects, node_name: &str) -> KnownObjects {
    let here = if node_name.is_empty() { UNNAMED } else { node_name };
    for pod in view.pods.iter_mut().filter(|pod| pod.spec.node_name.is_empty()) {
        here.clone_into(&mut Arc::make_mut(pod).spec.node_name);
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_of_other_nodes_are_left_out() {
        let pod = |name: &str, node: &str| {
            format!(
                "---\n{{kind: Pod, metadata: {{name: {name}, uid: u-{name}}}, spec: {{nodeName: '{node}', containers: [{{name: c}}]}}}}\n"
            )
        };
        let text = [pod("here", "n"), pod("there", "m"), pod("anywhere", "")].concat();
        let parsed = |node: &str| parse_within("test.yaml", &text, node, &ObjectMemory::new(u64::MAX)).unwrap();
        let names = |node: &str| -> Vec<String> {
            let pods = placed_here(parsed(node).view, node).pods.into_iter();
            pods.map(|pod| format!("{} {}", pod.metadata.name, pod.spec.node_name))
                .collect()
        };
        assert_eq!(names("n"), ["here n", "anywhere n"]);
        assert_eq!(names(""), ["here n", "there m", "anywhere this-node"]);
        let held = |node: &str| parsed(node).held["default"];
        assert!(held("n") < held(""), "they take no memory");
    }

    #[test]
    fn one_namespace_leaves_room_for_manifests() {
        let vpa = |namespace: &str, name: &str, container: &str| {
            format!(
                "---\n{{kind: VerticalPodAutoscaler, metadata: {{name: {name}, namespace: {namespace}, annotations: \
                 {{example.com/notes: x, vscaled.io/act: 'true'}}}}, spec: {{targetRef: {{kind: Deployment, name: web}}, \
                 resourcePolicy: {{containerPolicies: [{{containerName: {container}}}]}}}}}}\n"
            )
        };
        let directory = tempfile::tempdir().unwrap();
        let long = "x".repeat(32 << 10);
        for file in ["a", "b", "c", "d"] {
            let fat: String = (0..200)
                .map(|number| vpa("greedy", &format!("{file}-{number}"), &long))
                .collect();
            fs::write(directory.path().join(format!("{file}.yaml")), fat).unwrap();
        }
        let few = ["v1", "v2", "v3"].map(|name| vpa("honest", name, "app")).concat();
        fs::write(directory.path().join("honest.yaml"), few).unwrap();
        let mut reader = Reader::new(directory.path().to_owned(), String::new());
        let (view, problems) = reader.read(&HashSet::new());
        let kept = |view: &NodeView, namespace: &str| view.namespaces[namespace].vpas.len();
        assert!(kept(&view, "greedy") < 500, "{}", kept(&view, "greedy"));
        assert_eq!(kept(&view, "honest"), 3);
        let mut vpas = view.namespaces.values().flat_map(|known| &known.vpas);
        assert!(vpas.all(|vpa| vpa.metadata.annotations.len() == 1));
        let (_, problem) = problems.first().unwrap();
        assert!(problem.contains("VerticalPodAutoscaler greedy/") && problem.contains("more objects are left out"));
        for file in ["a.yaml", "b.yaml"] {
            fs::remove_file(directory.path().join(file)).unwrap();
        }
        reader.read(&HashSet::new());
        let (view, _) = reader.read(&HashSet::new());
        let mut vpas = view.namespaces.values().flat_map(|known| &known.vpas);
        let has_room = vpas.any(|vpa| vpa.metadata.name.starts_with("d-"));
        assert!(has_room, "what was left out has room now");
    }
}
