//! Turns views of the sources into decisions, and brings decisions into force.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Controller;
use crate::decide::{self, PodDecision};
use crate::model::objects::{ContainerStatus, OwnerKind, Pod, PodKey, ResizePhase, Shared, VerticalPodAutoscaler};
use crate::model::{Cause, Reason, Requirements, ResourceList, Withheld};
use crate::pace::{place_in, spread_window};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::desired::Recommended;
use crate::reconcile::inventory::Inventory;
use crate::reconcile::metrics::decision_labels;
use crate::reconcile::pod::{Check, Now, PodInput, PodState, Pods};
use crate::resize::{self, NodeSupport};
use crate::sources::{KnownObjects, NodeView, Undecided};

#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) view: Arc<NodeView>,
    /// The VPAs by namespace and name: every pod looks for its VPA, and any namespace may have thousands.
    vpas: HashMap<String, HashMap<String, Shared<VerticalPodAutoscaler>>>,
    /// The namespaces with other objects or pods than at the latest decisions.
    pub(super) changed: BTreeSet<String>,
    /// Whether every source has answered.
    pub(super) seen: bool,
    pub(super) problems: Vec<String>,
    /// The rules of the latest decisions.
    rules: Option<Rules>,
}

impl Sources {
    /// Replaces the view once every source has answered. Returns the namespaces that changed, with their objects before and now.
    fn replace(&mut self, view: Arc<NodeView>, problems: Vec<String>) -> BTreeMap<String, [Arc<KnownObjects>; 2]> {
        let changed = view.changed_since(&self.view);
        for (namespace, [_, after]) in &changed {
            // Of several with one name the first counts.
            let named = |vpa: &Shared<VerticalPodAutoscaler>| (vpa.metadata.name.clone(), vpa.clone());
            let vpas = after.vpas.iter().rev().map(named);
            self.vpas.insert(namespace.clone(), vpas.collect());
        }
        self.vpas.retain(|_, vpas| !vpas.is_empty());
        self.changed.extend(changed.keys().cloned());
        (self.view, self.seen, self.problems) = (view, true, problems);
        changed
    }

    pub(super) fn vpa_of(&self, state: &PodState) -> Option<&Shared<VerticalPodAutoscaler>> {
        let name = state.decision.vpa.as_ref()?;
        self.vpas.get(&state.pod.metadata.namespace)?.get(name)
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
            let known = self.view.namespaces.get(&state.pod.metadata.namespace)?;
            let mut owners = known.owners.iter();
            owners.find(|owner| Some(owner.kind) == kind && owner.metadata.name == target.name)
        });
        let window = spread_window(owner.map_or(0, |owner| owner.pods));
        place_in(window, &state.pod.spec.node_name, &state.pod.metadata.uid)
    }
}

/// One object for each name. A pod and its successor may be described side by side: the running one counts, or else the last.
fn one_of_each_name<'a>(known: &[&'a KnownObjects], inventory: &Inventory) -> BTreeMap<PodKey, &'a Arc<Pod>> {
    let mut chosen: BTreeMap<PodKey, &Arc<Pod>> = BTreeMap::new();
    for pod in known.iter().flat_map(|known| &known.pods) {
        let earlier = chosen.entry(pod.key()).or_insert(pod);
        if inventory.find(pod).is_some() || inventory.find(earlier).is_none() {
            *earlier = pod;
        }
    }
    chosen
}

