//! Merges the configured sources into one view for the controller.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::select_all;
use tokio::sync::{mpsc, oneshot, watch};

use crate::model::objects::ObjectMeta;
use crate::reconcile::controller::Event;
use crate::sources::{NodeView, SourceState};

#[derive(Debug)]
pub(super) struct SourceMerge {
    /// The sources, at least one. A later source does not change an object that an earlier one describes.
    pub(super) sources: Vec<watch::Receiver<Arc<SourceState>>>,
}

impl SourceMerge {
    /// Sends merged views to the controller, the newest once it has decided about the one before. Ends with a source or the controller.
    pub(super) async fn run(mut self, views: watch::Sender<Arc<NodeView>>, events: mpsc::Sender<Event>) {
        loop {
            let (view, problems) = self.merged_view();
            let view = view.map(Arc::new);
            if let Some(view) = &view {
                views.send_replace(Arc::clone(view));
            }
            let (decided, is_decided) = oneshot::channel();
            let event = Event::View {
                view,
                problems,
                decided,
            };
            if events.send(event).await.is_err() {
                return;
            }
            // An error in any case: nothing is sent.
            is_decided.await.unwrap_or_default();
            if !self.changed().await {
                return;
            }
        }
    }

    /// Waits until a source has changed; returns false where one has ended. Cancel-safe: a change stays marked until
    /// [`Self::merged_view`] reads it.
    pub(super) async fn changed(&mut self) -> bool {
        let changes = self.sources.iter_mut().map(|source| source.changed().boxed());
        select_all(changes).await.0.is_ok()
    }

    /// The view of all sources, and their problems. There is no view while a source has none: an object that a source does
    /// not know yet is not an object that does not exist.
    pub(super) fn merged_view(&mut self) -> (Option<NodeView>, Vec<String>) {
        let (mut views, mut problems) = (Vec::new(), Vec::new());
        for source in &mut self.sources {
            let state = source.borrow_and_update();
            problems.extend(state.problems.iter().cloned());
            views.push(state.view.clone());
        }
        let views: Option<Vec<_>> = views.into_iter().collect();
        (views.map(merged), problems)
    }
}

