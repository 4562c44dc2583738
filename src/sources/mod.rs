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
pub use crate::model::objects::{KnownObjects, Undecided};
use crate::model::objects::{Node, ObjectMeta, Owner, Pod};

/// The known pods and objects of the node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeView {
    /// By namespace. A namespace in which nothing has changed is the same `Arc` in the next view, so that a change
    /// costs what its namespace has, and not what the node has.
    pub namespaces: BTreeMap<String, Arc<KnownObjects>>,
    pub node: Option<Node>,
}

impl NodeView {
    pub fn kubelet_version(&self) -> Option<KubeletVersion> {
        self.node.as_ref()?.status.node_info.kubelet_version.parse().ok()
    }

    /// The pods of all namespaces.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> + Clone {
        self.namespaces.values().flat_map(|known| &known.pods)
    }

    /// Adds the objects for whose kind and metadata `counts` returns true. This view's node stays.
    pub fn add(&mut self, mut objects: KnownObjects, mut counts: impl FnMut(&str, &ObjectMeta) -> bool) {
        objects.pods.retain(|pod| counts("Pod", &pod.metadata));
        let kind = |owner: &Owner| format!("{:?}", owner.kind);
        objects.owners.retain(|owner| counts(&kind(owner), &owner.metadata));
        objects
            .vpas
            .retain(|vpa| counts("VerticalPodAutoscaler", &vpa.metadata));
        objects
            .limit_ranges
            .retain(|range| counts("LimitRange", &range.metadata));
        let hpas = &mut objects.hpas;
        hpas.retain(|hpa| counts("HorizontalPodAutoscaler", &hpa.metadata));
        objects.quotas.retain(|quota| counts("ResourceQuota", &quota.metadata));
        for pod in objects.pods {
            let known = self.namespace_of(&pod.metadata);
            let undecided = objects.undecided_pods.remove_entry(&pod.metadata.uid);
            known.undecided_pods.extend(undecided);
            known.pods.push(pod);
        }
        for owner in objects.owners {
            self.namespace_of(&owner.metadata).owners.push(owner);
        }
        for vpa in objects.vpas {
            self.namespace_of(&vpa.metadata).vpas.push(vpa);
        }
        for range in objects.limit_ranges {
            self.namespace_of(&range.metadata).limit_ranges.push(range);
        }
        for hpa in objects.hpas {
            self.namespace_of(&hpa.metadata).hpas.push(hpa);
        }
        for quota in objects.quotas {
            self.namespace_of(&quota.metadata).quotas.push(quota);
        }
        let node = objects.node.filter(|node| counts("Node", &node.metadata));
        self.node = self.node.take().or(node);
    }

    fn namespace_of(&mut self, metadata: &ObjectMeta) -> &mut KnownObjects {
        Arc::make_mut(self.namespaces.entry(metadata.namespace.clone()).or_default())
    }

    /// Why a pod of the view cannot be decided about.
    pub fn undecided(&self, pod: &Pod) -> Option<Undecided> {
        let known = self.namespaces.get(&pod.metadata.namespace)?;
        known.undecided_pods.get(&pod.metadata.uid).copied()
    }

    /// The namespaces with other objects than in an earlier view, with their objects in both views.
    pub fn changed_since(&self, earlier: &Self) -> BTreeMap<String, [Arc<KnownObjects>; 2]> {
        let names = earlier.namespaces.keys().chain(self.namespaces.keys());
        let both = names.map(|name| (name, [earlier, self].map(|view| view.namespaces.get(name))));
        let changed = both.filter(|(_, [before, after])| before != after);
        let changed = changed.map(|(name, both)| (name.clone(), both.map(|known| known.cloned().unwrap_or_default())));
        changed.collect()
    }
}

impl From<KnownObjects> for NodeView {
    fn from(objects: KnownObjects) -> Self {
        let mut view = Self::default();
        view.add(objects, |_, _| true);
        view
    }
}

/// The state of a source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceState {
    /// None until all objects that concern the node's pods are known.
    pub view: Option<NodeView>,
    /// Unreadable, unusable or unfollowed input.
    pub problems: Vec<String>,
}

