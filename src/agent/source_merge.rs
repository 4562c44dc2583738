//! Merges the configured sources into one view for the controller.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::select_all;
use tokio::sync::{mpsc, oneshot, watch};

use crate::pace::REST_FACTOR;
use crate::reconcile::controller::Event;
use crate::sources::{NodeView, SourceState};

#[derive(Debug)]
pub(super) struct SourceMerge {
    /// The sources, at least one. A later source does not change an object that an earlier one describes.
    pub(super) sources: Vec<watch::Receiver<Arc<SourceState>>>,
}

impl SourceMerge {
    /// Sends merged views to the controller, the newest once it has decided about the one before and has had some time for other
    /// events: who edits objects all the time holds up no other. Ends with a source or the controller.
    pub(super) async fn run(mut self, views: watch::Sender<Arc<NodeView>>, events: mpsc::Sender<Event>) {
        loop {
            let (view, problems) = self.merged_view();
            let view = view.map(Arc::new);
            if let Some(view) = &view {
                views.send_replace(Arc::clone(view));
            }
            let (decided, took) = oneshot::channel();
            let event = Event::View {
                view,
                problems,
                decided,
            };
            if events.send(event).await.is_err() {
                return;
            }
            // An error: the controller has ended, or waits for no time.
            let took = took.await.unwrap_or_default();
            tokio::time::sleep(took * REST_FACTOR).await;
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
        let (mut known, mut problems, mut views) = (true, Vec::new(), Vec::new());
        for source in &mut self.sources {
            let state = source.borrow_and_update();
            known &= state.generation > 0;
            problems.extend(state.problems.iter().cloned());
            views.push(state.view.clone());
        }
        (known.then(|| merged(views)), problems)
    }
}

/// The objects of all views. An object of an earlier view wins over the same object of a later one.
fn merged(views: Vec<NodeView>) -> NodeView {
    let mut all = NodeView::default();
    let mut described = HashSet::new();
    for view in views {
        let mut new = Vec::new();
        all.merge(view, |kind, metadata| {
            // A pod of the same UID is the same pod, also under another name.
            let uid = (kind == "Pod" && !metadata.uid.is_empty()).then(|| format!("UID {}", metadata.uid));
            let names = [uid, Some(format!("{kind} {}", metadata.full_name()))];
            let counts = !names.iter().flatten().any(|name| described.contains(name));
            new.extend(names.into_iter().flatten());
            counts
        });
        described.extend(new);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{Undecided, parse_manifests};

    fn view(text: &str) -> NodeView {
        parse_manifests("test.yaml", text).unwrap().view
    }

    fn pod(name: &str, uid: &str, node: &str) -> String {
        format!(
            "---\n{{kind: Pod, metadata: {{name: {name}, uid: {uid}}}, spec: {{nodeName: '{node}', containers: [{{name: c}}]}}}}\n"
        )
    }

    fn names(view: &NodeView) -> Vec<String> {
        view.pods
            .iter()
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
        let mut cluster = view(&vpa("shop", "first"));
        cluster.undecided_pods.insert("u1".to_owned(), Undecided::Awaited);
        let later = [
            vpa("shop", "second"),
            vpa("bank", "third"),
            object("LimitRange", "shop", "limits: []"),
        ];
        let both = merged(vec![cluster, view(&later.concat())]);
        let targets = both
            .vpas
            .iter()
            .map(|vpa| vpa.spec.target_ref.as_ref().unwrap().name.as_str());
        assert_eq!(targets.collect::<Vec<_>>(), ["first", "third"]);
        assert_eq!(both.limit_ranges.len(), 1);
        assert!(both.undecided_pods.contains_key("u1"));
    }

    #[tokio::test]
    async fn the_newest_view_follows_the_problems_before() {
        let (_directory, directory) = watch::channel(Arc::new(SourceState {
            generation: 1,
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
        for (generation, pods) in [(1, vec!["db"]), (2, vec!["db", "web"])] {
            let pods: String = pods.iter().map(|name| pod(name, name, "n")).collect();
            cluster_side.send_replace(Arc::new(SourceState {
                view: view(&pods),
                generation,
                ..SourceState::default()
            }));
            tokio::task::yield_now().await;
        }
        assert!(told.try_recv().is_err(), "the controller still decides about the first");
        drop(first);
        let second = told.recv().await.unwrap();
        assert!(
            matches!(&second, Event::View { view: Some(view), .. } if view.pods.len() == 2),
            "the newest"
        );
    }
}
