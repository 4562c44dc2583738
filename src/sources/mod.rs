//! Where facts come from: manifests in files, a watched directory, the API server. Each source ends in one [`NodeView`].
//!
//! A source never decides and never acts. What it cannot read it reports by file, document and field, and it goes on
//! with the last state it could read.

pub mod directory;
pub mod kubernetes;
mod manifests;
mod templates;
mod validate;
mod workload;

pub use manifests::{ManifestError, Manifests, parse_manifests};
pub use templates::{PodTemplate, PodTemplates, parse_pod_templates};

use std::sync::Arc;

use crate::model::KubeletVersion;
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, Node, Owner, Pod, VerticalPodAutoscaler};

/// Everything known about what the node's pods should have, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeView {
    /// The pods that are bound to this node.
    pub pods: Vec<Arc<Pod>>,
    /// The workloads that own these pods.
    pub owners: Vec<Owner>,
    /// The VerticalPodAutoscalers in their namespaces.
    pub vpas: Vec<VerticalPodAutoscaler>,
    /// The LimitRanges in their namespaces.
    pub limit_ranges: Vec<LimitRange>,
    /// The HorizontalPodAutoscalers in their namespaces.
    pub hpas: Vec<HorizontalPodAutoscaler>,
    /// The node itself, if known.
    pub node: Option<Node>,
}

impl NodeView {
    /// The kubelet's version as the Node object states it.
    pub fn kubelet_version(&self) -> Option<KubeletVersion> {
        self.node.as_ref()?.status.node_info.kubelet_version.parse().ok()
    }

    /// Adds everything another view knows.
    pub fn merge(&mut self, other: Self) {
        self.pods.extend(other.pods);
        self.owners.extend(other.owners);
        self.vpas.extend(other.vpas);
        self.limit_ranges.extend(other.limit_ranges);
        self.hpas.extend(other.hpas);
        self.node = other.node.or_else(|| self.node.take());
    }
}
