//! Turns views of the sources into decisions, and brings decisions into force.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Controller;
use crate::decide::{self, PodDecision};
use crate::model::objects::{
    ContainerStatus, ObjectMeta, OwnerKind, Pod, PodKey, ResizePhase, Shared, VerticalPodAutoscaler,
};
use crate::model::{Cause, Reason, Requirements, Withheld};
use crate::pace::{place_in, spread_window};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::desired::Recommended;
use crate::reconcile::inventory::Inventory;
use crate::reconcile::metrics::decision_labels;
use crate::reconcile::pod::{Check, Now, PodInput, PodState, Pods};
use crate::resize::{self, NodeSupport};
use crate::sources::{NodeView, Undecided};

#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) view: Arc<NodeView>,
    /// The places of the VPAs in the view, by namespace and name: every pod looks for its VPA, and any namespace may have
    /// thousands.
    vpas: HashMap<String, HashMap<String, usize>>,
    /// Whether every source has answered.
    pub(super) seen: bool,
    pub(super) problems: Vec<String>,
    /// The rules of the latest decisions.
    rules: Option<Rules>,
}

impl Sources {
    /// The sources once every one has answered.
    fn of(view: Arc<NodeView>, problems: Vec<String>) -> Self {
        let mut vpas = HashMap::<String, HashMap<String, usize>>::new();
        for (place, vpa) in view.vpas.iter().enumerate() {
            let ObjectMeta { namespace, name, .. } = &vpa.metadata;
            let of_namespace = vpas.entry(namespace.clone()).or_default();
            of_namespace.entry(name.clone()).or_insert(place);
        }
        Self {
            view,
            vpas,
            seen: true,
            problems,
            rules: None,
        }
    }

    pub(super) fn vpa_of(&self, state: &PodState) -> Option<&Shared<VerticalPodAutoscaler>> {
        let name = state.decision.vpa.as_ref()?;
        let place = self.vpas.get(&state.pod.metadata.namespace)?.get(name)?;
        self.view.vpas.get(*place)
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
            version: version.unwrap_or_default(),
            reason: decision.change().map_or(decision.reason, |(reason, _)| reason),
        })
    }

    /// The delay of this node's pass after a change that pods of many nodes follow.
    fn delay(&self, state: &PodState) -> Duration {
        let target = self.vpa_of(state).and_then(|vpa| vpa.spec.target_ref.as_ref());
        let owner = target.and_then(|target| {
            let kind = OwnerKind::named(&target.kind);
            let mut owners = self.view.owners.iter();
            owners.find(|owner| Some(owner.kind) == kind && is_named(&owner.metadata, &target.name, state))
        });
        let window = spread_window(owner.map_or(0, |owner| owner.pods));
        place_in(window, &state.pod.spec.node_name, &state.pod.metadata.uid)
    }
}

/// Whether an object in the pod's namespace has this name.
fn is_named(metadata: &ObjectMeta, name: &str, state: &PodState) -> bool {
    metadata.name == name && metadata.namespace == state.pod.metadata.namespace
}

/// One object for each name. A pod and its successor may be described side by side: the running one counts, or else the last.
fn one_of_each_name<'a>(pods: &'a [Arc<Pod>], inventory: &Inventory) -> BTreeMap<PodKey, &'a Arc<Pod>> {
    let mut chosen: BTreeMap<PodKey, &Arc<Pod>> = BTreeMap::new();
    for pod in pods {
        let earlier = chosen.entry(pod.key()).or_insert(pod);
        if inventory.find(pod).is_some() || inventory.find(earlier).is_none() {
            *earlier = pod;
        }
    }
    chosen
}

