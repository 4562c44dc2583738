//! Turns views of the sources into decisions, and brings decisions into force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Controller;
use crate::decide::{self, PodDecision};
use crate::model::objects::{ObjectMeta, OwnerKind, Pod, VerticalPodAutoscaler};
use crate::model::{Cause, Reason};
use crate::pace::{place_in, spread_window};
use crate::plan::resize;
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::inventory::Inventory;
use crate::reconcile::pod::{PodInput, PodState};
use crate::sources::NodeView;

#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) view: Arc<NodeView>,
    /// Whether every source has answered.
    pub(super) seen: bool,
    pub(super) problems: Vec<String>,
}

impl Sources {
    pub(super) fn vpa_of(&self, state: &PodState) -> Option<&VerticalPodAutoscaler> {
        let name = state.decision.vpa.as_ref()?;
        let mut vpas = self.view.vpas.iter();
        vpas.find(|vpa| is_named(&vpa.metadata, name, state))
    }

    /// The cause of passes that follow the pod's decision.
    fn cause(&self, state: &PodState) -> Option<Cause> {
        let decision = &state.decision;
        let vpa = decision.vpa.clone()?;
        if decision.reason == Reason::StartupBoostEnded {
            return Some(Cause::BoostEnded { vpa });
        }
        let version = self.vpa_of(state).map(|vpa| vpa.metadata.resource_version.clone());
        Some(Cause::Recommendation {
            vpa,
            resource_version: version.unwrap_or_default(),
            reason: decision.change().map_or(decision.reason, |(reason, _)| reason),
        })
    }

    /// How many pods of the cluster follow the same recommendation.
    fn pods_of_workload(&self, state: &PodState) -> u64 {
        let target = self.vpa_of(state).and_then(|vpa| vpa.spec.target_ref.as_ref());
        let Some(target) = target else { return 0 };
        let kind = OwnerKind::named(&target.kind);
        let mut owners = self.view.owners.iter();
        let owner = owners.find(|owner| Some(owner.kind) == kind && is_named(&owner.metadata, &target.name, state));
        owner.map_or(0, |owner| owner.pods)
    }

    /// The delay of this node's pass after a change that pods of many nodes follow.
    fn delay(&self, state: &PodState) -> Duration {
        let window = spread_window(self.pods_of_workload(state));
        place_in(window, &state.pod.spec.node_name, &state.pod.metadata.uid)
    }
}

/// Whether an object in the pod's namespace has this name.
fn is_named(metadata: &ObjectMeta, name: &str, state: &PodState) -> bool {
    metadata.name == name && metadata.namespace == state.pod.metadata.namespace
}

/// One object for each name. A pod and its successor may be described side by side: the running one counts, or else the last.
fn one_of_each_name<'a>(pods: &'a [Arc<Pod>], inventory: &Inventory) -> BTreeMap<String, &'a Arc<Pod>> {
    let mut chosen: BTreeMap<String, &Arc<Pod>> = BTreeMap::new();
    for pod in pods {
        let earlier = chosen.entry(pod.full_name()).or_insert(pod);
        if inventory.find(pod).is_some() || inventory.find(earlier).is_none() {
            *earlier = pod;
        }
    }
    chosen
}

impl Controller {
    pub(super) fn take_view(&mut self, view: Arc<NodeView>, problems: Vec<String>) {
        let other_pods = !self.sources.seen || self.sources.view.pods != view.pods;
        let other_node = other_pods || self.sources.view.node != view.node;
        self.sources = Sources {
            view,
            seen: true,
            problems,
        };
        // The kubelet's version may have changed.
        self.take_node(self.node.known());
        self.decide_all(Timestamp::now());
        self.match_live();
        if other_node && self.endpoint.get().is_some() {
            self.apply_where(|_| true, || PodInput::RoomFreed);
        }
        if other_pods {
            // Manifests may have the names of containers that discovery could not name.
            self.node.request_discovery();
        }
    }

    /// The sources have no view yet. If they have problems, the saved desired state stays in force; otherwise the
    /// controller waits for the first view.
    pub(super) fn take_source_problems(&mut self, problems: Vec<String>) {
        self.sources.problems = problems;
        if self.sources.problems.is_empty() || self.sources.seen {
            return;
        }
        for pod in self.store.described() {
            self.pods.add(&pod);
        }
        if self.pods.len() > 0 {
            let problem = "until the sources answer, what stood when the agent last ended counts";
            self.sources.problems.push(problem.to_owned());
        }
        self.match_live();
    }

