//! The pods that run on the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::objects::{Pod, PodId};
use crate::model::{CgroupPath, Target};

/// A pod that has a cgroup, and its containers that have a cgroup and a known name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePod {
    pub id: PodId,
    pub path: CgroupPath,
    pub containers: BTreeMap<String, LiveContainer>,
}

/// A container that has a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveContainer {
    pub id: String,
    pub path: CgroupPath,
}

impl LivePod {
    /// The id of the pod's own cgroup beside those of its containers. No runtime gives a container this id.
    pub const POD_CGROUP: &str = "pod";

    /// The id of one of the pod's cgroups. A container that starts again has another id.
    pub(crate) fn cgroup_id(&self, target: &Target) -> &str {
        let container = target.container().and_then(|name| self.containers.get(name));
        container.map_or(Self::POD_CGROUP, |container| &container.id)
    }
}

/// A pod that runs, together with the object that describes it. The agent writes to no other pod and requests nothing for one.
#[derive(Debug, Clone)]
pub struct BoundPod {
    object: Arc<Pod>,
    live: Arc<LivePod>,
}

impl BoundPod {
    /// `None` if the object describes another pod ([`Pod::describes`]).
    pub fn new(object: &Arc<Pod>, live: &Arc<LivePod>) -> Option<Self> {
        object.describes(&live.id).then(|| Self {
            object: Arc::clone(object),
            live: Arc::clone(live),
        })
    }

    /// The pod's object from its source.
    pub const fn object(&self) -> &Arc<Pod> {
        &self.object
    }

    pub const fn live(&self) -> &Arc<LivePod> {
        &self.live
    }
}
