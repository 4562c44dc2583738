//! The sources that are configured → one view for the controller.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::reconcile::controller::Event;
use crate::sources::NodeView;
use crate::sources::directory::DirectoryState;
use crate::sources::kubernetes::ClusterState;

/// Where views come from; what is not configured is none.
#[derive(Debug)]
pub(super) struct SourceMerge {
    pub(super) directory: Option<watch::Receiver<Arc<DirectoryState>>>,
    pub(super) cluster: Option<watch::Receiver<Arc<ClusterState>>>,
}

/// What the sources say together.
struct Together {
    /// None while one of them does not know yet: nothing known is not the same as nothing there.
    view: Option<NodeView>,
    problems: Vec<String>,
}

impl SourceMerge {
    /// Passes on what the sources say, until they or the controller end.
    pub(super) async fn run(mut self, views: watch::Sender<Arc<NodeView>>, events: mpsc::Sender<Event>) {
        loop {
            let Together { view, problems } = self.together();
            let event = match view.map(Arc::new) {
                Some(view) => {
                    views.send_replace(Arc::clone(&view));
                    Event::View(view, problems)
                }
                None => Event::SourceProblems(problems),
            };
            if events.send(event).await.is_err() || !self.changed().await {
                return;
            }
        }
    }

    fn together(&mut self) -> Together {
        let mut problems = Vec::new();
        let mut known = true;
        let mut view = NodeView::default();
        if let Some(cluster) = &mut self.cluster {
            let state = Arc::clone(&cluster.borrow_and_update());
            known &= state.generation > 0;
            problems.extend(state.problems.iter().cloned());
            view = state.view.clone();
        }
        if let Some(directory) = &mut self.directory {
            let state = Arc::clone(&directory.borrow_and_update());
            known &= state.generation > 0;
            problems.extend(state.problems.iter().map(ToString::to_string));
            view = with_manifests(view, state.view.clone());
        }
        Together {
            view: known.then_some(view),
            problems,
        }
    }

    /// Waits for news from any source; false if there will be none.
    async fn changed(&mut self) -> bool {
        // Cancel-safe: a change stays marked until it is looked at.
        tokio::select! {
            changed = news(self.directory.as_mut()) => changed,
            changed = news(self.cluster.as_mut()) => changed,
        }
    }
}

async fn news<T>(receiver: Option<&mut watch::Receiver<T>>) -> bool {
    match receiver {
        Some(receiver) => receiver.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}

/// What the cluster says, and what manifests say of anything else.
fn with_manifests(cluster: NodeView, mut manifests: NodeView) -> NodeView {
    let uids: HashSet<_> = cluster.pods.iter().map(|pod| &pod.metadata.uid).collect();
    let names: HashSet<_> = cluster.pods.iter().map(|pod| pod.full_name()).collect();
    manifests
        .pods
        .retain(|pod| !uids.contains(&pod.metadata.uid) && !names.contains(&pod.full_name()));
    macro_rules! only_others {
        ($($field:ident by $key:expr;)*) => {$({
            let known: HashSet<_> = cluster.$field.iter().map($key).collect();
            manifests.$field.retain(|object| !known.contains(&$key(object)));
        })*};
    }
    only_others! {
        owners by |owner: &crate::model::objects::Owner| {
            (owner.kind, owner.metadata.namespace.clone(), owner.metadata.name.clone())
        };
        vpas by |vpa: &crate::model::objects::VerticalPodAutoscaler| name_of(&vpa.metadata);
        limit_ranges by |range: &crate::model::objects::LimitRange| name_of(&range.metadata);
        hpas by |hpa: &crate::model::objects::HorizontalPodAutoscaler| name_of(&hpa.metadata);
    }
    manifests.node = manifests.node.filter(|_| cluster.node.is_none());
    let mut all = cluster;
    all.merge(manifests);
    all
}

fn name_of(metadata: &crate::model::objects::ObjectMeta) -> (String, String) {
    (metadata.namespace.clone(), metadata.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::parse_manifests;

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
    fn what_the_cluster_describes_is_as_the_cluster_says() {
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
            names(&with_manifests(cluster, manifests)),
            ["web u1", "db u2", "static u3"]
        );
    }

    #[tokio::test]
    async fn nothing_is_told_before_every_source_knows_but_what_is_wrong_is() {
        let (_directory, directory) = watch::channel(Arc::new(DirectoryState {
            generation: 1,
            ..DirectoryState::default()
        }));
        let (cluster_side, cluster) = watch::channel(Arc::new(ClusterState {
            problems: vec!["the API server is away".to_owned()],
            ..ClusterState::default()
        }));
        let merge = SourceMerge {
            directory: Some(directory),
            cluster: Some(cluster),
        };
        let (views, _view) = watch::channel(Arc::default());
        let (events, mut told) = mpsc::channel(8);
        tokio::spawn(merge.run(views, events));
        let first = told.recv().await.unwrap();
        assert!(
            matches!(&first, Event::SourceProblems(problems) if problems.len() == 1),
            "{first:?}"
        );
        cluster_side.send_replace(Arc::new(ClusterState {
            view: view(&pod("web", "u1", "n")),
            generation: 1,
            ..ClusterState::default()
        }));
        let second = told.recv().await.unwrap();
        assert!(
            matches!(&second, Event::View(view, _) if view.pods.len() == 1),
            "{second:?}"
        );
    }
}
