//! One pod's way through the rules, from its objects to a reason.

use jiff::Timestamp;

use super::boost::{self, Boost, Boosts};
use super::canary::{Canary, Known};
use super::candidate::{Candidate, recommendations};
use super::growth::{self, Ceiling};
use super::index::{Index, Namespace};
use super::limit_range::Bounds;
use super::matching::Chain;
use super::{ACT_ANNOTATION, IGNORE_ANNOTATION, Note, Options, WithoutRestart, capping, pod_level, trigger, verdict};
use crate::model::objects::{Pod, TargetRef, UpdateMode, VerticalPodAutoscaler};
use crate::model::{Action, NamedRequirements, Reason, Resource};

/// What is known about one pod so far.
pub(super) struct Case<'a> {
    pod: &'a Pod,
    now: Timestamp,
    options: &'a Options,
    known: Known<'a>,
    /// The regular containers, then the sidecars, in their order.
    candidates: Vec<Candidate<'a>>,
    /// What the pod as a whole has, where that can be resized.
    pod_level: Option<NamedRequirements>,
    /// The topmost workload above the pod, once it is found.
    pub(super) workload: Option<TargetRef>,
    /// The VPA that controls the pod, or would, once it is found.
    pub(super) vpa: Option<&'a VerticalPodAutoscaler>,
    pub(super) notes: Vec<Note>,
    /// How far limits may grow in an emergency.
    pub(super) ceilings: Vec<Ceiling>,
    /// What becomes of startup boosts.
    pub(super) boosts: Boosts,
    /// Whether other pods have a change first.
    pub(super) canary: Canary,
    /// The part of a forbidden change that restarts no container.
    pub(super) without_restart: Option<WithoutRestart>,
}

struct Control<'a> {
    vpa: &'a VerticalPodAutoscaler,
    chain: Chain<'a>,
    /// Whether the VPA is acted on.
    acts: bool,
}

impl<'a> Case<'a> {
    pub(super) fn new(pod: &'a Pod, now: Timestamp, options: &'a Options, known: Known<'a>) -> Self {
        let applied = known.applied;
        let candidate = |container| Candidate::new(pod, container, applied);
        let applied_to_pod = applied.and_then(|applied| NamedRequirements::split(applied).1);
        let pod_level = pod.resizable_pod_level().map(|spec| *applied_to_pod.unwrap_or(&spec));
        Self {
            pod,
            now,
            options,
            known,
            candidates: pod.running_containers().map(candidate).collect(),
            pod_level: pod_level.map(NamedRequirements::of_pod),
            workload: None,
            vpa: None,
            notes: Vec::new(),
            ceilings: Vec::new(),
            boosts: Boosts::default(),
            canary: Canary::default(),
            without_restart: None,
        }
    }

    /// What every container has where nothing changes.
    pub(super) fn standing(&self) -> Vec<NamedRequirements> {
        let containers = self.candidates.iter().map(Candidate::standing);
        containers.chain(self.pod_level.clone()).collect()
    }

    /// The amounts to give all containers and why, or why to leave them.
    pub(super) fn decide(&mut self, index: &Index<'a>) -> Result<(Reason, Vec<NamedRequirements>), Reason> {
        let namespace = index.namespace(&self.pod.metadata.namespace).ok_or(Reason::NoVpa);
        match namespace.and_then(|namespace| Ok((namespace, self.control(namespace)?))) {
            Ok((namespace, Control { vpa, chain, acts: true })) => {
                self.may_change()?;
                self.by_recommendation(vpa, namespace, &chain)
            }
            Ok((namespace, control)) => self.only_boosts(namespace, &control),
            Err(reason) => Err(reason),
        }
    }

    /// What the VPA recommends is what counts.
    fn by_recommendation(
        &mut self,
        vpa: &'a VerticalPodAutoscaler,
        namespace: &Namespace<'a>,
        chain: &Chain<'a>,
    ) -> Result<(Reason, Vec<NamedRequirements>), Reason> {
        let followed = self.follow(vpa, namespace, chain);
        self.canary = Canary::of(self.pod, vpa, &mut self.notes);
        self.boosts = boost::take_up(self.pod, vpa, self.now, &mut self.candidates, &mut self.notes);
        if followed.is_ok() {
            capping::cap(&mut self.candidates, &namespace.limits, &mut self.notes);
            boost::yield_to_larger_targets(&mut self.candidates, &mut self.boosts);
        }
        let (pod, managers) = (self.pod, self.options.managers);
        let left = |resource| chain.hpa_on(resource, namespace).is_some() || managers.assign(pod, resource);
        self.ceilings = growth::ceilings(pod, &self.candidates, &namespace.limits, left);
        let due = match followed {
            Ok(()) => trigger::when(self.pod, vpa, &self.candidates, self.now, self.options, &mut self.notes),
            Err(reason) => reason,
        };
        let mut concluded = self.conclude(due, &namespace.limits.container);
        if let Err(waits @ (Reason::CanaryFirst | Reason::CanaryUnreadable)) = concluded {
            // Boosts that are over wait for nobody.
            concluded = self.conclude(waits, &namespace.limits.container);
        }
        if let Err(Reason::RestartRequired) = concluded {
            self.without_restart = self.decide_without_restart(vpa, &namespace.limits.container);
        }
        concluded
    }