/// Whether two views have the same pods with the same containers, specs and resizes: an edit of anything else needs no discovery,
/// which asks the runtime for all of them.
fn have_same_containers(before: &[Arc<Pod>], after: &[Arc<Pod>]) -> bool {
    fn container(status: &ContainerStatus) -> (Option<&str>, bool, Option<Requirements>) {
        (status.bare_id(), status.state.running.is_some(), status.resources)
    }
    let same = |(before, after): (&Arc<Pod>, &Arc<Pod>)| {
        let same_pod = || {
            let same_name = before.cgroup_uid() == after.cgroup_uid() && before.key() == after.key();
            same_name && before.spec == after.spec && ResizePhase::of(before) == ResizePhase::of(after)
        };
        let same_containers = || before.statuses().map(container).eq(after.statuses().map(container));
        Arc::ptr_eq(before, after) || (same_pod() && same_containers())
    };
    before.len() == after.len() && before.iter().zip(after).all(same)
}

/// The namespaces with other objects than before that decisions read, besides pods.
fn changed_namespaces(before: &NodeView, after: &NodeView) -> BTreeSet<String> {
    fn changed<T: PartialEq>(
        before: &[Shared<T>],
        after: &[Shared<T>],
        metadata: fn(&T) -> &ObjectMeta,
    ) -> BTreeSet<String> {
        let mut objects: BTreeMap<&str, [Vec<&Shared<T>>; 2]> = BTreeMap::new();
        for (side, list) in [before, after].into_iter().enumerate() {
            for object in list {
                objects.entry(&metadata(object).namespace).or_default()[side].push(object);
            }
        }
        let changed = objects.into_iter().filter(|(_, [before, after])| before != after);
        changed.map(|(namespace, _)| namespace.to_owned()).collect()
    }
    let namespaces = [
        changed(&before.owners, &after.owners, |owner| &owner.metadata),
        changed(&before.vpas, &after.vpas, |vpa| &vpa.metadata),
        changed(&before.limit_ranges, &after.limit_ranges, |range| &range.metadata),
        changed(&before.hpas, &after.hpas, |hpa| &hpa.metadata),
    ];
    namespaces.into_iter().flatten().collect()
}

/// Whether the pod's change waits, as it may for room, for a quota or for other pods.
fn has_open_change(state: &PodState) -> bool {
    let decision = &state.decision;
    state.no_room.is_some() || decision.change().is_some() || decision.canary.waits.is_some()
}

/// What decisions about every pod depend on.
#[derive(Debug, PartialEq)]
struct Rules {
    options: decide::Options,
    /// What the kubelet can resize, if the node is known.
    support: Option<NodeSupport>,
    /// The agent only observes: no recommendation comes into force.
    observes: bool,
    patches: bool,
}

/// Decides for one pod after another, with the facts that they share.
struct Decider<'a> {
    index: decide::Index<'a>,
    rules: Rules,
    /// When the pods that get recommendations first were last in trouble, by namespace and VPA.
    troubles: BTreeMap<(String, String), Timestamp>,
    now: Timestamp,
}

impl Decider<'_> {
    /// Decides what a pod should have.
    fn decide(&self, state: &PodState) -> PodDecision {
        let recommended = state.desired.recommended.as_ref().filter(|_| !self.rules.observes);
        let pod = &state.desired.without_own_changes(&state.pod, &state.resize);
        // Where the kubelet resizes in place, the spec has the latest targets, whichever client set them. The kubelet never
        // carries out what it has found infeasible.
        let resizes = self.rules.patches
            && match &self.rules.support {
                Some(support) => support.may_resize(pod, self.now),
                None => pod.resizes_in_place(),
            };
        let spec = resizes.then(|| match ResizePhase::of(pod) {
            phase @ ResizePhase::Withheld(Withheld::Infeasible(_)) => resize::granted(pod, &phase, None),
            _ => pod.requirements(),
        });
        let vpa = state.decision.vpa.clone();
        let trouble = vpa.and_then(|vpa| self.troubles.get(&(pod.metadata.namespace.clone(), vpa)));
        let known = decide::EarlierDecisions {
            applied: spec.as_ref().or(recommended.map(|recommended| &recommended.targets)),
            waits: state.decision.canary.waits.as_ref(),
            others_request: resizes && !state.resize.is_ours(&state.pod),
            trouble: trouble.copied(),
            own_trouble: state.trouble,
            burst: state.desired.burst,
        };
        let mut decision = decide::decide_pod(pod, &self.index, self.now, &self.rules.options, known);
        decision.canary.is_observed = self.rules.observes;
        decision
    }
}

