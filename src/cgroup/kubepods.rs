//! The root of all pods, and the pods below it.
//!
//! In comes the layout; out come the kubelet's root with the driver that made it ([`Kubepods::find`]) and the pods and
//! containers that have cgroups now ([`Kubepods::scan`]). Reads directory names only. A cgroup that vanishes during a scan is
//! no error; the result leaves it out.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, bail};

use super::file::directories_in;
use super::hierarchy::unreadable;
use super::{Hierarchy, Place, PodPlace};
use crate::model::{CgroupPath, Driver, LiveContainer, Resource};

/// How deep below the mount the root may be: `/machine.slice/libpod-<id>.scope/container/kubelet.slice/<root>`.
const DEPTH: usize = 5;

/// The root of all pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubepods {
    pub path: CgroupPath,
    /// Which program makes the cgroups below the root.
    pub driver: Driver,
}

/// A pod that has a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEntry {
    pub place: PodPlace,
    pub path: CgroupPath,
    /// The pod's containers and its sandbox: only the runtime shows which one is the sandbox. Open their paths with
    /// [`Cgroup::open`](super::Cgroup::open), which also finds crun's inner cgroup.
    pub containers: Vec<LiveContainer>,
}

impl Kubepods {
    /// The root at a configured path.
    ///
    /// Errors: the name is not that of such a root.
    pub fn at(path: CgroupPath) -> Result<Self> {
        match path.name().and_then(driver_of) {
            Some(driver) => Ok(Self { path, driver }),
            None => bail!("{path} does not end in kubepods or kubepods.slice, so it is not the root of all pods"),
        }
    }

    /// Searches for the root, level by level; for the root of this driver only, where the runtime names one
    /// (`RuntimeConfig`). Takes the least deep root with containers, else the least deep one with pods, else the least deep one. A
    /// node whose driver or whose cgroup root was changed keeps the old root, perhaps with cgroups of pods that have ended. Docker
    /// Desktop has a root within a root. No root is inside a pod, where a container can make cgroups of any name.
    pub fn find(hierarchy: &Hierarchy, driver: Option<Driver>) -> Result<Self> {
        let mount = hierarchy.mount(Resource::Cpu);
        let mut level = vec![CgroupPath::root()];
        let mut found = Vec::new();
        for depth in 0..DEPTH {
            let mut next = Vec::new();
            for parent in &level {
                next.extend(children(mount, parent)?);
            }
            next.retain(|path| !is_in_pod(path));
            for root in next.iter().filter_map(|path| Self::at(path.clone()).ok()) {
                if driver.is_none_or(|driver| driver == root.driver) {
                    found.push(((root.has_containers(hierarchy)?, Reverse(depth)), root));
                }
            }
            if found.iter().any(|(rank, _)| rank.0 == Some(true)) {
                break;
            }
            level = next;
        }
        let best = found.iter().map(|(rank, _)| *rank).max();
        found.retain(|(rank, _)| Some(*rank) == best);
        match found.as_slice() {
            [(_, root)] => return Ok(root.clone()),
            [] => {}
            roots => {
                let paths: Vec<_> = roots.iter().map(|(_, root)| root.path.as_str()).collect();
                let paths = paths.join(", ");
                bail!("several kubelet roots: {paths}; configure the path of the one to manage");
            }
        }
        let names = match driver {
            None => "kubepods or kubepods.slice",
            Some(Driver::Cgroupfs) => "kubepods",
            Some(Driver::Systemd) => "kubepods.slice",
        };
        bail!(
            "no {names} within {DEPTH} levels below {}: is the kubelet running on this machine? Else configure the path",
            mount.display()
        );
    }

    /// Whether a pod below this root has a container; `None` without pods.
    fn has_containers(&self, hierarchy: &Hierarchy) -> Result<Option<bool>> {
        let mut found = None;
        self.visit(hierarchy, |pod| {
            found = Some(!pod.containers.is_empty());
            found != Some(true)
        })?;
        Ok(found)
    }

    /// The level of a path below this root, and the names in the path.
    pub fn place(&self, path: &CgroupPath) -> Option<Place> {
        Place::parse_below(&self.path, path)
    }

    /// Lists the pods that have a cgroup now, in path order.
    pub fn scan(&self, hierarchy: &Hierarchy) -> Result<Vec<PodEntry>> {
        let mut pods = Vec::new();
        self.visit(hierarchy, |pod| {
            pods.push(pod);
            true
        })?;
        pods.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(pods)
    }

    /// Passes the pods that have a cgroup now to `each`, until that returns false.
    fn visit(&self, hierarchy: &Hierarchy, mut each: impl FnMut(PodEntry) -> bool) -> Result<()> {
        let mount = hierarchy.mount(Resource::Cpu);
        let mut parents = vec![self.path.clone()];
        while let Some(parent) = parents.pop() {
            for path in children(mount, &parent)? {
                match self.place(&path) {
                    Some(Place::Qos(_)) => parents.push(path),
                    Some(Place::Pod(place)) => {
                        let entry = |path: CgroupPath| match self.place(&path) {
                            Some(Place::Container { id, .. }) => Some(LiveContainer { id, path }),
                            _ => None,
                        };
                        let mut containers: Vec<_> = children(mount, &path)?.into_iter().filter_map(entry).collect();
                        containers.sort_by(|a, b| a.path.cmp(&b.path));
                        containers.shrink_to_fit();
                        let pod = PodEntry {
                            place,
                            path,
                            containers,
                        };
                        if !each(pod) {
                            return Ok(());
                        }
                    }
                    Some(Place::Kubepods | Place::Container { .. } | Place::Other(_)) | None => {}
                }
            }
        }
        Ok(())
    }
}

fn is_in_pod(path: &CgroupPath) -> bool {
    matches!(
        Place::parse(path),
        Some(Place::Pod(_) | Place::Container { .. } | Place::Other(_))
    )
}

/// The driver that makes the cgroups below the root of all pods with this name.
pub(super) fn driver_of(name: &str) -> Option<Driver> {
    if name == "kubepods" {
        return Some(Driver::Cgroupfs);
    }
    let outer = name.strip_suffix("kubepods.slice")?;
    (outer.is_empty() || outer.ends_with('-')).then_some(Driver::Systemd)
}

/// The children of a cgroup, in a hierarchy with this mount; none if the cgroup is gone. Leaves out names that are not
/// UTF-8: no kubelet makes them.
pub fn children(mount: &Path, parent: &CgroupPath) -> Result<Vec<CgroupPath>> {
    let path = parent.under(mount);
    let names = directories_in(&path).map_err(|error| unreadable(&path, &error))?;
    let child = |name: &OsString| parent.child(name.to_str()?).ok();
    Ok(names.iter().filter_map(child).collect())
}

#[cfg(test)]
mod tests;
