//! What a pass needs to know about the node: its cgroups, its kernel and its container runtime.

use std::sync::Arc;

use super::concurrency::Concurrency;
use super::least_limits::LeastLimits;
use super::shrink::Freezer;
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{Hierarchy, Kubepods};
use crate::decide::NodePolicies;
use crate::model::{CpuBurst, KubeletVersion, NodeTraits};
use crate::runtime::ContainerRuntime;

/// The container runtime of the node.
#[derive(Debug, Clone)]
pub enum RuntimeLink {
    /// The configuration says that there is none.
    None,
    /// Discovery has not found the configured runtime, for this reason: its updates are pending.
    Away(String),
    /// Discovery found the runtime; it may not answer now.
    Found(Arc<dyn ContainerRuntime>),
}

/// The source of a trait of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownFrom {
    Configured,
    /// The runtime, one of its containers, or the Node object shows it.
    Reported,
    /// The agent infers it from the names in the tree, or assumes it.
    Inferred,
}

impl KnownFrom {
    /// How a value is known that may be configured or reported.
    pub const fn of<T: Copy>(configured: Option<T>, reported: Option<T>) -> Self {
        match (configured, reported) {
            (Some(_), _) => Self::Configured,
            (None, Some(_)) => Self::Reported,
            (None, None) => Self::Inferred,
        }
    }
}

/// Everything a pass needs to know about the node. Discovery replaces the whole value when a part changes.
#[derive(Debug, Clone)]
pub struct Node {
    pub hierarchy: Hierarchy,
    /// The root of all pods.
    pub kubepods: Kubepods,
    pub traits: NodeTraits,
    pub policies: NodePolicies,
    /// Whether the kernel lets cgroups burst (from Linux 5.14).
    pub has_bursts: bool,
    pub runtime: RuntimeLink,
    pub runtime_name: Option<String>,
    pub driver_from: KnownFrom,
    pub formula_from: KnownFrom,
    pub kubelet_from: KnownFrom,
    /// systemd, where it drives the tree and answers.
    pub units: Option<Arc<Systemd>>,
    /// Shared by all passes, also after discovery has replaced the node.
    pub concurrency: Arc<Concurrency>,
    pub freezer: Arc<Freezer>,
    /// The limits that the guard has raised; shared like the concurrency.
    pub least_limits: Arc<LeastLimits>,
}

impl Node {
    /// The node with the kubelet's version in the Node object, unless a version is configured.
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

    /// Why a wanted burst has no effect.
    pub fn lacks_burst(&self, wanted: CpuBurst) -> Option<String> {
        (!self.has_bursts && wanted != CpuBurst::ZERO).then(|| {
            format!("this node's kernel has no bursts of cpu (Linux 5.14 and later have them): a burst of {wanted} has no effect")
        })
    }

    /// The kubelet's version, where it is configured or reported.
    pub fn known_kubelet(&self) -> Option<KubeletVersion> {
        (self.kubelet_from != KnownFrom::Inferred).then_some(self.traits.kubelet)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{
        CgroupPath, CgroupVersion, ContainerId, Driver, LiveContainer, LivePod, PageSize, RuntimeKind, WeightFormula,
    };

    #[test]
    fn only_a_configured_version_is_kept() {
        let stated = KubeletVersion(30);
        for (from, expected) in [
            (KnownFrom::Configured, (KubeletVersion::NEWEST, KnownFrom::Configured)),
            (KnownFrom::Reported, (stated, KnownFrom::Reported)),
            (KnownFrom::Inferred, (stated, KnownFrom::Reported)),
        ] {
            let root = tempfile::tempdir().unwrap();
            let mut node = Node::on_files(root.path());
            node.kubelet_from = from;
            let node = Arc::new(node).with_stated_kubelet(Some(stated));
            assert_eq!((node.traits.kubelet, node.kubelet_from), expected);
            let silent = node.with_stated_kubelet(None);
            assert_eq!((silent.traits.kubelet, silent.kubelet_from), expected);
        }
    }

    #[test]
    fn a_burst_needs_a_kernel_with_bursts() {
        let root = tempfile::tempdir().unwrap();
        let half: CpuBurst = "50%".parse().unwrap();
        for (has_bursts, wanted, lacks) in [(true, half, false), (false, half, true), (false, CpuBurst::ZERO, false)] {
            let mut node = Node::on_files(root.path());
            node.has_bursts = has_bursts;
            assert_eq!(node.lacks_burst(wanted).is_some(), lacks, "{has_bursts} {wanted}");
        }
    }

    impl LivePod {
        /// A pod in `/pod` of [`Node::on_files`], with containers whose names are their ids and their cgroups' names.
        pub(crate) fn on_files<const N: usize>(names: [&str; N]) -> Self {
            let path = |text: &str| CgroupPath::new(text).unwrap();
            let containers = names.map(|name| {
                let (id, path) = (ContainerId::of_test(name), path(&format!("/pod/{name}")));
                (name.into(), LiveContainer { id, path })
            });
            Self {
                id: PodId {
                    uid: "u".into(),
                    namespace: "shop".to_owned(),
                    name: "web".to_owned(),
                },
                path: path("/pod"),
                containers: containers.into(),
            }
        }
    }

    impl Node {
        /// A node on plain files in the place of a v2 tree, without a runtime.
        pub(crate) fn on_files(root: &Path) -> Self {
            fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
            Self {
                hierarchy: Hierarchy::of_tree(root).unwrap(),
                kubepods: Kubepods {
                    path: CgroupPath::new("/kubepods").unwrap(),
                    driver: Driver::Cgroupfs,
                },
                traits: NodeTraits {
                    version: CgroupVersion::V2,
                    driver: Driver::Cgroupfs,
                    runtime: RuntimeKind::Containerd,
                    container_weight: WeightFormula::Quadratic,
                    kubelet: KubeletVersion::NEWEST,
                    page: PageSize::KIB_4,
                },
                policies: NodePolicies::default(),
                has_bursts: true,
                runtime: RuntimeLink::None,
                runtime_name: None,
                driver_from: KnownFrom::Configured,
                formula_from: KnownFrom::Configured,
                kubelet_from: KnownFrom::Configured,
                units: None,
                concurrency: Arc::new(Concurrency::new(1)),
                freezer: Arc::new(Freezer::below(root).unwrap()),
                least_limits: Arc::default(),
            }
        }
    }
}