impl Controller {
    pub(super) fn take_view(&mut self, view: Arc<NodeView>, problems: Vec<String>) {
        tracing::debug!(pods = view.pods.len(), ?problems, "a view of the node's pods arrives");
        let is_first = !self.sources.seen;
        let other_pods = is_first || self.sources.view.pods != view.pods;
        let other_containers = is_first || !have_same_containers(&self.sources.view.pods, &view.pods);
        let other_node = other_pods || self.sources.view.node != view.node;
        let ready_since = |view: &NodeView| view.node.as_ref().and_then(|node| node.status.ready_since());
        if ready_since(&view).is_some() && ready_since(&view) != ready_since(&self.sources.view) {
            // A kubelet that starts is not ready for a moment.
            self.node.answers.forget();
        }
        if self.sources.view.quotas != view.quotas {
            self.watch_all();
        }
        let views = [&self.sources.view, &view].map(Arc::clone);
        let namespaces = changed_namespaces(&views[0], &views[1]);
        let has_new_objects = |state: &PodState| {
            let [before, after] = views
                .each_ref()
                .map(|view| view.undecided_pods.get(&state.pod.metadata.uid));
            is_first || before.is_some() && before != after
        };
        let is_concerned = |state: &PodState| namespaces.contains(&state.pod.metadata.namespace);
        let concerned = self.pods.keys_of(|state| is_concerned(state) || has_new_objects(state));
        self.pods.changed.extend(concerned);
        self.sources = Sources {
            rules: self.sources.rules.take(),
            ..Sources::of(view, problems)
        };
        // The kubelet's version may have changed.
        self.take_node(self.node.known());
        self.decide_changed(Timestamp::now());
        self.match_live();
        self.follow_api_server(has_new_objects);
        if other_node && self.endpoint.get().is_some() {
            self.follow_freed_room(Timestamp::now());
        }
        if other_containers {
            // The pods may have the names of containers that discovery could not name.
            self.node.request_discovery();
        }
    }

    /// Makes a pass due for each pod whose resize waits for room and has it now. The room of one pod is taken for the next ones.
    pub(super) fn follow_freed_room(&mut self, now: Timestamp) {
        // Most often no pod waits.
        let mut capacity = None;
        let mut has_room = |state: &PodState| {
            let targets = state.targets(now).unwrap_or_default();
            let capacity = capacity.get_or_insert_with(|| self.capacity(self.pods.values()));
            let facts = capacity.reserve(state, &targets);
            facts.why_full(&state.pod, &targets).is_none()
        };
        let waiting = self.pods.iter();
        let freed = waiting.filter(|(_, state)| state.resize.has_no_room() && has_room(state));
        let freed: Vec<PodKey> = freed.map(|(key, _)| key.clone()).collect();
        self.apply_to_all(freed, || PodInput::Check(Check::RoomFreed));
    }

    /// The API server is back, perhaps in a later version.
    pub(super) fn take_returned_api_server(&mut self) {
        self.node.answers.forget_denials();
        self.decide_changed(Timestamp::now());
        self.follow_api_server(|_| true);
    }

    /// The API server is back, or has sent its objects about these pods: those that only wait for that go on.
    fn follow_api_server(&mut self, concerns: impl Fn(&PodState) -> bool) {
        let waits = |state: &PodState| state.resize.waits_for_api_server() && concerns(state);
        self.apply_to_all(self.pods.keys_of(waits), || PodInput::Check(Check::ApiServerReturned));
    }

