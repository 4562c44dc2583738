//! The API server → the latest [`SourceState`], as far as it concerns this node.
//!
//! One task, [`KubernetesSource::run`]. It follows the pods bound to this node, there or at its kubelet, and the Node itself.
//! From these it knows which namespaces matter, and follows the VPAs in them; where a VPA targets the workload of a pod that is
//! here, also the LimitRanges and HorizontalPodAutoscalers. Workloads are asked for one by one (`owners`). Nothing is followed
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
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{NodeView, SourceState};
use crate::kubernetes::{ApiClient, Timing};
use feeds::Feeds;
use view::Missing;

/// How long a burst of changes may go on before it is looked at.
const QUIET: Duration = Duration::from_millis(1);

/// Follows the cluster as far as it concerns one node.
#[derive(Debug)]
pub struct KubernetesSource {
    feeds: Feeds,
    sender: watch::Sender<Arc<SourceState>>,
}

impl KubernetesSource {
    /// A source, and where its states appear. Pods come from the kubelet's socket where one is given.
    ///
    /// # Panics
    /// Outside of a tokio runtime: following begins at once.
    #[must_use]
    pub fn new(
        client: ApiClient,
        node: &str,
        kubelet: Option<PathBuf>,
        timing: Timing,
    ) -> (Self, watch::Receiver<Arc<SourceState>>) {
        let (sender, receiver) = watch::channel(Arc::default());
        let feeds = Feeds::new(client, node, kubelet, timing);
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
            return self.publish(None);
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
        let (mut missing, mut view, mut waiting) = (Missing::default(), NodeView::default(), false);
        for pod in pods {
            let namespace = namespaces.get(&pod.metadata.namespace);
            let known = view::is_known(&pod, namespace, &self.feeds.owners, &mut missing);
            if known || told.contains(pod.metadata.uid.as_str()) {
                view.pods.push(pod);
            } else {
                waiting = true;
            }
        }
        self.feeds.request(&missing, now);
        for namespace in namespaces.into_values() {
            let Some((limit_ranges, hpas)) = namespace.bounds else {
                continue;
            };
            view.vpas.extend(owned(namespace.vpas.unwrap_or_default()));
            view.limit_ranges.extend(owned(limit_ranges));
            view.hpas.extend(owned(hpas));
        }
        view.owners = self.feeds.owners.all().cloned().collect();
        let node = self.feeds.node.read(|nodes| nodes.objects().next().cloned());
        view.node = node.map(Arc::unwrap_or_clone);
        // The first view waits until nothing is missing.
        let is_first = before.generation == 0;
        drop(before);
        self.publish(Some(view).filter(|_| !(is_first && waiting)));
    }

    fn publish(&self, view: Option<NodeView>) {
        SourceState::publish(&self.sender, view, self.feeds.problems());
    }
}

fn owned<T: Clone>(objects: Vec<Arc<T>>) -> impl Iterator<Item = T> {
    objects.into_iter().map(Arc::unwrap_or_clone)
}
