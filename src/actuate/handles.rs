//! The open cgroups of one live pod. Nobody keeps them for longer than it takes to do something: a node has thousands.

use std::collections::BTreeMap;

use crate::cgroup::{Cgroup, CgroupError, Hierarchy, Identity};
use crate::model::{LivePod, PodTree, Target};

/// The cgroups of a pod, held open: the same ones until they are opened anew, whatever happens to their paths.
#[derive(Debug)]
pub struct PodHandles {
    pod: Cgroup,
    /// By name. Few, and many pods have them: a tree would take ten times the room.
    containers: Box<[(String, Cgroup)]>,
}

impl PodHandles {
    /// Opens the pod's cgroup and those of its containers. A container that ended meanwhile is left out.
    ///
    /// Errors: [`CgroupError`] of the first cgroup that cannot be opened for another reason, or of the pod's.
    pub fn open(hierarchy: &Hierarchy, live: &LivePod) -> Result<Self, CgroupError> {
        let pod = Cgroup::open(hierarchy, &live.path)?;
        let mut containers = Vec::with_capacity(live.containers.len());
        for (name, container) in &live.containers {
            match Cgroup::open(hierarchy, &container.path) {
                Ok(cgroup) => {
                    containers.push((name.clone(), cgroup));
                }
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            pod,
            containers: containers.into_boxed_slice(),
        })
    }

    /// Opens a pod's cgroups, and reads what they hold.
    ///
    /// Errors: as of [`Self::open`] and [`Self::read`].
    pub(super) fn open_and_read(hierarchy: &Hierarchy, live: &LivePod) -> Result<(Self, PodTree), CgroupError> {
        let handles = Self::open(hierarchy, live)?;
        let tree = handles.read()?;
        Ok((handles, tree))
    }

    /// Which cgroups they are.
    pub fn identities(&self) -> Vec<Identity> {
        self.iter().map(|(_, cgroup)| cgroup.identity()).collect()
    }

    /// What every file holds now. A container that ended meanwhile is left out.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read for another reason, or of the pod's.
    pub fn read(&self) -> Result<PodTree, CgroupError> {
        let mut tree = PodTree {
            pod: self.pod.read_all()?,
            containers: BTreeMap::new(),
        };
        for (name, cgroup) in &*self.containers {
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

    /// The cgroup of that target.
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
