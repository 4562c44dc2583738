//! The pod's cgroups below the demo's own, with the values that `vscalectl plan` says such a pod is created with.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;

/// The advice for a machine that offers only a container.
const IN_A_CONTAINER: &str =
    "run the demo on the machine itself, or in a container started with --privileged --cgroupns=host";

/// The pod's cgroups.
#[derive(Debug, Default)]
pub(crate) struct Pod {
    /// The directories of each container, and those of the pod under that name.
    directories: Vec<(String, PathBuf)>,
    files: Vec<PathBuf>,
}

impl Pod {
    /// Makes the cgroups of the pod in `manifest` and writes their values.
    pub(crate) fn make(stage: &Stage, manifest: &Path) -> Result<Self> {
        let manifest = manifest.to_string_lossy();
        let arguments = [
            "plan",
            "-f",
            &manifest,
            "-o",
            "json",
            "--cgroup",
            stage.cgroup_version(),
        ];
        let plan: Value = serde_json::from_str(&stage.vscalectl(&arguments)?)?;
        let mut pod = Self::default();
        for cgroup in plan["pods"][0]["cgroups"].as_array().context("no plan for a pod")? {
            let name = cgroup["name"].as_str().unwrap_or("pod");
            for mount in &stage.mounts {
                let directory =
                    make_with_parents(&mount.join(&stage.name), cgroup["path"].as_str().unwrap_or_default())?;
                pod.directories.push((name.to_owned(), directory));
            }
            for (file, value) in cgroup["files"].as_object().context("no files")? {
                let (path, value) = (pod.file(name, &[file])?, value.as_str().unwrap_or_default());
                write(&path, value)?;
                if name == "pod" && ["cpu.shares", "cpu.weight"].contains(&file.as_str()) {
                    // The kubelet gives a QoS class the cpu requests of all its pods, here of the only one.
                    write(&path.with_file_name(format!("../{file}")), value)?;
                }
                pod.files.push(path);
            }
        }
        Ok(pod)
    }

    pub(crate) fn directories_of(&self, container: &str) -> impl Iterator<Item = &Path> {
        let named = self.directories.iter().filter(move |(name, _)| name == container);
        named.map(|(_, directory)| directory.as_path())
    }

    /// A file of a container's cgroup, under the one of its names that this kernel has.
    pub(crate) fn file(&self, container: &str, names: &[&str]) -> Result<PathBuf> {
        let paths = names.iter().flat_map(|name| {
            self.directories_of(container)
                .map(move |directory| directory.join(name))
        });
        paths
            .into_iter()
            .find(|path| path.exists())
            .with_context(|| format!("{container} has no {names:?}"))
    }

    /// The memory in use, in bytes.
    pub(crate) fn memory_in_use(&self, container: &str) -> Result<u64> {
        let file = self.file(container, &["memory.current", "memory.usage_in_bytes"])?;
        Ok(fs::read_to_string(file)?.trim().parse()?)
    }

    /// The current content of every file with a planned value.
    pub(crate) fn read(&self) -> Result<BTreeMap<PathBuf, String>> {
        let read = |path: &PathBuf| Ok((path.clone(), fs::read_to_string(path)?));
        self.files.iter().map(read).collect()
    }

    /// Checks that every file holds what it held.
    pub(crate) fn expect(&self, before: &BTreeMap<PathBuf, String>) -> Result<String> {
        let now = self.read()?;
        ensure!(now == *before, "values are not what they were: {now:?}");
        Ok(format!("all {} values are as they were", now.len()))
    }

    /// A text without the long beginnings of paths.
    pub(crate) fn shorten(&self, text: &str) -> String {
        let whole = self
            .directories
            .iter()
            .map(|(name, path)| (name, path.to_string_lossy().into_owned()));
        let below_mount =
            |(name, path): (_, String)| (name, path[path.find("/vscaled-demo-").unwrap_or(0)..].to_owned());
        // A container's path begins with its pod's, and a whole path ends with the one below the mount.
        let paths = whole.clone().map(below_mount).chain(whole).collect::<Vec<_>>();
        let replace = |text: String, (name, path): &(&String, String)| text.replace(path, &format!("…/{name}"));
        paths.iter().rev().fold(text.to_owned(), replace)
    }
}

/// Checks that the root cgroup of v2 enables the controllers for its children. The demo does not change that setting
/// of the machine.
pub(crate) fn check_delegation(mount: &Path) -> Result<()> {
    let file = mount.join("cgroup.subtree_control");
    let Ok(enabled) = fs::read_to_string(&file) else {
        return Ok(());
    };
    let wanted = [("cpu", "+cpu"), ("memory", "+memory")].into_iter();
    let missing = wanted.filter(|(name, _)| !enabled.split_whitespace().any(|enabled| enabled == *name));
    let (missing, file): (Vec<_>, _) = (missing.map(|(_, add)| add).collect(), file.display());
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" ");
    bail!(
        "cgroups do not get {missing}: as root, `echo '{missing}' > {file}` hands it down (`-` for `+` takes it back); \
         where that says \"busy\", this is a container: {IN_A_CONTAINER}"
    )
}

/// Creates a cgroup below `root` and its parents. Parents enable the controllers for their children.
fn make_with_parents(root: &Path, path: &str) -> Result<PathBuf> {
    let mut directory = root.to_owned();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let control = directory.join("cgroup.subtree_control");
        if control.exists() {
            write(&control, "+cpu +memory")?;
        }
        directory.push(name);
        if !directory.exists() {
            fs::create_dir(&directory).with_context(|| format!("{}; {IN_A_CONTAINER}", directory.display()))?;
        }
    }
    Ok(directory)
}

fn write(file: &Path, value: &str) -> Result<()> {
    fs::write(file, value).with_context(|| format!("{}: cannot write {value:?}", file.display()))
}