impl SourceState {
    /// Publishes a state that differs from the last. Without a view, the last view stays.
    fn publish(states: &watch::Sender<Arc<Self>>, view: Option<NodeView>, problems: Vec<String>) {
        states.send_if_modified(|state| {
            let view = view.or_else(|| state.view.clone());
            let next = Arc::new(Self { view, problems });
            std::mem::replace(state, Arc::clone(&next)) != next
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

    fn of_each_kind() -> KnownObjects {
        parse_manifests("test.yaml", OF_EACH_KIND).unwrap().view
    }

    #[test]
    fn a_merged_view_has_the_objects_of_each_kind() {
        let mut other = of_each_kind();
        let uid = other.pods[0].metadata.uid.clone();
        other.undecided_pods.insert(uid, Undecided::Awaited);
        let (mut all, mut kinds) = (NodeView::default(), Vec::new());
        all.add(other.clone(), |kind, _| {
            kinds.push(kind.to_owned());
            true
        });
        assert_eq!(all.node, other.node.take());
        assert_eq!(*all.namespaces["default"], other);
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
        none.add(of_each_kind(), |_, _| false);
        assert_eq!(none, NodeView::default());
    }

    #[test]
    fn objects_are_divided_by_namespace() {
        let of =
            |namespace: &str| OF_EACH_KIND.replace("metadata: {", &format!("metadata: {{namespace: {namespace}, "));
        let (shop, bank) = (of("shop"), of("bank").replace("kind: Node", "kind: Other"));
        let mut all = parse_manifests("test.yaml", &format!("{shop}---{bank}")).unwrap().view;
        all.pods
            .iter_mut()
            .for_each(|pod| Arc::make_mut(pod).metadata.uid = pod.metadata.namespace.clone());
        all.undecided_pods.insert("bank".to_owned(), Undecided::Refused);
        let view = NodeView::from(all);
        assert!(view.namespaces.keys().eq(["bank", "shop"]) && view.node.is_some());
        for (name, known) in &view.namespaces {
            let lists = [
                known.owners.len(),
                known.vpas.len(),
                known.limit_ranges.len(),
                known.hpas.len(),
            ];
            assert_eq!((lists, known.pods.len(), known.quotas.len()), ([1; 4], 1, 1));
            let undecided = Some(&Undecided::Refused).filter(|_| name == "bank");
            assert_eq!(known.undecided_pods.get(name), undecided);
        }
    }

    #[test]
    fn only_other_objects_are_changes() {
        let view = NodeView::from(of_each_kind());
        let mut next = view.clone();
        let changed = |next: &NodeView| next.changed_since(&view).into_keys().collect::<Vec<_>>();
        assert_eq!(changed(&next), Vec::<String>::new());
        let known = KnownObjects::clone(&view.namespaces["default"]);
        next.namespaces.insert("default".to_owned(), Arc::new(known));
        assert_eq!(changed(&next), Vec::<String>::new());
        next.namespaces.insert("shop".to_owned(), Arc::default());
        assert_eq!(changed(&next), ["shop"]);
        next.namespaces.remove("default");
        assert_eq!(changed(&next), ["default", "shop"]);
    }

    #[test]
    fn only_news_is_published() {
        let (states, mut receiver) = watch::channel(Arc::<SourceState>::default());
        let mut publish = |view: Option<NodeView>, problems: &[&str]| {
            let problems = problems.iter().map(|problem| (*problem).to_owned()).collect();
            SourceState::publish(&states, view, problems);
            let is_new = receiver.has_changed().unwrap();
            let after = receiver.borrow_and_update();
            let pods = after.view.as_ref().map(|view| view.pods().count());
            (is_new, pods, after.problems.len())
        };
        let empty = || Some(NodeView::default());
        assert_eq!(publish(None, &[]), (false, None, 0));
        assert_eq!(publish(empty(), &[]), (true, Some(0), 0), "an empty view is one, too");
        assert_eq!(publish(empty(), &[]), (false, Some(0), 0));
        assert_eq!(publish(empty(), &["away"]), (true, Some(0), 1));
        assert_eq!(publish(Some(of_each_kind().into()), &["away"]), (true, Some(1), 1));
        assert_eq!(publish(None, &[]), (true, Some(1), 0), "the last view stays");
    }
}