    /// The sources have no view yet. If they have problems, the saved desired state stays in force; otherwise the
    /// controller waits for the first view.
    pub(super) fn take_source_problems(&mut self, problems: Vec<String>) {
        self.sources.problems = problems;
        if self.sources.problems.is_empty() || self.sources.seen {
            return;
        }
        for pod in self.store.restored.described() {
            self.pods.add(&pod);
        }
        if self.pods.len() > 0 {
            let problem = "until the sources answer, the saved state applies";
            self.sources.problems.push(problem.to_owned());
        }
        self.match_live();
    }

    /// Decides for every pod of the view.
    pub(super) fn decide_all(&mut self, now: Timestamp) {
        self.sources.rules = None;
        self.decide_changed(now);
    }

    /// Decides for the pods of the view about which anything has changed, or whose change waits, and brings the decisions into
    /// force. Pods that left the view are forgotten, and those that cannot be decided about keep what they have.
    pub(super) fn decide_changed(&mut self, now: Timestamp) {
        if !self.sources.seen {
            // No view is not the same as an empty view.
            return;
        }
        let view = Arc::clone(&self.sources.view);
        let index = decide::Index::new(&view.owners, &view.vpas, &view.limit_ranges, &view.hpas);
        self.learn_refusals(&view, now);
        let decider = Decider {
            index,
            rules: Rules {
                options: decide::Options {
                    refusals: self.node.refusals(),
                    ..self.config.decide_options()
                },
                support: self.node.known().map(|node| self.node_support(&node, Now::read())),
                observes: self.config.observe_only,
                patches: self.endpoint.get().is_some(),
            },
            troubles: self.troubles(),
            now,
        };
        let mut described = one_of_each_name(&view.pods, &self.node.found.inventory);
        let gone = self.pods.iter().filter(|(key, state)| {
            let pod = described.get(*key);
            pod.is_none_or(|pod| pod.cgroup_uid() != state.pod.cgroup_uid())
        });
        let gone: Vec<PodKey> = gone.map(|(key, _)| key.clone()).collect();
        self.apply_to_all(gone, || PodInput::Removed);
        let is_every = self.sources.rules.as_ref() != Some(&decider.rules);
        let changed = std::mem::take(&mut self.pods.changed);
        described.retain(|key, pod| {
            let known = self.pods.get(key).filter(|_| !is_every && !changed.contains(key));
            known.is_none_or(|state| !Arc::ptr_eq(&state.pod, pod) || has_open_change(state))
        });
        let mut decided = BTreeMap::new();
        for (key, pod) in described {
            let reason = self.pods.get(&key).map(|state| state.decision.reason);
            self.pods.add(pod);
            self.apply(&key, PodInput::Described(Arc::clone(pod)));
            // Where the API server refuses its VPAs, a manifest may have the pod's.
            let lacks_vpa = |state: &PodState| decider.decide(state).vpa.is_none();
            let (state, undecided) = (self.pods.get(&key), view.undecided_pods.get(&pod.metadata.uid));
            let is_open = undecided == Some(&Undecided::Refused) && state.is_none_or(lacks_vpa);
            let had_vpa = state.is_some_and(|state| state.decision.vpa.is_some());
            if undecided == Some(&Undecided::Awaited) || is_open && !had_vpa {
                continue;
            }
            if is_open {
                // The manifest that decided about it has gone, and with it what is not in force yet.
                let (mut decision, took) = (Box::new(PodDecision::undecided(pod)), Duration::ZERO);
                decision.burst = state.and_then(|state| state.desired.burst);
                self.apply(&key, PodInput::Decided { decision, took });
                let (refused, cause, delay) = (None, None, Duration::ZERO);
                self.apply(&key, PodInput::Followed { refused, cause, delay });
            } else {
                self.decide_one(&key, &decider);
            }
            let state = self.pods.get(&key);
            if let Some(state) = state.filter(|state| Some(state.decision.reason) != reason) {
                let decisions = &self.publisher.metrics.decisions;
                decisions.get_or_create(&decision_labels(state.decision.reason)).inc();
            }
            if !is_open {
                decided.insert(key, pod);
            }
        }
        self.follow_all(&decided, &decider);
        self.sources.rules = Some(decider.rules);
    }

