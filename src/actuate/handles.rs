//! The open cgroups of one live pod. Callers close them as soon as they can: a node has thousands.

use std::collections::BTreeMap;

use crate::cgroup::{Cgroup, CgroupError, Hierarchy, Identity};
use crate::model::{LivePod, PodTree, Target};

/// The open cgroups of a pod. They stay the same cgroups, even if their paths now lead to other ones.
#[derive(Debug)]
pub struct PodHandles {
    pod: Cgroup,
    /// By name. A vector, because a tree would take ten times the memory.
    containers: Vec<(String, Cgroup)>,
}

impl PodHandles {
    /// Opens the cgroups of the pod and of its containers. Leaves out a container that has ended.
    ///
    /// Errors: the pod's cgroup, or a container's that exists, cannot be opened.
    pub fn open(hierarchy: &Hierarchy, live: &LivePod) -> Result<Self, CgroupError> {
        let pod = Cgroup::open(hierarchy, &live.path)?;
        let mut containers = Vec::with_capacity(live.containers.len());
        for (name, container) in &live.containers {
            match Cgroup::open(hierarchy, &container.path) {
                Ok(cgroup) => containers.push((name.clone(), cgroup)),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { pod, containers })
    }

    /// Opens a pod's cgroups, and reads their files.
    ///
    /// Errors: as of [`Self::open`] and [`Self::read`].
    pub(super) fn open_and_read(hierarchy: &Hierarchy, live: &LivePod) -> Result<(Self, PodTree), CgroupError> {
        let handles = Self::open(hierarchy, live)?;
        let tree = handles.read()?;
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
        let mut tree = PodTree {
            pod: self.pod.read_all()?,
            containers: BTreeMap::new(),
        };
        for (name, cgroup) in &self.containers {
            match cgroup.read_all() {
                Ok(settings) => {
                    tree.containers.insert(name.clone(), settings);
                }
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(tree)
    }

    /// Finds the open cgroup of a target, if the pod has one.
    pub fn get(&self, target: &Target) -> Option<&Cgroup> {
        match target {
            Target::Pod => Some(&self.pod),
            Target::Container(name) => {
                let found = self.containers.iter().find(|(container, _)| container == name);
                found.map(|(_, cgroup)| cgroup)
            }
        }
    }

    /// Every cgroup with its target, the pod's first.
    pub fn iter(&self) -> impl Iterator<Item = (Target, &Cgroup)> {
        let containers = self
            .containers
            .iter()
            .map(|(name, cgroup)| (Target::Container(name.clone()), cgroup));
        std::iter::once((Target::Pod, &self.pod)).chain(containers)
    }
}