    /// Decides again, with every resource left out that would restart its container. Those differ from their target for
    /// good, which is no reason to change the others.
    fn decide_without_restart(&mut self, vpa: &VerticalPodAutoscaler, limits: &Bounds) -> Option<WithoutRestart> {
        for candidate in &mut self.candidates {
            for resource in Resource::ALL {
                if candidate.spec.restarts_for(resource) {
                    candidate.leave_entirely(resource);
                }
            }
        }
        // The notes are about the whole change.
        let notes = self.notes.clone();
        let due = trigger::when(self.pod, vpa, &self.candidates, self.now, self.options, &mut self.notes);
        let concluded = self.conclude(due, limits);
        self.notes = notes;
        let (reason, containers) = concluded.ok()?;
        Some(WithoutRestart { reason, containers })
    }

    /// The VPA is not acted on. What a container was given only for its start ends all the same: a VPA of mode `Initial`
    /// says what such a container has from its creation on, else the container has what it had before.
    fn only_boosts(
        &mut self,
        namespace: &Namespace<'a>,
        control: &Control<'a>,
    ) -> Result<(Reason, Vec<NamedRequirements>), Reason> {
        let vpa = control.vpa;
        if !boost::is_marked(self.pod, vpa) || !self.options.ends_boosts(vpa) {
            return Err(Reason::NotActedOn);
        }
        self.may_change()?;
        let initial = vpa.update_mode() == UpdateMode::Initial;
        let recommends = initial && self.follow(vpa, namespace, &control.chain).is_ok();
        self.boosts = boost::take_up(self.pod, vpa, self.now, &mut self.candidates, &mut self.notes);
        if recommends {
            capping::cap(&mut self.candidates, &namespace.limits, &mut self.notes);
            boost::yield_to_larger_targets(&mut self.candidates, &mut self.boosts);
        }
        self.conclude(Reason::AtTarget, &namespace.limits.container)
    }

    /// What follows from what is `due` and from boosts that are over.
    fn conclude(&mut self, due: Reason, limits: &Bounds) -> Result<(Reason, Vec<NamedRequirements>), Reason> {
        let is_due = due.action() == Action::Resize;
        let lasts = self.candidates.iter().any(|one| one.boost == Some(Boost::Lasts));
        let content = if lasts { Reason::StartupBoost } else { due };
        if !is_due {
            if !self.candidates.iter().any(|one| one.ends_boost(Resource::Cpu)) {
                return Err(content);
            }
            self.candidates.iter_mut().for_each(Candidate::leave_all_but_boost);
        }
        let mut outcome: Vec<NamedRequirements> = self
            .candidates
            .iter()
            .map(|candidate| capping::outcome(candidate, limits, &mut self.notes))
            .collect();
        let policy = self
            .vpa
            .and_then(|vpa| vpa.spec.resource_policy.as_ref()?.pod_policy.as_ref());
        let follow =
            |pod_level: &NamedRequirements| pod_level::follow(&pod_level.resources, policy, &self.candidates, &outcome);
        let pod_level = self.pod_level.as_ref().map(follow).map(NamedRequirements::of_pod);
        outcome.extend(pod_level);
        let done = boost::taken_back(&self.candidates, &outcome);
        self.boosts.done.extend(done);
        if !verdict::changes_anything(&self.candidates, &outcome) {
            let stuck = self.candidates.iter().any(boost::is_stuck);
            let reason = if is_due { Reason::AtTarget } else { content };
            return Err(if stuck { Reason::BoostUnreadable } else { reason });
        }
        match verdict::forbids(self.pod, &self.candidates, &outcome, &mut self.notes) {
            Some(reason) => Err(reason),
            None if is_due => self.admit(due, outcome),
            None => Ok((Reason::StartupBoostEnded, outcome)),
        }
    }