/// The objects of all views. An object of an earlier view wins over the same object of a later one. Namespaces that only the first view
/// describes stay the same `Arc`.
fn merged(views: Vec<NodeView>) -> NodeView {
    let name = |kind: &str, metadata: &ObjectMeta| format!("{kind} {}", metadata.name);
    let mut views = views.into_iter();
    let mut all = views.next().unwrap_or_default();
    for view in views {
        let uids: HashSet<String> = all.pods().map(|pod| pod.metadata.uid.clone()).collect();
        for (namespace, objects) in view.namespaces {
            let mut described = HashSet::new();
            let known = all.namespaces.get(&namespace).cloned().unwrap_or_default();
            NodeView::default().add(Arc::unwrap_or_clone(known), |kind, metadata| {
                described.insert(name(kind, metadata));
                false
            });
            all.add(Arc::unwrap_or_clone(objects), |kind, metadata| {
                // A pod of the same UID is the same pod, also under another name.
                let is_known = kind == "Pod" && !metadata.uid.is_empty() && uids.contains(&metadata.uid);
                !is_known && !described.contains(&name(kind, metadata))
            });
        }
        all.node = all.node.or(view.node);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{Undecided, parse_manifests};

    fn view(text: &str) -> NodeView {
        parse_manifests("test.yaml", text).unwrap().view.into()
    }

    fn pod(name: &str, uid: &str, node: &str) -> String {
        format!(
            "---\n{{kind: Pod, metadata: {{name: {name}, uid: {uid}}}, spec: {{nodeName: '{node}', containers: [{{name: c}}]}}}}\n"
        )
    }

    fn names(view: &NodeView) -> Vec<String> {
        view.pods()
            .map(|pod| format!("{} {}", pod.metadata.name, pod.metadata.uid))
            .collect()
    }

    #[test]
    fn objects_of_the_cluster_win() {
        let cluster = view(&[pod("web", "u1", "n"), pod("db", "u2", "n")].concat());
        let manifests = view(
            &[
                pod("web", "older", "n"),
                pod("other", "u2", "n"),
                pod("static", "u3", "n"),
            ]
            .concat(),
        );
        assert_eq!(
            names(&merged(vec![cluster, manifests])),
            ["web u1", "db u2", "static u3"]
        );
    }

    #[test]
    fn an_object_is_known_by_its_kind_and_namespace() {
        let object = |kind: &str, namespace: &str, spec: &str| {
            format!("---\n{{kind: {kind}, metadata: {{name: web, namespace: {namespace}}}, spec: {{{spec}}}}}\n")
        };
        let vpa = |namespace: &str, target: &str| {
            let target = format!("targetRef: {{kind: Deployment, name: {target}}}");
            object("VerticalPodAutoscaler", namespace, &target)
        };
        let mut known = parse_manifests("test.yaml", &[vpa("shop", "first"), pod("db", "u1", "n")].concat())
            .unwrap()
            .view;
        known.undecided_pods.insert("u1".to_owned(), Undecided::Awaited);
        let later = [
            vpa("shop", "second"),
            vpa("bank", "third"),
            object("LimitRange", "shop", "limits: []"),
        ];
        let both = merged(vec![known.into(), view(&later.concat())]);
        let vpas = both.namespaces.values().flat_map(|known| &known.vpas);
        let targets = vpas.map(|vpa| vpa.spec.target_ref.as_ref().unwrap().name.as_str());
        assert_eq!(targets.collect::<Vec<_>>(), ["third", "first"], "bank, then shop");
        assert_eq!(both.namespaces["shop"].limit_ranges.len(), 1);
        assert!(
            both.namespaces
                .values()
                .any(|known| known.undecided_pods.contains_key("u1"))
        );
    }

    #[test]
    fn one_changed_namespace_is_merged_again() {
        let pod = |namespace: &str, name: &str, uid: &str| {
            let metadata = format!("{{name: {name}, namespace: {namespace}, uid: {uid}}}");
            format!("---\n{{kind: Pod, metadata: {metadata}, spec: {{containers: [{{name: c}}]}}}}\n")
        };
        let cluster = view(&[pod("shop", "web", "u1"), pod("bank", "db", "u2")].concat());
        // The pod of the bank is not one of the shop.
        let manifests = view(&[pod("shop", "static", "u3"), pod("shop", "other", "u2")].concat());
        let before = merged(vec![cluster.clone(), manifests.clone()]);
        assert_eq!(names(&before), ["db u2", "web u1", "static u3"]);
        let (mut next, db) = (cluster, view(&pod("bank", "db", "u4")));
        next.namespaces.extend(db.namespaces);
        let after = merged(vec![next, manifests]);
        assert_eq!(names(&after), ["db u4", "web u1", "static u3", "other u2"]);
        let changed = |after: &NodeView, before: &NodeView| after.changed_since(before).into_keys().collect::<Vec<_>>();
        assert_eq!(changed(&after, &before), ["bank", "shop"]);
        let mut again = after.clone();
        again.namespaces.remove("bank");
        let again = merged(vec![again, view(&pod("shop", "web", "u1"))]);
        assert_eq!(changed(&again, &after), ["bank"]);
        assert!(Arc::ptr_eq(&again.namespaces["shop"], &after.namespaces["shop"]));
    }

    #[tokio::test]
    async fn the_newest_view_follows_the_problems_before() {
        let (_directory, directory) = watch::channel(Arc::new(SourceState {
            view: Some(NodeView::default()),
            ..SourceState::default()
        }));
        let (cluster_side, cluster) = watch::channel(Arc::new(SourceState {
            problems: vec!["the API server is away".to_owned()],
            ..SourceState::default()
        }));
        let merge = SourceMerge {
            sources: vec![cluster, directory],
        };
        let (views, _view) = watch::channel(Arc::default());
        let (events, mut told) = mpsc::channel(8);
        tokio::spawn(merge.run(views, events));
        let first = told.recv().await.unwrap();
        assert!(matches!(&first, Event::View { view: None, problems, .. } if problems.len() == 1));
        for pods in [vec!["db"], vec!["db", "web"]] {
            let pods: String = pods.iter().map(|name| pod(name, name, "n")).collect();
            cluster_side.send_replace(Arc::new(SourceState {
                view: Some(view(&pods)),
                ..SourceState::default()
            }));
            tokio::task::yield_now().await;
        }
        assert!(told.try_recv().is_err(), "the controller still decides about the first");
        drop(first);
        let second = told.recv().await.unwrap();
        assert!(
            matches!(&second, Event::View { view: Some(view), .. } if view.pods().count() == 2),
            "the newest"
        );
    }
}
