//! The sources of pods and recommendations: manifests in files, a watched directory, the API server. Each yields a
//! [`NodeView`].
//!
//! A source never decides and never acts. It reports unreadable input by file, document and field, and keeps the last
//! readable state.

pub mod directory;
pub mod kubernetes;
mod manifests;
mod templates;
mod validate;
mod workload;

pub use manifests::{ManifestError, Manifests, parse_manifests};
pub use templates::{PodTemplate, PodTemplates, parse_pod_templates};

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::model::KubeletVersion;
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, Node, ObjectMeta, Owner, Pod, ResourceQuota, Shared, VerticalPodAutoscaler,
};

/// The known pods and objects of the node at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeView {
    /// The pods that are bound to this node.
    pub pods: Vec<Arc<Pod>>,
    pub owners: Vec<Shared<Owner>>,
    pub vpas: Vec<Shared<VerticalPodAutoscaler>>,
    pub limit_ranges: Vec<Shared<LimitRange>>,
    pub hpas: Vec<Shared<HorizontalPodAutoscaler>>,
    pub quotas: Vec<Shared<ResourceQuota>>,
    /// The namespaces whose quotas are not known yet.
    pub awaited_quotas: BTreeSet<String>,
    /// The UIDs of the pods that cannot be decided about yet: not all objects about them are known.
    pub undecided_pods: BTreeSet<String>,
    pub node: Option<Node>,
}

impl NodeView {
    pub fn kubelet_version(&self) -> Option<KubeletVersion> {
        self.node.as_ref()?.status.node_info.kubelet_version.parse().ok()
    }

    /// Adds the objects of another view for whose kind and metadata `counts` returns true. This view's node stays.
    pub fn merge(&mut self, mut other: Self, mut counts: impl FnMut(&str, &ObjectMeta) -> bool) {
        other.pods.retain(|pod| counts("Pod", &pod.metadata));
        let kind = |owner: &Owner| format!("{:?}", owner.kind);
        other.owners.retain(|owner| counts(&kind(owner), &owner.metadata));
        other.vpas.retain(|vpa| counts("VerticalPodAutoscaler", &vpa.metadata));
        other.limit_ranges.retain(|range| counts("LimitRange", &range.metadata));
        other
            .hpas
            .retain(|hpa| counts("HorizontalPodAutoscaler", &hpa.metadata));
        other.quotas.retain(|quota| counts("ResourceQuota", &quota.metadata));
        self.pods.append(&mut other.pods);
        self.owners.append(&mut other.owners);
        self.vpas.append(&mut other.vpas);
        self.limit_ranges.append(&mut other.limit_ranges);
        self.hpas.append(&mut other.hpas);
        self.quotas.append(&mut other.quotas);
        self.awaited_quotas.extend(other.awaited_quotas);
        self.undecided_pods.extend(other.undecided_pods);
        let node = other.node.filter(|node| counts("Node", &node.metadata));
        self.node = self.node.take().or(node);
    }
}

/// The state of a source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceState {
    pub view: NodeView,
    /// Unreadable, unusable or unfollowed input.
    pub problems: Vec<String>,
    /// The number of the view; 0 until all objects that concern the node's pods are known.
    pub generation: u64,
}

impl SourceState {
    /// Publishes a state that differs from the last. Without a view, the last view stays.
    fn publish(states: &watch::Sender<Arc<Self>>, view: Option<NodeView>, problems: Vec<String>) {
        states.send_if_modified(|state| {
            let news = view.filter(|view| state.generation == 0 || *view != state.view);
            if news.is_none() && state.problems == problems {
                return false;
            }
            let generation = state.generation + u64::from(news.is_some());
            *state = Arc::new(Self {
                view: news.unwrap_or_else(|| state.view.clone()),
                problems,
                generation,
            });
            true
        });
    }
}
