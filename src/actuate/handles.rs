//! The open cgroups of one live pod. Callers close them as soon as they can: a node has thousands.

use indexmap::IndexMap;

use crate::cgroup::{Cgroup, CgroupError, Hierarchy, Identity};
use crate::model::{LivePod, PodTree, Target};

/// The open cgroups of a pod, the pod's first. They stay the same cgroups, even if their paths now lead to other ones.
#[derive(Debug, Default, derive_more::Deref)]
pub struct PodHandles(IndexMap<Target, Cgroup>);

impl PodHandles {
    /// Opens the cgroups of the pod and of its containers. Leaves out a container that has ended.
    ///
    /// Errors: the pod's cgroup, or a container's that exists, cannot be opened.
    pub fn open(hierarchy: &Hierarchy, live: &LivePod) -> Result<Self, CgroupError> {
        let mut handles = IndexMap::with_capacity(1 + live.containers.len());
        handles.insert(Target::Pod, Cgroup::open(hierarchy, &live.path)?);
        for (name, container) in &live.containers {
            let cgroup = CgroupError::unless_gone(Cgroup::open(hierarchy, &container.path))?;
            handles.extend(cgroup.map(|cgroup| (Target::Container(name.clone()), cgroup)));
        }
        Ok(Self(handles))
    }

    /// Opens a pod's cgroups, and reads their files.
    ///
    /// Errors: as of [`Self::open`] and [`Self::read`].
    pub(crate) fn open_and_read(hierarchy: &Hierarchy, live: &LivePod) -> Result<(Self, PodTree), CgroupError> {
        let handles = Self::open(hierarchy, live)?;
        let tree = handles.read()?;
        tracing::debug!(containers = tree.containers.len(), "the pod's cgroups are read");
        Ok((handles, tree))
    }

    /// The identities of the cgroups, the pod's first.
    pub fn identities(&self) -> Vec<Identity> {
        self.values().map(|cgroup| cgroup.outer().identity()).collect()
    }

    /// Reads every file. Leaves out a container that has ended.
    ///
    /// Errors: a file of the pod, or of a container that exists, cannot be read.
    pub fn read(&self) -> Result<PodTree, CgroupError> {
        let mut tree = PodTree::default();
        for (target, cgroup) in self.iter() {
            match target {
                Target::Pod => tree.pod = cgroup.read_all()?,
                Target::Container(name) => {
                    if let Some(settings) = CgroupError::unless_gone(cgroup.read_all())? {
                        tree.containers.insert(name.clone(), settings);
                    }
                }
            }
        }
        Ok(tree)
    }

    /// Whether cgroups are open, and none of them has ended since.
    pub(crate) fn all_exist(&self) -> bool {
        !self.is_empty() && self.values().all(|cgroup| cgroup.outer().check().is_ok())
    }

    /// Every cgroup with its target, the pod's first.
    pub fn iter(&self) -> impl Iterator<Item = (&Target, &Cgroup)> {
        self.0.iter()
    }
}
