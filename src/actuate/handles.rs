//! The open cgroups of one live pod. Callers close them as soon as they can: a node has thousands.

use crate::cgroup::{Cgroup, CgroupError, Hierarchy, Identity};
use crate::model::{LivePod, PodTree, Target};

/// The open cgroups of a pod, the pod's first. They stay the same cgroups, even if their paths now lead to other ones.
#[derive(Debug)]
pub struct PodHandles(Vec<(Target, Cgroup)>);

impl PodHandles {
    /// Opens the cgroups of the pod and of its containers. Leaves out a container that has ended.
    ///
    /// Errors: the pod's cgroup, or a container's that exists, cannot be opened.
    pub fn open(hierarchy: &Hierarchy, live: &LivePod) -> Result<Self, CgroupError> {
        let mut handles = Vec::with_capacity(1 + live.containers.len());
        handles.push((Target::Pod, Cgroup::open(hierarchy, &live.path)?));
        for (name, container) in &live.containers {
            match Cgroup::open(hierarchy, &container.path) {
                Ok(cgroup) => handles.push((Target::Container(name.clone()), cgroup)),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(handles))
    }

    /// Opens a pod's cgroups, and reads their files.
    ///
    /// Errors: as of [`Self::open`] and [`Self::read`].
    pub(super) fn open_and_read(hierarchy: &Hierarchy, live: &LivePod) -> Result<(Self, PodTree), CgroupError> {
        let handles = Self::open(hierarchy, live)?;
        let tree = handles.read()?;
        tracing::debug!(containers = tree.containers.len(), "the pod's cgroups are read");
        Ok((handles, tree))
    }

    /// The identities of the cgroups, the pod's first.
    pub fn identities(&self) -> Vec<Identity> {
        self.iter().map(|(_, cgroup)| cgroup.identity()).collect()
    }

    /// Reads every file. Leaves out a container that has ended.
    ///
    /// Errors: a file of the pod, or of a container that exists, cannot be read.
    pub fn read(&self) -> Result<PodTree, CgroupError> {
        let mut tree = PodTree::default();
        for (target, cgroup) in self.iter() {
            match (target, cgroup.read_all()) {
                (Target::Pod, settings) => tree.pod = settings?,
                (Target::Container(name), Ok(settings)) => drop(tree.containers.insert(name.clone(), settings)),
                (Target::Container(_), Err(error)) if error.is_gone() => {}
                (Target::Container(_), Err(error)) => return Err(error),
            }
        }
        Ok(tree)
    }

    /// Finds the open cgroup of a target, if the pod has one.
    pub fn get(&self, target: &Target) -> Option<&Cgroup> {
        self.iter()
            .find_map(|(open, cgroup)| (open == target).then_some(cgroup))
    }

    /// Every cgroup with its target, the pod's first.
    pub fn iter(&self) -> impl Iterator<Item = (&Target, &Cgroup)> {
        self.0.iter().map(|(target, cgroup)| (target, cgroup))
    }
}
