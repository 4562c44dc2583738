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

use std::collections::BTreeMap;
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
    /// By UID, the pods that cannot be decided about.
    pub undecided_pods: BTreeMap<String, Undecided>,
    pub node: Option<Node>,
}

/// Why a pod cannot be decided about: not all objects about it are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecided {
    /// One has not arrived.
    Awaited,
    /// One is refused until a change of rules, or cannot be read. That does not mean that there is none. Another source may have the
    /// pod's VPA.
    Refused,
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

#[cfg(test)]
mod tests {
    use super::*;

    const OF_EACH_KIND: &str = "
{kind: Pod, metadata: {name: web}, spec: {containers: [{name: app}]}}
---
{kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}}}
---
{kind: VerticalPodAutoscaler, metadata: {name: web}, spec: {targetRef: {kind: Deployment, name: web}}}
---
{kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Pod, max: {cpu: 1}}]}}
---
{kind: HorizontalPodAutoscaler, metadata: {name: h}, spec: {scaleTargetRef: {kind: Deployment, name: web}}}
---
{kind: ResourceQuota, metadata: {name: q}, spec: {hard: {cpu: 1}}}
---
{kind: Node, metadata: {name: n}}
";

    fn of_each_kind() -> NodeView {
        parse_manifests("test.yaml", OF_EACH_KIND).unwrap().view
    }

    #[test]
    fn a_merged_view_has_the_objects_of_each_kind() {
        let mut other = of_each_kind();
        other.undecided_pods.insert("u".to_owned(), Undecided::Awaited);
        let (mut all, mut kinds) = (NodeView::default(), Vec::new());
        all.merge(other.clone(), |kind, _| {
            kinds.push(kind.to_owned());
            true
        });
        assert_eq!(all, other);
        assert_eq!(
            kinds,
            [
                "Pod",
                "Deployment",
                "VerticalPodAutoscaler",
                "LimitRange",
                "HorizontalPodAutoscaler",
                "ResourceQuota",
                "Node"
            ]
        );
        let mut none = NodeView::default();
        none.merge(of_each_kind(), |_, _| false);
        assert_eq!(none, NodeView::default());
    }

    #[test]
    fn only_news_is_published() {
        let (states, _receiver) = watch::channel(Arc::<SourceState>::default());
        let publish = |view: Option<NodeView>, problems: &[&str]| {
            let before = Arc::clone(&states.borrow());
            let problems = problems.iter().map(|problem| (*problem).to_owned()).collect();
            SourceState::publish(&states, view, problems);
            let after = Arc::clone(&states.borrow());
            let is_new = !Arc::ptr_eq(&before, &after);
            (is_new, after.generation, after.view.pods.len(), after.problems.len())
        };
        let empty = || Some(NodeView::default());
        assert_eq!(publish(None, &[]), (false, 0, 0, 0));
        assert_eq!(publish(empty(), &[]), (true, 1, 0, 0), "an empty view is one, too");
        assert_eq!(publish(empty(), &[]), (false, 1, 0, 0));
        assert_eq!(publish(empty(), &["away"]), (true, 1, 0, 1));
        assert_eq!(publish(Some(of_each_kind()), &["away"]), (true, 2, 1, 1));
        assert_eq!(publish(None, &[]), (true, 2, 1, 0), "the last view stays");
    }
}
