//! Applies the rules to one pod, from its objects to a reason.

use jiff::Timestamp;

use super::boost::{self, Boost};
use super::canary::{Canary, EarlierDecisions};
use super::candidate::{Candidate, recommendations};
use super::growth;
use super::index::{Index, Namespace};
use super::limit_range::Bounds;
use super::matching::OwnerChain;
use super::{
    ACT_ANNOTATION, IGNORE_ANNOTATION, Note, Options, PodDecision, WithoutRestart, capping, pod_level, trigger, verdict,
};
use crate::model::objects::{Pod, UpdateMode, VerticalPodAutoscaler};
use crate::model::{Action, NamedRequirements, Reason, Resource};

/// The amounts to give all containers, and the reason.
type DueChange = (Reason, Vec<NamedRequirements>);

/// One pod and its decision, which the rules complete step by step.
pub(super) struct Case<'a> {
    pod: &'a Pod,
    now: Timestamp,
    options: &'a Options,
    known: EarlierDecisions<'a>,
    /// The regular containers, then the sidecars, in their order.
    candidates: Vec<Candidate<'a>>,
    /// The pod's own amounts, if the kubelet can resize them.
    pod_level: Option<NamedRequirements>,
    /// The VPA that controls the pod, or would if the agent acted on it.
    vpa: Option<&'a VerticalPodAutoscaler>,
    decision: PodDecision,
}

