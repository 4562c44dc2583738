//! The node as a pass needs it: where cgroups are, what the kernel is like, whom to tell.

use std::sync::Arc;

use super::concurrency::Concurrency;
use super::least_limits::LeastLimits;
use super::shrink::Freezer;
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{Hierarchy, Kubepods};
use crate::decide::StaticManagers;
use crate::model::{KubeletVersion, NodeTraits};
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

/// How a trait of the node is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownFrom {
    Configured,
    /// The runtime, a container of it, or the Node object says it.
    Reported,
    /// Nothing says it: it follows from the names in the tree, or is assumed.
    Inferred,
}

impl KnownFrom {
    /// Where the answer comes from, of those who may give one.
    pub const fn of<T: Copy>(configured: Option<T>, reported: Option<T>) -> Self {
        match (configured, reported) {
            (Some(_), _) => Self::Configured,
            (None, Some(_)) => Self::Reported,
            (None, None) => Self::Inferred,
        }
    }
}

/// Everything a pass needs to know about the node. Replaced whole when something about it changes.
#[derive(Debug, Clone)]
pub struct Node {
    pub hierarchy: Hierarchy,
    /// The root of all pods.
    pub kubepods: Kubepods,
    pub traits: NodeTraits,
    /// What the kubelet assigns to pods for good.
    pub managers: StaticManagers,
    pub runtime: RuntimeLink,
    pub runtime_name: Option<String>,
    /// How the driver is known.
    pub driver_from: KnownFrom,
    /// How the formula is known.
    pub formula_from: KnownFrom,
    /// How the kubelet's version is known.
    pub kubelet_from: KnownFrom,
    /// systemd, where it drives the tree and can be reached.
    pub units: Option<Arc<Systemd>>,
    /// How much may be done at once; shared by all passes, however often the node is replaced.
    pub concurrency: Arc<Concurrency>,
    /// Stops processes for the moment in which a memory limit is lowered.
    pub freezer: Arc<Freezer>,
    /// Limits that were grown in an emergency; shared like the concurrency.
    pub least_limits: Arc<LeastLimits>,
}

impl Node {
    /// The node with the kubelet's version that the Node object states, unless a version is configured.
    #[must_use]
    pub fn with_stated_kubelet(mut self: Arc<Self>, stated: Option<KubeletVersion>) -> Arc<Self> {
        let is_news = |stated: &KubeletVersion| self.known_kubelet() != Some(*stated);
        if self.kubelet_from != KnownFrom::Configured
            && let Some(stated) = stated.filter(is_news)
        {
            let node = Arc::make_mut(&mut self);
            (node.traits.kubelet, node.kubelet_from) = (stated, KnownFrom::Reported);
        }
        self
    }

    /// The kubelet's version, where it is more than an assumption.
    pub fn known_kubelet(&self) -> Option<KubeletVersion> {
        (self.kubelet_from != KnownFrom::Inferred).then_some(self.traits.kubelet)
    }
}
