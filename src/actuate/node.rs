//! The node as a pass needs it: where cgroups are, what the kernel is like, whom to tell.

use std::sync::Arc;

use super::concurrency::Concurrency;
use super::least_limits::LeastLimits;
use super::shrink::Freezer;
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{Hierarchy, Kubepods};
use crate::decide::StaticManagers;
use crate::model::{Driver, KubeletVersion, NodeTraits};
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

/// How it is known who creates cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverFrom {
    Configured,
    Runtime,
    /// The names in the tree show it.
    Tree,
}

impl DriverFrom {
    /// Where the answer comes from, of those who may give one.
    #[must_use]
    pub const fn of(configured: Option<Driver>, told: Option<Driver>) -> Self {
        match (configured, told) {
            (Some(_), _) => Self::Configured,
            (None, Some(_)) => Self::Runtime,
            (None, None) => Self::Tree,
        }
    }
}

/// How the kubelet's version is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletFrom {
    Configured,
    /// The Node object states it.
    Node,
    /// No source has the Node object: the newest known version is assumed.
    Assumed,
}

impl KubeletFrom {
    /// What the configuration alone says.
    #[must_use]
    pub const fn configured(version: Option<KubeletVersion>) -> Self {
        match version {
            Some(_) => Self::Configured,
            None => Self::Assumed,
        }
    }
}

/// How the formula of the runtime's weights is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormulaFrom {
    Configured,
    Shown,
    /// No container has shown it yet.
    Assumed,
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
    pub driver_from: DriverFrom,
    /// How the formula is known.
    pub formula_from: FormulaFrom,
    /// How the kubelet's version is known.
    pub kubelet_from: KubeletFrom,
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
        let news = |stated: &KubeletVersion| match self.kubelet_from {
            KubeletFrom::Configured => false,
            KubeletFrom::Node => self.traits.kubelet != *stated,
            KubeletFrom::Assumed => true,
        };
        if let Some(stated) = stated.filter(news) {
            let node = Self::clone(&self);
            self = Arc::new(Self {
                traits: NodeTraits {
                    kubelet: stated,
                    ..node.traits
                },
                kubelet_from: KubeletFrom::Node,
                ..node
            });
        }
        self
    }

    /// The kubelet's version, where it is more than an assumption.
    pub fn known_kubelet(&self) -> Option<KubeletVersion> {
        (self.kubelet_from != KubeletFrom::Assumed).then_some(self.traits.kubelet)
    }
}