    /// Learns what the kubelet refuses from the pods whose resize it has found infeasible, and forgets what does not count any more.
    fn learn_refusals(&mut self, view: &NodeView, now: Timestamp) {
        let pods = &view.pods;
        let answers = &mut self.node.answers;
        answers.forget_old_denials(now);
        answers.retain_namespaces(|namespace| pods.iter().any(|pod| pod.metadata.namespace == namespace));
        for pod in pods {
            let phase = ResizePhase::of(pod);
            if let ResizePhase::Withheld(Withheld::Infeasible(words)) = &phase {
                let granted = resize::granted(pod, &phase, None);
                answers.learn(pod, &resize::differing(&granted, &pod.requirements()), words);
            }
        }
    }

    /// When the pods that get recommendations first were last in trouble, by namespace and VPA.
    fn troubles(&self) -> BTreeMap<(String, String), Timestamp> {
        let first = self.pods.values().filter(|state| state.decision.canary.goes_first);
        let troubles = first.filter_map(|state| {
            let vpa = (state.pod.metadata.namespace.clone(), state.decision.vpa.clone()?);
            Some((vpa, state.in_trouble()?))
        });
        let mut troubles: Vec<_> = troubles.collect();
        // Of one VPA the latest stays.
        troubles.sort_by_key(|(_, at)| *at);
        troubles.into_iter().collect()
    }

    fn decide_one(&mut self, key: &PodKey, decider: &Decider<'_>) {
        let started = std::time::Instant::now();
        let Some(state) = self.pods.get(key) else { return };
        let decision = Box::new(decider.decide(state));
        let took = started.elapsed();
        if state.decision.reason != decision.reason {
            tracing::debug!(pod = %key, vpa = decision.vpa, reason = %decision.reason, "decided");
        }
        self.apply(key, PodInput::Decided { decision, took });
    }

    /// Brings decisions into force, those first that have waited longest for room. Recommendations without room are tried
    /// again every time, and at once after another pod has come to request less.
    fn follow_all(&mut self, decided: &BTreeMap<PodKey, &Arc<Pod>>, decider: &Decider<'_>) {
        let mut capacity = self.capacity(self.pods.values());
        let waits_since = |state: &PodState| state.no_room.as_ref().map_or(Timestamp::MAX, |no_room| no_room.since);
        let in_order = |pods: &Pods, counts: fn(&PodState) -> bool| {
            let keys = decided.keys().filter(|key| pods.get(key).is_some_and(counts));
            let mut keys: Vec<PodKey> = keys.cloned().collect();
            keys.sort_by_cached_key(|key| pods.get(key).map(waits_since));
            keys
        };
        for key in &in_order(&self.pods, |_| true) {
            self.follow(key, &mut capacity, decider);
        }
        for key in &in_order(&self.pods, |state| state.no_room.is_some()) {
            if capacity.freed {
                self.follow(key, &mut capacity, decider);
            }
            let Some(state) = self.pods.get(key) else { continue };
            let cause = self.sources.cause(state);
            self.apply(key, PodInput::StillNoRoom(cause));
        }
    }

    fn follow(&mut self, key: &PodKey, capacity: &mut NodeCapacity, decider: &Decider<'_>) {
        let Some(state) = self.pods.get(key) else { return };
        let recommended = Recommended::of(&state.decision, decider.now);
        let refused = recommended.and_then(|recommended| capacity.admit(state, &recommended).err());
        let requested = capacity.requests_of(state);
        let targets = state.desired.targets(&state.pod);
        let input = PodInput::Followed {
            refused,
            cause: self.sources.cause(state),
            delay: self.sources.delay(state),
        };
        self.apply(key, input);
        let Some(state) = self.pods.get(key) else { return };
        if state.desired.targets(&state.pod) != targets {
            capacity.update(requested, state);
            self.pods.changed.insert(key.clone());
            // The decision shown to users compares with the new targets.
            self.decide_one(key, decider);
        }
    }
}

#[cfg(test)]
mod tests;