impl<'a> Case<'a> {
    /// `decision` is the pod's decision before any rule, with what is noted about the pod itself.
    pub(super) fn new(
        pod: &'a Pod,
        now: Timestamp,
        options: &'a Options,
        known: EarlierDecisions<'a>,
        decision: PodDecision,
    ) -> Self {
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
            vpa: None,
            decision,
        }
    }

    pub(super) fn decide(mut self, index: &Index<'a>) -> PodDecision {
        (self.decision.reason, self.decision.containers) = self.change(index).unwrap_or_else(|reason| {
            let containers = self.candidates.iter();
            let standing = containers.map(|candidate| candidate.named(candidate.standing));
            (reason, standing.chain(self.pod_level.clone()).collect())
        });
        self.decision.vpa = self.vpa.map(|vpa| vpa.metadata.name.clone());
        self.decision
    }

    /// The change to make now.
    ///
    /// Errors: the reason to leave the pod as it is.
    fn change(&mut self, index: &Index<'a>) -> Result<DueChange, Reason> {
        let namespace = index.namespace(&self.pod.metadata.namespace).ok_or(Reason::NoVpa)?;
        let (vpa, chain, acts) = self.control(namespace)?;
        // Boosts end also where the agent does not act on the VPA.
        if !(acts || boost::is_marked(self.pod, vpa) && self.options.ends_boosts(vpa)) {
            return Err(Reason::NotActedOn);
        }
        self.check_changeable()?;
        // A VPA of mode `Initial` says what a container has from its creation on, so also what follows its boost.
        let followed = if acts || vpa.update_mode() == UpdateMode::Initial {
            self.follow(vpa, namespace, &chain)
        } else {
            Err(Reason::NotActedOn)
        };
        if acts {
            self.decision.canary = Canary::of(self.pod, vpa, &mut self.decision.notes);
        }
        let (candidates, notes) = (&mut self.candidates, &mut self.decision.notes);
        self.decision.boosts = boost::mark(self.pod, vpa, self.now, candidates, notes);
        if followed.is_ok() {
            capping::cap(candidates, &namespace.limits, notes);
            boost::yield_to_larger_targets(candidates, &mut self.decision.boosts);
        }
        let limits = &namespace.limits.container;
        if !acts {
            return self.conclude(Reason::AtTarget, limits);
        }
        let (pod, managers) = (self.pod, self.options.managers);
        let fixed = |resource| chain.hpa_on(resource, namespace).is_some() || managers.assign(pod, resource);
        self.decision.ceilings = growth::ceilings(pod, candidates, &namespace.limits, fixed);
        let due = match followed {
            Ok(()) => self.trigger(vpa),
            Err(reason) => reason,
        };
        let mut concluded = self.conclude(due, limits);
        if let Err(waits @ (Reason::CanaryFirst | Reason::CanaryUnreadable)) = concluded {
            // The end of a boost does not wait for other pods.
            concluded = self.conclude(waits, limits);
        }
        if let Err(Reason::RestartRequired) = concluded {
            self.decision.without_restart = self.decide_without_restart(vpa, limits);
        }
        concluded
    }

    fn trigger(&mut self, vpa: &VerticalPodAutoscaler) -> Reason {
        let notes = &mut self.decision.notes;
        trigger::when(self.pod, vpa, &self.candidates, self.now, self.options, notes)
    }

    /// Decides again without the resources whose change would restart their container. Those never reach their target, which
    /// is no reason to change the others.
    fn decide_without_restart(&mut self, vpa: &VerticalPodAutoscaler, limits: &Bounds) -> Option<WithoutRestart> {
        for candidate in &mut self.candidates {
            for resource in Resource::ALL {
                if candidate.spec.restarts_for(resource) {
                    candidate.drop_recommendation(resource);
                    candidate.boost = candidate.boost.filter(|_| resource != Resource::Cpu);
                }
            }
        }
        // The notes are about the whole change.
        let notes = self.decision.notes.clone();
        let due = self.trigger(vpa);
        let concluded = self.conclude(due, limits);
        self.decision.notes = notes;
        let (reason, containers) = concluded.ok()?;
        Some(WithoutRestart { reason, containers })
    }

    /// The change that follows from what is `due` and from boosts that are over.
    fn conclude(&mut self, due: Reason, limits: &Bounds) -> Result<DueChange, Reason> {
        let is_due = due.action() == Action::Resize;
        let lasts = self.candidates.iter().any(|one| one.boost == Some(Boost::Lasts));
        let unchanged = if lasts { Reason::StartupBoost } else { due };
        if !is_due {
            if !self.candidates.iter().any(|one| one.ends_boost(Resource::Cpu)) {
                return Err(unchanged);
            }
            for candidate in &mut self.candidates {
                candidate.drop_recommendation(Resource::Memory);
                if !candidate.ends_boost(Resource::Cpu) {
                    candidate.drop_recommendation(Resource::Cpu);
                }
            }
        }
        let notes = &mut self.decision.notes;
        for candidate in &mut self.candidates {
            candidate.outcome = capping::outcome(candidate, limits, notes);
        }
        let policy = self
            .vpa
            .and_then(|vpa| vpa.spec.resource_policy.as_ref()?.pod_policy.as_ref());
        let follow = |pod_level: &NamedRequirements| pod_level::follow(&pod_level.resources, policy, &self.candidates);
        let pod_level = self.pod_level.as_ref().map(follow).map(NamedRequirements::of_pod);
        let containers = self.candidates.iter();
        let containers = containers.map(|candidate| candidate.named(candidate.outcome));
        let outcome: Vec<NamedRequirements> = containers.chain(pod_level).collect();
        self.decision.boosts.done.extend(boost::taken_back(&self.candidates));
        if !self.candidates.iter().any(Candidate::changes) {
            let stuck = self.candidates.iter().any(boost::is_stuck);
            let reason = if is_due { Reason::AtTarget } else { unchanged };
            return Err(if stuck { Reason::BoostUnreadable } else { reason });
        }
        if let Some(reason) = verdict::forbids(self.pod, &self.candidates, &outcome, notes) {
            return Err(reason);
        }
        if !is_due {
            return Ok((Reason::StartupBoostEnded, outcome));
        }
        if let Some(vpa) = self.vpa {
            let change = (due, &*outcome);
            self.decision
                .canary
                .admit(vpa, change, &self.known, self.now, self.options, notes)?;
        }
        Ok((due, outcome))
    }

    /// Finds the VPA that controls the pod, or would if the agent acted on it; the workloads above the pod; and whether the
    /// agent acts on the VPA.
    fn control(
        &mut self,
        namespace: &Namespace<'a>,
    ) -> Result<(&'a VerticalPodAutoscaler, OwnerChain<'a>, bool), Reason> {
        let found = OwnerChain::above(self.pod, namespace).and_then(|chain| {
            self.decision.workload = chain.workload();
            Ok((chain.vpas(self.pod, namespace)?, chain))
        });
        let notes = &mut self.decision.notes;
        let (vpas, chain) = found.map_err(|unmatched| {
            notes.push(Note::Unmatched(unmatched));
            Reason::NoVpa
        })?;
        let mut active = vpas.iter().filter(|vpa| self.options.acts_on(vpa));
        let first = active.next();
        let vpa = *first.or_else(|| vpas.first()).ok_or(Reason::NoVpa)?;
        notes.extend(active.map(|outranked| Note::Outranked {
            vpa: outranked.metadata.name.clone(),
        }));
        self.vpa = Some(vpa);
        let act = vpa.metadata.annotations.get(ACT_ANNOTATION);
        if let Some(act) = act.filter(|act| act.parse::<bool>().is_err()) {
            notes.push(Note::unreadable(vpa, ACT_ANNOTATION, act, "true or false".to_owned()));
        }
        Ok((vpa, chain, first.is_some()))
    }

    /// Whether the pod is in a state in which it may be changed (`NewPodLister`, autoscaler `pkg/updater/logic`).
    fn check_changeable(&mut self) -> Result<(), Reason> {
        let pod = self.pod;
        let ignore = pod.metadata.annotations.get(IGNORE_ANNOTATION);
        if ignore.is_some_and(|ignore| ignore == "true") {
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
                self.decision.notes.push(Note::SharedName {
                    container: pair[0].to_owned(),
                });
                Err(Reason::DuplicateContainer)
            }
        }
    }

    /// Takes over the recommendation, except for resources that a horizontal autoscaler scales on and for those that the
    /// kubelet's static managers have assigned to the pod.
    ///
    /// Errors: the reason why there is no target.
    fn follow(
        &mut self,
        vpa: &'a VerticalPodAutoscaler,
        namespace: &Namespace<'a>,
        chain: &OwnerChain<'a>,
    ) -> Result<(), Reason> {
        let (candidates, notes) = (&mut self.candidates, &mut self.decision.notes);
        let named = recommendations(vpa).iter().map(|one| &one.container_name);
        let unknown = named.filter(|name| self.pod.container(name).is_none());
        notes.extend(unknown.map(|name| Note::UnknownContainer {
            container: name.clone(),
        }));
        for candidate in &mut *candidates {
            candidate.follow(vpa, notes);
        }
        check_targets(candidates, Reason::NoRecommendation)?;
        for resource in Resource::ALL {
            let has_target = candidates.iter().any(|candidate| candidate.target(resource).is_some());
            if let Some(hpa) = chain.hpa_on(resource, namespace).filter(|_| has_target) {
                notes.push(Note::FollowedByHpa {
                    resource,
                    hpa: hpa.metadata.name.clone(),
                });
                candidates
                    .iter_mut()
                    .for_each(|candidate| candidate.drop_recommendation(resource));
            }
        }
        check_targets(candidates, Reason::HpaConflict)?;
        for resource in Resource::ALL {
            if self.options.managers.assign(self.pod, resource) {
                notes.push(Note::StaticallyAssigned { resource });
                candidates
                    .iter_mut()
                    .for_each(|candidate| candidate.drop_recommendation(resource));
            }
        }
        check_targets(candidates, Reason::StaticallyAssigned)
    }
}

/// Errors: the `reason`, if no container has a target.
fn check_targets(candidates: &[Candidate<'_>], reason: Reason) -> Result<(), Reason> {
    let any = candidates.iter().any(Candidate::has_target);
    any.then_some(()).ok_or(reason)
}
