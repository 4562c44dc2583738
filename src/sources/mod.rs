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

use tokio::sync::watch;

use crate::model::KubeletVersion;
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, Node, ObjectMeta, Owner, Pod, VerticalPodAutoscaler};

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

    /// Adds what another view knows, as far as `counts` says so of an object's kind and metadata. This view's node stays.
    pub fn merge(&mut self, other: Self, mut counts: impl FnMut(&str, &ObjectMeta) -> bool) {
        // Taken apart, so that a new kind of object is not forgotten here.
        let Self {
            pods,
            owners,
            vpas,
            limit_ranges,
            hpas,
            node,
        } = other;
        self.pods
            .extend(pods.into_iter().filter(|pod| counts("Pod", &pod.metadata)));
        let owners = owners.into_iter();
        self.owners
            .extend(owners.filter(|owner| counts(&format!("{:?}", owner.kind), &owner.metadata)));
        self.vpas.extend(
            vpas.into_iter()
                .filter(|vpa| counts("VerticalPodAutoscaler", &vpa.metadata)),
        );
        let limit_ranges = limit_ranges.into_iter();
        self.limit_ranges
            .extend(limit_ranges.filter(|range| counts("LimitRange", &range.metadata)));
        let hpas = hpas.into_iter();
        self.hpas
            .extend(hpas.filter(|hpa| counts("HorizontalPodAutoscaler", &hpa.metadata)));
        let node = node.filter(|node| counts("Node", &node.metadata));
        self.node = self.node.take().or(node);
    }
}

/// What a source knows, and what it could not use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceState {
    /// The objects that matter on this node.
    pub view: NodeView,
    /// What cannot be read, followed or used, until it can.
    pub problems: Vec<String>,
    /// Counts the states of the view; 0 until all that concerns the node's pods is known for the first time.
    pub generation: u64,
}

impl SourceState {
    /// Publishes what differs from the last state. Without a view, the last one stays.
    fn publish(states: &watch::Sender<Arc<Self>>, view: Option<NodeView>, problems: Vec<String>) {
        states.send_if_modified(|state| {
            let news = view.filter(|view| state.generation == 0 || *view != state.view);
            if news.is_none() && state.problems == problems {
                return false;
            }
            let state = Arc::make_mut(state);
            state.problems = problems;
            if let Some(view) = news {
                state.view = view;
                state.generation += 1;
            }
            true
        });
    }
}