/// Whether two views have the same pods with the same containers, specs and amounts: an edit of anything else needs no discovery,
/// which asks the runtime for all of them, and leaves no more room than before.
fn have_same_containers(before: &KnownObjects, after: &KnownObjects) -> bool {
    type Container<'a> = (Option<&'a str>, bool, Option<Requirements>, Option<ResourceList>);
    fn container(status: &ContainerStatus) -> Container<'_> {
        let is_running = status.state.running.is_some();
        (
            status.bare_id(),
            is_running,
            status.resources,
            status.allocated_resources,
        )
    }
    let same = |(before, after): (&Arc<Pod>, &Arc<Pod>)| {
        let same_pod = || {
            let same_name = before.cgroup_uid() == after.cgroup_uid() && before.key() == after.key();
            let amounts = |pod: &Pod| (ResizePhase::of(pod), pod.status.resources, pod.has_ended());
            same_name && before.spec == after.spec && amounts(before) == amounts(after)
        };
        let same_containers = || before.statuses().map(container).eq(after.statuses().map(container));
        Arc::ptr_eq(before, after) || (same_pod() && same_containers())
    };
    before.pods.len() == after.pods.len() && before.pods.iter().zip(&after.pods).all(same)
}

/// Whether other objects are the same that decisions read, besides pods.
fn decide_alike(before: &KnownObjects, after: &KnownObjects) -> bool {
    let alike = before.owners == after.owners && before.vpas == after.vpas;
    alike && before.limit_ranges == after.limit_ranges && before.hpas == after.hpas
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
        let pods = view.pods().count();
        tracing::debug!(pods, ?problems, "a view of the node's pods arrives");
        let (is_first, before) = (!self.sources.seen, Arc::clone(&self.sources.view));
        // A pod may request less after an input that is no view, such as the end of an override.
        let other_requests = self.decides || !self.pods.changed.is_empty();
        let changed = self.sources.replace(view, problems);
        let view = Arc::clone(&self.sources.view);
        let differs = |alike: fn(&KnownObjects, &KnownObjects) -> bool| {
            let other = changed.iter().filter(|(_, [before, after])| !alike(before, after));
            other.map(|(namespace, _)| namespace).collect::<BTreeSet<_>>()
        };
        let other_pods = is_first || !differs(|before, after| before.pods == after.pods).is_empty();
        let other_containers = is_first || !differs(have_same_containers).is_empty();
        let other_node = before.node != view.node;
        let ready_since = |view: &NodeView| view.node.as_ref().and_then(|node| node.status.ready_since());
        if ready_since(&view).is_some() && ready_since(&view) != ready_since(&before) {
            // A kubelet that starts is not ready for a moment.
            self.node.answers.forget();
        }
        let other_quotas = differs(|before, after| before.quotas == after.quotas);
        let guarded = |state: &PodState| other_quotas.contains(&state.pod.metadata.namespace);
        self.guard.changed.extend(self.pods.keys_of(guarded));
        let namespaces = differs(decide_alike);
        let has_new_objects = |state: &PodState| {
            let [before, after] = [&before, &view].map(|view| view.undecided(&state.pod));
            is_first || before.is_some() && before != after
        };
        let is_concerned = |state: &PodState| namespaces.contains(&state.pod.metadata.namespace);
        let concerned = self.pods.keys_of(|state| is_concerned(state) || has_new_objects(state));
        self.pods.changed.extend(concerned);
        // The kubelet's version may have changed.
        self.take_node(self.node.known());
        let room = other_containers || other_node || other_requests;
        self.decide_changed(Timestamp::now(), room);
        if other_pods {
            self.match_live();
        }
        self.follow_api_server(has_new_objects);
        if (other_pods || other_node) && self.endpoint.get().is_some() {
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
        self.decide_changed(Timestamp::now(), true);
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
        self.decide_changed(now, true);
    }

    /// Decides for the pods of the view about which anything has changed, or whose change waits, and brings the decisions into
    /// force. Pods that left the view are forgotten, and those that cannot be decided about keep what they have. Without `room`, no
    /// pod has got any: changes wait on in namespaces in which nothing has changed.
    pub(super) fn decide_changed(&mut self, now: Timestamp, room: bool) {
        if !self.sources.seen {
            // No view is not the same as an empty view.
            return;
        }
        let view = Arc::clone(&self.sources.view);
        self.learn_refusals(&view, now);
        let rules = Rules {
            options: decide::Options {
                refusals: self.node.refusals(),
                ..self.config.decide_options()
            },
            support: self.node.known().map(|node| self.node_support(&node, Now::read())),
            observes: self.config.observe_only,
            patches: self.endpoint.get().is_some(),
        };
        let is_every = self.sources.rules.as_ref() != Some(&rules);
        let changed = std::mem::take(&mut self.pods.changed);
        let mut namespaces = std::mem::take(&mut self.sources.changed);
        let waiting = self.pods.keys_of(|state| is_every || room && has_open_change(state));
        namespaces.extend(changed.iter().chain(&waiting).map(|key| key.namespace().to_owned()));
        let known = namespaces.iter().filter_map(|namespace| view.namespaces.get(namespace));
        let known: Vec<&KnownObjects> = known.map(|known| &**known).collect();
        let decider = Decider {
            index: decide::Index::new(known.iter().copied()),
            rules,
            troubles: self.troubles(),
            now,
        };
        let mut described = one_of_each_name(&known, &self.node.found.inventory);
        let gone = self.pods.iter().filter(|(key, state)| {
            let pod = described.get(*key);
            let is_gone = pod.is_none_or(|pod| pod.cgroup_uid() != state.pod.cgroup_uid());
            is_gone && namespaces.contains(key.namespace())
        });
        let gone: Vec<PodKey> = gone.map(|(key, _)| key.clone()).collect();
        self.apply_to_all(gone, || PodInput::Removed);
        described.retain(|key, pod| {
            let known = self.pods.get(key).filter(|_| !is_every && !changed.contains(key));
            known.is_none_or(|state| !Arc::ptr_eq(&state.pod, pod) || has_open_change(state))
        });
        let (mut decided, mut freed) = (BTreeMap::new(), false);
        for (key, pod) in described {
            let reason = self.pods.get(&key).map(|state| state.decision.reason);
            self.pods.add(pod);
            self.apply(&key, PodInput::Described(Arc::clone(pod)));
            // Where the API server refuses its VPAs, a manifest may have the pod's.
            let lacks_vpa = |state: &PodState| decider.decide(state).vpa.is_none();
            let (state, undecided) = (self.pods.get(&key), view.undecided(pod));
            let is_open = undecided == Some(Undecided::Refused) && state.is_none_or(lacks_vpa);
            let had_vpa = state.is_some_and(|state| state.decision.vpa.is_some());
            if undecided == Some(Undecided::Awaited) || is_open && !had_vpa {
                continue;
            }
            if is_open {
                // The manifest that decided about it has gone, and with it what is not in force yet.
                freed = true;
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
        freed |= !decided.is_empty() && self.follow_all(&decided, &decider, room);
        // A pod elsewhere may get what another one has come to request less.
        self.decides |= freed && !room;
        self.sources.rules = Some(decider.rules);
    }

    /// Learns what the kubelet refuses from the pods whose resize it has found infeasible, and forgets what does not count any more.
    fn learn_refusals(&mut self, view: &NodeView, now: Timestamp) {
        let answers = &mut self.node.answers;
        answers.forget_old_denials(now);
        let has_pods = |known: &Arc<KnownObjects>| !known.pods.is_empty();
        answers.retain_namespaces(|namespace| view.namespaces.get(namespace).is_some_and(has_pods));
        for pod in view.pods() {
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
    /// again every time, and at once after another pod has come to request less. Returns whether one has. Without `room`, that is left to
    /// the decisions about all pods that wait.
    fn follow_all(&mut self, decided: &BTreeMap<PodKey, &Arc<Pod>>, decider: &Decider<'_>, room: bool) -> bool {
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
        if capacity.freed && !room {
            return true;
        }
        for key in &in_order(&self.pods, |state| state.no_room.is_some()) {
            if capacity.freed {
                self.follow(key, &mut capacity, decider);
            }
            let Some(state) = self.pods.get(key) else { continue };
            let cause = self.sources.cause(state);
            self.apply(key, PodInput::StillNoRoom(cause));
        }
        capacity.freed
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
