//! Reads the files of the directory, each again only when it may have changed.
//!
//! A file is taken for unchanged while device, inode, size and both times of change are. A file that changed just before
//! it was read is read once more next time: the clock of a file system ticks every few milliseconds, and a second change
//! within a tick leaves no trace (git calls such entries racy).

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Problem;
use super::place::placed_here;
use crate::sources::{NodeView, parse_manifests};

/// The largest file that is read, in bytes. The manifests of a full node take some hundred KiB.
pub(super) const MAX_FILE: u64 = 64 << 20;

/// More than a tick of any file system's clock.
const TICK: Duration = Duration::from_millis(50);

/// The directory as it was last read.
#[derive(Debug)]
pub(super) struct Reader {
    directory: PathBuf,
    /// Empty if not known.
    node_name: String,
    /// What is wrong with the directory itself; at first, that nobody has read it.
    problem: Option<String>,
    files: BTreeMap<OsString, Manifest>,
}

/// One file.
#[derive(Debug, Default)]
struct Manifest {
    /// Identifies what was last read; none if it must be read again.
    stamp: Option<Stamp>,
    /// The last content that could be read.
    good: NodeView,
    /// What is wrong with the content now.
    problem: Option<String>,
}

/// Changes whenever the file does, ticks aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

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

    /// The last good content of each file, by name.
    pub(super) fn files(&self) -> impl Iterator<Item = (&OsStr, &NodeView)> {
        self.files.iter().map(|(name, file)| (name.as_os_str(), &file.good))
    }

    /// What is wrong with the directory and with single files.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        let directory = self.problem.iter().map(|message| (self.directory.clone(), message));
        let files = self.files.iter().filter_map(|(name, file)| {
            let message = file.problem.as_ref()?;
            Some((self.directory.join(name), message))
        });
        directory.chain(files).map(|(path, message)| Problem {
            path,
            message: message.clone(),
        })
    }

    /// The path of a file in the directory.
    pub(super) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.directory.join(name)
    }

    /// Reads a file if it may have changed, and says whether its content or its problem did.
    fn read_file(&mut self, name: &OsStr) -> bool {
        let path = self.directory.join(name);
        let known = self.files.get(name).and_then(|file| file.stamp);
        let outcome = match fs::metadata(&path) {
            Ok(metadata) if known == Some(Stamp::of(&metadata)) => return false,
            // Gone since the directory was listed; the next event tells.
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
                return false;
            }
            Ok(_) => read_manifest(&path, name, &self.node_name),
            Err(error) => Err((None, format!("cannot be read: {error}"))),
        };
        let file = self.files.entry(name.to_owned()).or_default();
        match outcome {
            Ok((stamp, view)) => {
                let changed = file.good != view || file.problem.is_some();
                *file = Manifest {
                    stamp,
                    good: view,
                    problem: None,
                };
                changed
            }
            Err((stamp, problem)) => {
                file.stamp = stamp;
                let problem = Some(problem);
                std::mem::replace(&mut file.problem, problem.clone()) != problem
            }
        }
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether any later change will show in the stamp.
    fn is_settled(&self, now: SystemTime) -> bool {
        let (seconds, nanoseconds) = self.changed;
        match (u64::try_from(seconds), u32::try_from(nanoseconds)) {
            (Ok(seconds), Ok(nanoseconds)) => now
                .duration_since(UNIX_EPOCH + Duration::new(seconds, nanoseconds))
                .is_ok_and(|age| age > TICK),
            _ => false,
        }
    }
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

/// Whether a name is that of a manifest: by its ending, and not one that editors give to what they are not done with
/// (`.#x.yaml`, `#x.yaml#`, `x.yaml~`).
fn is_manifest(name: &OsStr) -> bool {
    let ending = Path::new(name).extension().and_then(OsStr::to_str);
    let temporary = [b'.', b'#']
        .iter()
        .any(|mark| name.as_encoded_bytes().starts_with(&[*mark]));
    matches!(ending, Some("yaml" | "yml" | "json")) && !temporary
}

/// What a file holds, or why it cannot be used; beside either, what identifies this content.
fn read_manifest(
    path: &Path,
    name: &OsStr,
    node_name: &str,
) -> Result<(Option<Stamp>, NodeView), (Option<Stamp>, String)> {
    let unreadable = |error: io::Error| (None, format!("cannot be read: {error}"));
    // Opening a pipe would wait for its writer.
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err((None, "not a regular file".to_owned()));
    }
    let stamp = Some(Stamp::of(&metadata)).filter(|stamp| stamp.is_settled(SystemTime::now()));
    let text = read_text(&mut file, metadata.len()).map_err(unreadable)?;
    let text = text.map_err(|problem| (stamp, problem))?;
    let origin = name.to_string_lossy();
    match parse_manifests(&origin, &text) {
        Ok(manifests) => {
            for warning in manifests.warnings {
                tracing::debug!("{warning}");
            }
            Ok((stamp, placed_here(manifests.view, node_name)))
        }
        Err(error) => {
            let message = error.to_string();
            let prefix = format!("{origin}: ");
            Err((stamp, message.strip_prefix(&prefix).unwrap_or(&message).to_owned()))
        }
    }
}

/// The file's text; the inner error says why there is none.
fn read_text(file: &mut File, size: u64) -> io::Result<Result<String, String>> {
    let too_large = || Err(format!("larger than {} MiB", MAX_FILE >> 20));
    if size > MAX_FILE {
        return Ok(too_large());
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_FILE) {
        return Ok(too_large());
    }
    Ok(String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("not UTF-8 text from byte {at} on")
    }))
}
