//! The API server → the latest [`ClusterState`], as far as it concerns this node.
//!
//! One task, [`KubernetesSource::run`]. It follows the pods bound to this node and the Node itself. From these it knows
//! which namespaces matter, and follows the VPAs in them; where a VPA targets the workload of a pod that is here, also the
//! LimitRanges and HorizontalPodAutoscalers. Workloads are asked for one by one (`owners`). Nothing is followed
//! for the whole cluster, so that what a node costs the API server depends on the node alone.
//!
//! A pod is told of once all that decides about it is known (`view`), and from then on until it leaves the node. While the
//! API server is away, what was last seen stays, with a problem that says so.

mod feeds;
mod kinds;
mod owners;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::NodeView;
use crate::kubernetes::{ApiClient, Timing};
use crate::model::objects::Node;
use feeds::{Feeds, Missing};
use view::PodReadiness;

/// How long a burst of changes may go on before it is looked at.
const QUIET: Duration = Duration::from_millis(1);

/// Everything the cluster says about this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterState {
    /// The objects that matter here.
    pub view: NodeView,
    /// What cannot be followed or used, until it can.
    pub problems: Vec<String>,
    /// Counts the states of the view; 0 until all that concerns the node's pods is known for the first time.
    pub generation: u64,
}

/// Follows the cluster as far as it concerns one node.
#[derive(Debug)]
pub struct KubernetesSource {
    feeds: Feeds,
    sender: watch::Sender<Arc<ClusterState>>,
}

impl KubernetesSource {
    /// A source, and where its states appear.
    ///
    /// # Panics
    /// Outside of a tokio runtime: following begins at once.
    #[must_use]
    pub fn new(client: ApiClient, node: &str, timing: Timing) -> (Self, watch::Receiver<Arc<ClusterState>>) {
        let (sender, receiver) = watch::channel(Arc::default());
        let feeds = Feeds::new(client, node, timing);
        (Self { feeds, sender }, receiver)
    }

    /// Follows the cluster until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.update_view();
            let wake = self.feeds.next_due();
            tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: news stay until they are taken.
                () = self.feeds.changed_or_answered() => sleep(QUIET).await,
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Builds the view from all that is known, requests what is missing, and publishes.
    fn update_view(&mut self) {
        let now = Instant::now();
        let pods = self
            .feeds
            .pods
            .read(|pods| pods.known.then(|| pods.objects().cloned().collect::<Vec<_>>()));
        let Some(pods) = pods else {
            return self.publish_view(None);
        };
        let wanted: BTreeSet<_> = pods
            .iter()
            .filter(|pod| view::may_have_vpa(pod))
            .map(|pod| pod.metadata.namespace.clone())
            .collect();
        self.feeds.follow_vpas(&wanted, now);
        let namespaces = self.feeds.namespaces();
        // What was told of a pod stays true while more is asked about it: it has not left the node.
        let before = Arc::clone(&self.sender.borrow());
        let told: HashSet<&str> = before.view.pods.iter().map(|pod| pod.metadata.uid.as_str()).collect();
        let mut missing = Missing::default();
        let mut view = NodeView::default();
        for pod in pods {
            let namespace = &pod.metadata.namespace;
            let readiness = view::readiness(&pod, namespaces.get(namespace), &self.feeds.owners, &mut missing.passed);
            let known = match readiness {
                PodReadiness::Ready => true,
                PodReadiness::NeedsVpas => false,
                PodReadiness::NeedsOwner(owner) => {
                    let refused = self.feeds.owners.is_refused(&owner);
                    missing.needs_owner(owner);
                    refused
                }
                PodReadiness::NeedsBounds => {
                    missing.needs_bounds(namespace.clone());
                    false
                }
            };
            if known || told.contains(pod.metadata.uid.as_str()) {
                view.pods.push(pod);
            } else {
                missing.waiting += 1;
            }
        }
        self.feeds.request(&missing, now);
        for namespace in namespaces.into_values() {
            let Some(bounds) = namespace.bounds else { continue };
            let vpas = namespace.vpas.unwrap_or_default();
            view.vpas.extend(vpas.iter().map(|vpa| (**vpa).clone()));
            view.limit_ranges
                .extend(bounds.limit_ranges.iter().map(|range| (**range).clone()));
            view.hpas.extend(bounds.hpas.iter().map(|hpa| (**hpa).clone()));
        }
        view.owners = self.feeds.owners.all().cloned().collect();
        view.node = self
            .feeds
            .node
            .read(|nodes| nodes.objects().next().map(|node| Node::clone(node)));
        self.publish_view(Some((view, missing.waiting)));
    }

    /// Publishes what is new. The first view waits until nothing is missing.
    fn publish_view(&self, found: Option<(NodeView, usize)>) {
        let problems = self.feeds.problems();
        self.sender.send_if_modified(|state| {
            let found = found
                .filter(|(_, waiting)| state.generation > 0 || *waiting == 0)
                .map(|(view, _)| view);
            let news = found.filter(|view| state.generation == 0 || *view != state.view);
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
