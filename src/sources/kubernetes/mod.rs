//! The API server → the latest [`SourceState`] of this node.
//!
//! One task, [`KubernetesSource::run`], follows the pods bound to this node, at the API server or at the kubelet, and the
//! Node itself. In the namespaces of these pods it follows the VPAs. Where a VPA targets the workload of a local pod, it
//! also follows the LimitRanges and HorizontalPodAutoscalers of the namespace. It reads workloads one by one (`owners`). It
//! follows nothing for the whole cluster, so the load of a node on the API server depends on that node alone.
//!
//! A pod enters the view once all objects that decide about it are known (`view`), and stays until it leaves the node.
//! During an outage the last state stays, with a problem.

mod kinds;
mod owners;
#[cfg(test)]
mod tests;
mod view;
mod watches;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{NodeView, SourceState};
use crate::kubernetes::{ApiClient, Timing};
use view::Missing;
use watches::ClusterWatches;

/// How long a burst of changes is collected before the view is built.
const QUIET: Duration = Duration::from_millis(1);

/// Follows the part of the cluster that concerns one node.
#[derive(Debug)]
pub struct KubernetesSource {
    watches: ClusterWatches,
    sender: watch::Sender<Arc<SourceState>>,
}

impl KubernetesSource {
    /// Makes a source and the receiver of its states. Pods come from the kubelet's socket, if one is given.
    ///
    /// # Panics
    /// Outside of a tokio runtime, because following begins at once.
    #[must_use]
    pub fn new(
        client: ApiClient,
        node: &str,
        kubelet: Option<PathBuf>,
        timing: Timing,
    ) -> (Self, watch::Receiver<Arc<SourceState>>) {
        let (sender, receiver) = watch::channel(Arc::default());
        let watches = ClusterWatches::new(client, node, kubelet, timing);
        (Self { watches, sender }, receiver)
    }

    /// Follows the cluster until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.update_view();
            let wake = self.watches.next_due();
            tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: notifications and answers stay until they are taken.
                () = self.watches.changed_or_answered() => sleep(QUIET).await,
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Builds and publishes the view, and requests missing objects.
    fn update_view(&mut self) {
        let now = Instant::now();
        let pods = self
            .watches
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
        self.watches.follow_vpas(&wanted, now);
        let namespaces = self.watches.namespaces();
        // Pods of the last view stay while further objects about them are requested.
        let before = Arc::clone(&self.sender.borrow());
        let published: HashSet<&str> = before.view.pods.iter().map(|pod| pod.metadata.uid.as_str()).collect();
        let (mut missing, mut view, mut waiting) = (Missing::default(), NodeView::default(), false);
        for pod in pods {
            let namespace = namespaces.get(&pod.metadata.namespace);
            let known = view::is_known(&pod, namespace, &self.watches.owners, &mut missing);
            if known || published.contains(pod.metadata.uid.as_str()) {
                view.pods.push(pod);
            } else {
                waiting = true;
            }
        }
        self.watches.request(&missing, now);
        for namespace in namespaces.into_values() {
            let Some((limit_ranges, hpas)) = namespace.bounds else {
                continue;
            };
            view.vpas.extend(owned(namespace.vpas.unwrap_or_default()));
            view.limit_ranges.extend(owned(limit_ranges));
            view.hpas.extend(owned(hpas));
        }
        view.owners = self.watches.owners.all().cloned().collect();
        let node = self.watches.node.read(|nodes| nodes.objects().next().cloned());
        view.node = node.map(Arc::unwrap_or_clone);
        // The first view waits for all pods.
        let is_first = before.generation == 0;
        drop(before);
        self.publish(Some(view).filter(|_| !(is_first && waiting)));
    }

    fn publish(&self, view: Option<NodeView>) {
        SourceState::publish(&self.sender, view, self.watches.problems());
    }
}

fn owned<T: Clone>(objects: Vec<Arc<T>>) -> impl Iterator<Item = T> {
    objects.into_iter().map(Arc::unwrap_or_clone)
}