    /// A due change passes, unless other pods have it first.
    fn admit(
        &mut self,
        due: Reason,
        outcome: Vec<NamedRequirements>,
    ) -> Result<(Reason, Vec<NamedRequirements>), Reason> {
        if let Some(vpa) = self.vpa {
            let (change, notes) = ((due, &*outcome), &mut self.notes);
            self.canary
                .admit(vpa, change, &self.known, self.now, self.options, notes)?;
        }
        Ok((due, outcome))
    }

    /// Finds the VPA that controls the pod, or would if it were acted on.
    fn control(&mut self, namespace: &Namespace<'a>) -> Result<Control<'a>, Reason> {
        let chain = Chain::above(self.pod, namespace);
        self.workload = chain.as_ref().ok().and_then(Chain::workload);
        let found = chain.and_then(|chain| Ok((chain.vpas(self.pod, namespace)?, chain)));
        let (vpas, chain) = found.map_err(|unmatched| {
            self.notes.push(Note::Unmatched(unmatched));
            Reason::NoVpa
        })?;
        let mut active = vpas.iter().filter(|vpa| self.options.acts_on(vpa));
        let first = active.next();
        let vpa = first.or_else(|| vpas.first()).copied();
        let outranked = active.map(|outranked| Note::Outranked {
            vpa: outranked.metadata.name.clone(),
        });
        self.notes.extend(outranked);
        self.vpa = vpa;
        let act = vpa.and_then(|vpa| Some((vpa, vpa.metadata.annotations.get(ACT_ANNOTATION)?)));
        if let Some((vpa, act)) = act.filter(|(_, act)| act.parse::<bool>().is_err()) {
            let allowed = "true or false".to_owned();
            self.notes.push(Note::unreadable(vpa, ACT_ANNOTATION, act, allowed));
        }
        let control = vpa.map(|vpa| Control {
            vpa,
            chain,
            acts: first.is_some(),
        });
        control.ok_or(Reason::NoVpa)
    }

    /// Whether the pod is in a state to be changed at all (`NewPodLister`, autoscaler `pkg/updater/logic`).
    fn may_change(&mut self) -> Result<(), Reason> {
        let pod = self.pod;
        if pod
            .metadata
            .annotations
            .get(IGNORE_ANNOTATION)
            .is_some_and(|ignore| ignore == "true")
        {
            return Err(Reason::Ignored);
        }
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            return Err(Reason::Ended);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Err(Reason::Terminating);
        }
        if pod.spec.node_name.is_empty() {
            return Err(Reason::NotScheduled);
        }
        let mut names: Vec<&str> = pod.all_containers().map(|container| container.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => {
                self.notes.push(Note::SharedName {
                    container: pair[0].to_owned(),
                });
                Err(Reason::DuplicateContainer)
            }
        }
    }

    /// Takes up the recommendation, except for what horizontal autoscalers follow and what is assigned to the pod for good.
    fn follow(
        &mut self,
        vpa: &'a VerticalPodAutoscaler,
        namespace: &Namespace<'a>,
        chain: &Chain<'a>,
    ) -> Result<(), Reason> {
        let said = recommendations(vpa).iter();
        let unknown = said.filter(|said| self.pod.container(&said.container_name).is_none());
        self.notes.extend(unknown.map(|said| Note::UnknownContainer {
            container: said.container_name.clone(),
        }));
        for candidate in &mut self.candidates {
            candidate.follow(vpa, &mut self.notes);
        }
        self.has_target_or(Reason::NoRecommendation)?;
        for resource in Resource::ALL {
            let wanted = self
                .candidates
                .iter()
                .any(|candidate| candidate.target(resource).is_some());
            if let Some(hpa) = chain.hpa_on(resource, namespace).filter(|_| wanted) {
                self.notes.push(Note::FollowedByHpa {
                    resource,
                    hpa: hpa.metadata.name.clone(),
                });
                self.leave(resource);
            }
        }
        self.has_target_or(Reason::HpaConflict)?;
        for resource in Resource::ALL {
            if self.options.managers.assign(self.pod, resource) {
                self.notes.push(Note::StaticallyAssigned { resource });
                self.leave(resource);
            }
        }
        self.has_target_or(Reason::StaticallyAssigned)
    }

    fn leave(&mut self, resource: Resource) {
        self.candidates
            .iter_mut()
            .for_each(|candidate| candidate.leave(resource));
    }

    /// Errors: the reason, where nothing is to change any more.
    fn has_target_or(&self, reason: Reason) -> Result<(), Reason> {
        let some = self.candidates.iter().any(Candidate::has_target);
        some.then_some(()).ok_or(reason)
    }
}