    /// Decides for every pod of the view, and brings the decisions into force. Pods that left the view are forgotten.
    pub(super) fn decide_all(&mut self, now: Timestamp) {
        // A pause of growth may be over.
        self.guard.stale = true;
        if !self.sources.seen {
            // No view is not the same as an empty view.
            return;
        }
        let view = Arc::clone(&self.sources.view);
        let index = decide::Index::new(&view.owners, &view.vpas, &view.limit_ranges, &view.hpas);
        let decision_maker = DecisionMaker {
            trouble: self.troubles(),
            index: &index,
            options: decide::Options {
                managers: self.node.managers(),
                ..self.options.decide.clone()
            },
            observe_only: self.options.observe_only,
            patches: self.endpoint.get().is_some(),
            now,
        };
        let described = one_of_each_name(&view.pods, &self.node.found.inventory);
        let is_same = |key: &str, state: &PodState| {
            let pod = described.get(key);
            pod.is_some_and(|pod| pod.cgroup_uid() == state.pod.cgroup_uid())
        };
        for (key, state) in self.pods.retain(is_same) {
            self.forget_pod(&key, &state);
        }
        for (key, pod) in &described {
            let reason = self.pods.get(key).map(|state| state.decision.reason);
            match reason {
                Some(_) => self.apply(key, PodInput::Described(Arc::clone(pod))),
                None => self.pods.add(pod),
            }
            self.decide_one(key, &decision_maker);
            if let Some(state) = self.pods.get(key).filter(|state| Some(state.decision.reason) != reason) {
                self.publisher.metrics.decided(&state.decision);
            }
        }
        self.follow_all(&decision_maker);
    }

    /// When the pods that get recommendations first were last in trouble, by namespace and VPA.
    fn troubles(&self) -> BTreeMap<(String, String), Timestamp> {
        let mut troubles = BTreeMap::new();
        for state in self.pods.values().filter(|state| state.decision.canary.goes_first) {
            if let (Some(vpa), Some(at)) = (&state.decision.vpa, state.in_trouble()) {
                let latest = troubles
                    .entry((state.pod.metadata.namespace.clone(), vpa.clone()))
                    .or_insert(at);
                *latest = at.max(*latest);
            }
        }
        troubles
    }

    fn forget_pod(&mut self, key: &str, state: &PodState) {
        self.passes.shrink_watches.remove(key);
        self.files.forget(key);
        self.requests.drop_all(state);
        if let Some(id) = &state.identity {
            self.guard.least_limits.forget(&id.uid);
        }
        if !state.desired.is_empty() {
            tracing::info!(
                pod = key,
                "no longer described by any source; its values are left as they are"
            );
        }
    }

    fn decide_one(&mut self, key: &str, decision_maker: &DecisionMaker<'_>) {
        let started = std::time::Instant::now();
        let Some(decision) = self.pods.get(key).map(|state| Box::new(decision_maker.decide(state))) else {
            return;
        };
        let took = started.elapsed();
        self.apply(key, PodInput::Decided { decision, took });
    }

    /// Brings all decisions into force. Recommendations without room are tried again every time, and at once after
    /// another pod has come to request less.
    fn follow_all(&mut self, decision_maker: &DecisionMaker<'_>) {
        let mut capacity = self.capacity();
        let all = self.pods.keys_of(|_| true);
        for key in &all {
            self.follow(key, &mut capacity, decision_maker);
        }
        let refused = self.pods.keys_of(|state| state.no_room.is_some());
        for key in &refused {
            if capacity.has_freed() {
                self.follow(key, &mut capacity, decision_maker);
            }
            let cause = self.pods.get(key).and_then(|state| self.sources.cause(state));
            self.apply(key, PodInput::StillNoRoom(cause));
        }
    }

    fn follow(&mut self, key: &str, capacity: &mut NodeCapacity, decision_maker: &DecisionMaker<'_>) {
        let Some(state) = self.pods.get(key) else { return };
        let recommended = state.recommendation(decision_maker.now);
        let refused = recommended.and_then(|recommended| capacity.admit(state, &recommended).err());
        let requested = capacity.requests_of(state);
        let targets = state.desired.targets(&state.pod);
        let input = PodInput::Followed {
            refused: refused.map(|full| full.to_string()),
            cause: self.sources.cause(state),
            delay: self.sources.delay(state),
        };
        self.apply(key, input);
        let Some(state) = self.pods.get(key) else { return };
        if state.desired.targets(&state.pod) != targets {
            capacity.update(requested, state);
            // The decision shown to users compares with the new targets.
            self.decide_one(key, decision_maker);
        }
    }
}

/// The inputs of `decide` that all pods share.
struct DecisionMaker<'a> {
    index: &'a decide::Index<'a>,
    options: decide::Options,
    observe_only: bool,
    /// Whether the agent patches pods whose kubelet resizes in place.
    patches: bool,
    /// The result of [`Controller::troubles`].
    trouble: BTreeMap<(String, String), Timestamp>,
    now: Timestamp,
}

impl DecisionMaker<'_> {
    fn decide(&self, state: &PodState) -> PodDecision {
        // With observeOnly, no recommendation comes into force.
        let recommended = state.desired.recommended.as_ref().filter(|_| !self.observe_only);
        let in_force = recommended.map(|recommended| &*recommended.targets);
        let pod = &state.without_own_changes();
        // Where the kubelet resizes in place, the spec has the latest targets, whichever client set them.
        let spec = (self.patches && resize::supports_in_place_resize(pod)).then(|| pod.requirements());
        let vpa = state.decision.vpa.clone();
        let known = decide::EarlierDecisions {
            applied: spec.as_deref().or(in_force),
            waits: state.decision.canary.waits.as_ref(),
            trouble: vpa.and_then(|vpa| self.trouble.get(&(pod.metadata.namespace.clone(), vpa)).copied()),
        };
        decide::decide_pod(pod, self.index, self.now, &self.options, known)
    }
}
