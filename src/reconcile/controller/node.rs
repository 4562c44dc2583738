//! The results of discovery: the node, the pods that run, and their cgroups.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::{Controller, Event};
use crate::actuate::{Node, raise_pod_level};
use crate::decide::{NodePolicies, Refusals};
use crate::guard::LatestLimits;
use crate::model::objects::{PodKey, PodUid};
use crate::model::{BoundPod, KubeletVersion, PageSize, ResourceList, WeightFormula};
use crate::plan::LowPodLevel;
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::inventory::Inventory;
use crate::reconcile::pod::{Check, Located, PodInput, PodState};

/// The result of one discovery.
#[derive(Debug, Default)]
pub(crate) struct Discovered {
    /// The node; `None` until discovery has found all that a pass needs.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) inventory: Inventory,
    /// Memory limits that the guard of an earlier agent grew and that may not be saved, by pod UID.
    pub(crate) unsaved_limits: BTreeMap<PodUid, LatestLimits>,
    /// The pods whose cgroup is below its containers, by UID.
    pub(crate) low_pod_levels: BTreeMap<PodUid, LowPodLevel>,
    /// Whether the container runtime answered.
    pub(crate) runtime_answers: bool,
    /// The problems found, one sentence each.
    pub(crate) problems: Vec<String>,
}

impl Discovered {
    /// Whether a pod with this UID has a cgroup, or the node is not known yet.
    pub(crate) fn may_have_cgroup(&self, uid: &str) -> bool {
        self.node.is_none() || self.inventory.has_cgroup(uid)
    }
}

/// The latest discovery, and the channels to start another.
#[derive(Debug)]
pub(crate) struct NodeFacts {
    pub(crate) found: Discovered,
    pub(crate) machine: ResourceList,
    /// What the kubelet has refused since it started, and the API server has denied for a day at most, since it was last away.
    pub(crate) answers: Refusals,
    pub(crate) discover: mpsc::Sender<()>,
    /// Gets the runtime's formula of cpu weights once a pass has seen it.
    pub(crate) formula: watch::Sender<Option<WeightFormula>>,
    /// Released once the sources and the node are known.
    pub(crate) starting: Option<Arc<()>>,
}

impl NodeFacts {
    pub(crate) fn new(
        machine: ResourceList,
        discover: mpsc::Sender<()>,
        formula: watch::Sender<Option<WeightFormula>>,
        starting: Arc<()>,
    ) -> Self {
        Self {
            found: Discovered::default(),
            machine,
            answers: Refusals::default(),
            discover,
            formula,
            starting: Some(starting),
        }
    }

    pub(super) fn known(&self) -> Option<Arc<Node>> {
        self.found.node.clone()
    }

    fn policies(&self) -> NodePolicies {
        self.found.node.as_ref().map(|node| node.policies).unwrap_or_default()
    }

    /// What the kubelet and the API server refuse to resize.
    pub(super) fn refusals(&self) -> Refusals {
        self.answers.beside(self.policies(), self.kubelet())
    }

    /// The kubelet version whose rules say what pods request.
    pub(super) fn kubelet(&self) -> KubeletVersion {
        let node = self.found.node.as_ref();
        node.map_or(KubeletVersion::NEWEST, |node| node.traits.kubelet)
    }

    pub(super) fn request_discovery(&self) {
        request_discovery(&self.discover);
    }
}

fn request_discovery(discover: &mpsc::Sender<()>) {
    // A full channel means that a discovery is due anyway.
    if let Err(mpsc::error::TrySendError::Closed(())) = discover.try_send(()) {
        tracing::debug!("the node is not looked at any more: shutting down");
    }
}

impl Controller {
    pub(super) fn take_discovered(&mut self, mut discovered: Discovered) {
        let policies = self.node.policies();
        self.take_node(discovered.node.take());
        discovered.node = self.node.known();
        let problems = discovered.problems.iter();
        for problem in problems.filter(|problem| !self.node.found.problems.contains(problem)) {
            tracing::warn!("{problem}");
        }
        let mut earlier = std::mem::replace(&mut self.node.found, discovered);
        // Discovery finds these limits once. They are kept until a source describes their pod.
        self.node.found.unsaved_limits.append(&mut earlier.unsaved_limits);
        if self.node.found.node.is_some() && self.sources.seen {
            drop(self.node.starting.take());
        }
        if self.node.policies() != policies || self.sources.view.pods().count() != self.pods.len() {
            // Of two pods with one name the running one counts, and now another one may run.
            let all = self.sources.view.namespaces.keys().cloned();
            self.sources.changed.extend(all);
            self.decide_changed(Timestamp::now(), true);
        }
        self.match_live();
        let repair = self.config.repair_pod_level && !self.config.observe_only;
        let found = &self.node.found.low_pod_levels;
        let low = |state: &PodState| found.get(&state.live.as_ref()?.id.uid).copied();
        let levels = self.pods.iter().filter_map(|(key, state)| {
            let low = low(state);
            (low.is_some() || state.drift.low_pod_level().is_some()).then(|| (key.clone(), low))
        });
        for (key, low) in levels.collect::<Vec<_>>() {
            self.apply(&key, PodInput::PodLevelRead { low, repair });
        }
        if self.node.found.runtime_answers && !earlier.runtime_answers {
            self.apply_to_all(self.pods.keys_of(|_| true), || PodInput::Check(Check::RuntimeReturned));
        }
    }

