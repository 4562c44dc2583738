//! The open cgroups of one live pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cgroup::{Cgroup, CgroupError, CgroupPath, Hierarchy};
use crate::objects::{Pod, PodId};
use crate::plan::{PodTree, Quotas, Target};

/// A pod that has a cgroup, and its containers that have one and a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePod {
    /// Which pod.
    pub id: PodId,
    /// Where its cgroup is.
    pub path: CgroupPath,
    /// Its containers by name.
    pub containers: BTreeMap<String, LiveContainer>,
}

/// A container that has a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveContainer {
    /// The runtime's id.
    pub id: String,
    /// Where its cgroup is.
    pub path: CgroupPath,
}

impl LivePod {
    /// What names one of its cgroups among all that ever have its path: a container's id.
    pub(crate) fn cgroup_id(&self, target: &Target) -> &str {
        let container = match target {
            Target::Pod => None,
            Target::Container(name) => self.containers.get(name),
        };
        container.map_or(Quotas::POD, |container| &container.id)
    }
}

/// A pod that runs, together with the object that describes it. Nothing else is ever written to, or asked for.
#[derive(Debug, Clone)]
pub struct BoundPod {
    object: Arc<Pod>,
    live: Arc<LivePod>,
}

impl BoundPod {
    /// None if the object describes another pod ([`Pod::describes`]).
    #[must_use]
    pub fn new(object: &Arc<Pod>, live: &Arc<LivePod>) -> Option<Self> {
        object.describes(&live.id).then(|| Self {
            object: Arc::clone(object),
            live: Arc::clone(live),
        })
    }

    /// The pod as its source describes it.
    #[must_use]
    pub const fn object(&self) -> &Arc<Pod> {
        &self.object
    }

    /// Its cgroups and their identity.
    #[must_use]
    pub const fn live(&self) -> &Arc<LivePod> {
        &self.live
    }
}

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
    /// # Errors
    /// [`CgroupError`] of the first cgroup that cannot be opened for another reason, or of the pod's.
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

    /// What every file holds now. A container that ended meanwhile is left out.
    ///
    /// # Errors
    /// [`CgroupError`] of the first file that cannot be read for another reason, or of the pod's.
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
    #[must_use]
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
