//! The node as a pass needs it: where cgroups are, what the kernel is like, whom to tell.

use std::sync::Arc;

use super::floors::Floors;
use super::lanes::Lanes;
use super::shrink::Freezer;
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{Hierarchy, Kubepods};
use crate::plan::NodeTraits;
use crate::runtime::ContainerRuntime;

/// The container runtime, as far as there is one.
#[derive(Debug, Clone)]
pub enum RuntimeLink {
    /// There is none to tell: so it is configured.
    None,
    /// There should be one, and none was found yet: what it is to be told is owed. With the reason.
    Away(String),
    /// It was found; whether it answers now shows when it is called.
    Found(Arc<dyn ContainerRuntime>),
}

/// Everything a pass needs to know about the node. Replaced whole when something about it changes.
#[derive(Debug, Clone)]
pub struct Node {
    /// The mounts.
    pub hierarchy: Hierarchy,
    /// The root of all pods.
    pub kubepods: Kubepods,
    /// What plans depend on.
    pub traits: NodeTraits,
    /// The container runtime.
    pub runtime: RuntimeLink,
    /// Its name and version.
    pub runtime_name: Option<String>,
    /// systemd, where it drives the tree and can be reached.
    pub units: Option<Arc<Systemd>>,
    /// How much may be done at once; shared by all passes, however often the node is replaced.
    pub lanes: Arc<Lanes>,
    /// Stops processes for the moment in which a memory limit is lowered.
    pub freezer: Arc<Freezer>,
    /// Limits that were grown in an emergency; shared like the lanes.
    pub floors: Arc<Floors>,
}