    /// Replaces the node, with the kubelet version of the Node object. Values that differ because of new traits are not drift.
    pub(super) fn take_node(&mut self, node: Option<Arc<Node>>) {
        // A view without the Node object keeps the version of an earlier one.
        let before = self.node.found.node.as_ref().and_then(|before| before.known_kubelet());
        let stated = self.sources.view.kubelet_version().or(before);
        let node = node.map(|node| node.with_stated_kubelet(stated));
        let earlier = std::mem::replace(&mut self.node.found.node, node.clone());
        if earlier.as_ref().map(Arc::as_ptr) != node.as_ref().map(Arc::as_ptr) {
            self.watch_all();
        }
        if let (Some(earlier), Some(node)) = (earlier, node)
            && earlier.traits != node.traits
        {
            if earlier.traits.kubelet != node.traits.kubelet {
                // A version that replaces an assumed one is no upgrade.
                let upgraded = earlier.known_kubelet().map(|_| Timestamp::now());
                self.endpoint.start_over(upgraded);
                self.node.answers.forget();
            }
            tracing::info!(kubelet = %node.traits.kubelet, "the node has changed: planning every pod again");
            self.apply_to_all(self.pods.keys_of(|_| true), || PodInput::Check(Check::NodeChanged));
        }
    }

    /// Updates where every pod runs.
    pub(super) fn match_live(&mut self) {
        let moved = self.pods.iter().filter_map(|(key, state)| {
            let live = self.node.found.inventory.find(&state.pod);
            (state.live.as_ref() != live).then(|| (key.clone(), state.live.is_none(), live.cloned()))
        });
        let is_lost = self.store.restored.problem.is_some();
        for (key, is_new, live) in moved.collect::<Vec<_>>() {
            let id = live.as_ref().map(|live| &live.id);
            let saved = id.filter(|_| is_new).and_then(|id| self.store.take_saved(id));
            let unsaved_limits = id.and_then(|id| self.node.found.unsaved_limits.remove(&id.uid));
            // A mark keeps the lines of limits that have ended. Then an intact state file is complete.
            let unsaved_limits = unsaved_limits.filter(|limits| is_lost || !limits.is_empty());
            let located = Located {
                live,
                saved,
                unsaved_limits,
            };
            self.apply(&key, PodInput::Located(Box::new(located)));
        }
    }

    /// The capacity of the node, with the requests of these pods.
    pub(super) fn capacity<'a>(&self, pods: impl Iterator<Item = &'a PodState>) -> NodeCapacity {
        let mut capacity = NodeCapacity::of(
            pods,
            &self.sources.view,
            self.node.machine,
            self.node.kubelet(),
            self.endpoint.get().is_some(),
        );
        capacity.ask_when_full = self.config.ask_when_full;
        capacity.refusals = self.node.refusals();
        capacity.page = self.node.known().map_or(PageSize::KIB_4, |node| node.traits.page);
        capacity
    }

    /// Raises the memory limit of a pod's cgroup in a task of its own.
    pub(super) fn raise_pod_level(&self, key: &PodKey, bound: BoundPod, low: LowPodLevel) {
        let Some(node) = self.node.known() else { return };
        let (key, discover) = (key.clone(), self.node.discover.clone());
        self.passes.spawn(async move {
            let uid = bound.live().id.uid.clone();
            let raised = tokio::task::spawn_blocking(move || raise_pod_level(&node, bound.live(), low.needs)).await;
            let raised = raised.inspect_err(|panic| tracing::error!(pod = %key, %panic, "internal error"));
            let raised = Box::new(raised.ok()?);
            if raised.systemd_failed {
                // A broken connection stays broken: discovery makes another.
                request_discovery(&discover);
            }
            Some(Event::Pod(key, PodInput::PodLevelRaised { uid, raised }))
        });
    }

    /// The pods whose cgroup is below its containers, one sentence each.
    pub(super) fn pod_level_problems(&self) -> impl Iterator<Item = String> {
        self.pods.values().filter_map(|state| {
            let (name, low) = (state.pod.full_name(), state.drift.low_pod_level()?);
            Some(format!(
                "pod {name}: {low}, so the kernel kills in it before a container reaches its own limit \
                 (kubernetes/kubernetes#138760); set repairPodLevel: true to have vscaled raise it"
            ))
        })
    }
}
