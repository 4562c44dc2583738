//! Applies the rules to one pod, from its objects to a reason.

use jiff::{SignedDuration, Timestamp};

use super::admission::admitted;
use super::boost::{self, Boost};
use super::canary::{Canary, EarlierDecisions};
use super::candidate::{Candidate, amounts};
use super::index::{Index, Limits, Namespace};
use super::limit_rule::Headroom;
use super::matching::OwnerChain;
use super::{Act, DueChange, Note, Options, PodDecision, capping};
use crate::model::objects::annotation::{ACT, CPU_BURST, IGNORE};
use crate::model::objects::{Pod, UpdateMode, VerticalPodAutoscaler};
use crate::model::{Action, CpuBurst, PodAmounts, Reason, Requirements, Resource};

/// How long a deferred resize of another client is left alone.
const OTHERS_RESIZE: SignedDuration = SignedDuration::from_mins(5);

/// One pod and its decision, which the rules complete step by step.
pub(super) struct Case<'a> {
    pub(super) pod: &'a Pod,
    pub(super) now: Timestamp,
    pub(super) options: &'a Options,
    pub(super) known: EarlierDecisions<'a>,
    /// The regular containers, then the sidecars, in their order.
    pub(super) candidates: Vec<Candidate<'a>>,
    /// The pod's own amounts, if the kubelet can resize them.
    pub(super) pod_level: Option<Requirements>,
    /// The VPA that controls the pod, or would if the agent acted on it.
    pub(super) vpa: Option<&'a VerticalPodAutoscaler>,
    pub(super) decision: PodDecision,
}

impl<'a> Case<'a> {
    pub(super) fn decide(mut self, index: &Index<'a>) -> PodDecision {
        (self.decision.reason, self.decision.amounts) = self.change(index).unwrap_or_else(|reason| {
            let pod = self.pod_level.map(Box::new);
            let standing = amounts(&self.candidates, |one| one.standing);
            (reason, PodAmounts { pod, ..standing })
        });
        self.decision.vpa = self.vpa.map(|vpa| vpa.metadata.name.clone());
        self.decision.burst = self.burst();
        self.decision
    }

    /// The burst of the pod's cgroups: zero where an earlier one is not wanted any more, and the earlier one where the annotation
    /// is malformed.
    fn burst(&mut self) -> Option<CpuBurst> {
        let (known, followed) = (self.known.burst, self.decision.reason != Reason::Ignored);
        let vpa = self.vpa.filter(|vpa| followed && self.options.acts_on(vpa));
        let wanted = match vpa.map_or(Ok(None), |vpa| self.wanted_burst(vpa)) {
            Ok(wanted) => wanted,
            Err(malformed) => {
                self.decision.notes.push(malformed);
                return known;
            }
        };
        self.decision.notes.extend(wanted.map(|burst| {
            let by = match vpa.and_then(|vpa| vpa.metadata.annotations.get(CPU_BURST)) {
                Some(_) => format!("{CPU_BURST} of the VPA"),
                None => "cpuBurst of the configuration".to_owned(),
            };
            let text = format!("each cgroup may burst by {burst} of its cpu quota: {by}");
            Note::new(None, None, text)
        }));
        wanted.or(known.map(|_| CpuBurst::ZERO))
    }

    /// The burst by a VPA's annotation, or else by the configuration.
    ///
    /// Errors: the malformed annotation.
    pub(super) fn wanted_burst(&self, vpa: &VerticalPodAutoscaler) -> Result<Option<CpuBurst>, Note> {
        let Some(text) = vpa.metadata.annotations.get(CPU_BURST) else {
            return Ok(self.options.burst);
        };
        let burst = text.parse().map(Some);
        burst.map_err(|()| Note::unreadable(vpa, CPU_BURST, text, "0% to 100%"))
    }

    /// The change to make now.
    ///
    /// Errors: the reason to leave the pod as it is.
    fn change(&mut self, index: &Index<'a>) -> Result<DueChange, Reason> {
        let name = self.pod.metadata.namespace.as_str();
        let namespace = index.namespaces.get(name).ok_or(Reason::NoVpa)?;
        let (vpa, chain, acts) = self.control(namespace)?;
        // Boosts end also where the agent does not act on the VPA.
        if !(acts || boost::marks(self.pod, vpa).next().is_some() && self.options.ends_boosts(vpa)) {
            let why = self.options.declines(vpa).map(|why| Note::new(None, None, why));
            self.decision.notes.extend(why);
            return Err(Reason::NotActedOn);
        }
        self.check_changeable()?;
        // A VPA of mode `Initial` decides a container's amounts from its creation on, so also those after its boost.
        let followed = if acts || vpa.update_mode() == UpdateMode::Initial {
            self.follow(vpa, &chain)
        } else {
            Err(Reason::NotActedOn)
        };
        if acts {
            self.decision.canary = Canary::of(self.pod, vpa, &mut self.decision.notes);
        }
        self.mark_boosts(vpa);
        if followed.is_ok() {
            let own = self.pod.spec.resources.unwrap_or_default().limits;
            capping::cap(&mut self.candidates, &namespace.limits, own, &mut self.decision.notes);
            self.yield_to_larger_targets();
        }
        let limits = &namespace.limits;
        if !acts {
            return self.conclude(Reason::AtTarget, limits);
        }
        let (pod, options) = (self.pod, self.options);
        let fixed = |container: &str, resource| {
            chain.hpa_on(container, resource).is_some() || options.refusals.of_limit(pod, resource).is_some()
        };
        self.decision.ceilings = self.ceilings(limits, fixed);
        if let Some(until) = self.yields_until() {
            let text = format!("a resize that another client requested waits for room; it is left until {until:.0}");
            self.decision.notes.push(Note::new(None, None, text));
            self.decision.yields_until = Some(until);
            return Err(Reason::OthersResize);
        }
        let due = match followed {
            Ok(()) if Act::of(vpa) == Some(Act::OnTrouble) && !self.in_trouble() => Reason::NoTrouble,
            Ok(()) => self.trigger(vpa),
            Err(reason) => reason,
        };
        let mut concluded = self.conclude(due, limits);
        if let Err(waits @ (Reason::CanaryFirst | Reason::CanaryUnreadable | Reason::BurstUnreadable)) = concluded {
            concluded = self.end_boosts(waits, limits);
        }
        if let Err(Reason::RestartRequired) = concluded {
            self.decision.without_restart = self.decide_without_restart(vpa, limits);
        }
        concluded
    }

    /// Until when a resize of another client is left alone that the kubelet has deferred: a scheduler may make room for it
    /// (KEP-5836).
    fn yields_until(&self) -> Option<Timestamp> {
        let pending = self.pod.resize_condition("PodResizePending")?;
        let since = pending.last_transition_time.filter(|since| *since <= self.now)?;
        let until = since.checked_add(OTHERS_RESIZE).ok()?;
        (self.known.others_request && pending.reason == "Deferred" && until > self.now).then_some(until)
    }

    /// The end of boosts, which does not wait for other pods. Adds no note that the whole change has already.
    fn end_boosts(&mut self, waits: Reason, limits: &Limits<'_>) -> Result<DueChange, Reason> {
        let known = self.decision.notes.clone();
        let concluded = self.conclude(waits, limits);
        let mut new = self.decision.notes.split_off(known.len());
        new.retain(|note| !known.contains(note));
        self.decision.notes.extend(new);
        concluded
    }

    /// Decides again without the resources whose change would restart their container. Those never reach their target, which
    /// is no reason to change the others.
    fn decide_without_restart(&mut self, vpa: &VerticalPodAutoscaler, limits: &Limits<'_>) -> Option<DueChange> {
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
        concluded.ok()
    }

    /// The change that follows from what is `due` and from boosts that are over.
    fn conclude(&mut self, due: Reason, limits: &Limits<'_>) -> Result<DueChange, Reason> {
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
        let mut outcome = self.outcome(limits);
        self.decision.boosts.done.extend(boost::taken_back(&self.candidates));
        if !self.candidates.iter().any(Candidate::changes) {
            let stuck = self.candidates.iter().any(boost::is_stuck);
            let reason = if is_due { Reason::AtTarget } else { unchanged };
            return Err(if stuck { Reason::BoostUnreadable } else { reason });
        }
        let admitted = admitted(self.pod, &outcome, limits, self.options.refusals.kubelet);
        if let (Some(own), Some(filled_in)) = (&mut outcome.pod, admitted.spec.resources) {
            // The pod's cgroup gets at once what the API server fills in.
            **own = filled_in;
        }
        if let Some(reason) = self.forbids(&outcome, &admitted, limits) {
            return Err(reason);
        }
        if !is_due {
            return Ok((Reason::StartupBoostEnded, outcome));
        }
        if let Some(vpa) = self.vpa {
            self.admit(vpa, due, &outcome)?;
        }
        Ok((due, outcome))
    }

    /// The amounts that follow from the recommendations, of each container and of the pod.
    fn outcome(&mut self, limits: &Limits<'_>) -> PodAmounts {
        let keeps_memory_limits = self.options.refusals.keep_memory_limits_of(self.pod);
        let notes = &mut self.decision.notes;
        for candidate in &mut self.candidates {
            candidate.outcome = capping::outcome(candidate, &limits.container, notes);
            if keeps_memory_limits {
                candidate.keep_memory_limit(notes);
            }
        }
        let mut outcome = amounts(&self.candidates, |one| one.outcome);
        outcome.pod = self.pod_level.map(|has| {
            let policy = self
                .vpa
                .and_then(|vpa| vpa.spec.resource_policy.as_ref()?.pod_policy.as_ref());
            let after = capping::pod_level(self.pod, &has, &limits.pod, policy, &self.candidates, &outcome);
            Box::new(after)
        });
        outcome
    }

    /// Finds the VPA that controls the pod, or would if the agent acted on it; the workloads above the pod; and whether the
    /// agent acts on the VPA.
    fn control<'n>(
        &mut self,
        namespace: &'n Namespace<'a>,
    ) -> Result<(&'a VerticalPodAutoscaler, OwnerChain<'n, 'a>, bool), Reason> {
        let found = OwnerChain::above(self.pod, namespace).and_then(|chain| {
            self.decision.workload = chain.workload.clone();
            Ok((chain.vpas(self.pod)?, chain))
        });
        let notes = &mut self.decision.notes;
        let (vpas, chain) = found.map_err(|why| {
            notes.push(Note::new(None, None, why));
            Reason::NoVpa
        })?;
        let mut controlling = vpas.iter().filter(|vpa| self.options.controls(vpa));
        let vpa = *controlling.next().or_else(|| vpas.first()).ok_or(Reason::NoVpa)?;
        let weaker = |VerticalPodAutoscaler { metadata, .. }: &&VerticalPodAutoscaler| {
            let name = &metadata.name;
            let text =
                format!("VerticalPodAutoscaler {name} targets the workload too, but is younger or later by name");
            Note::new(None, None, text)
        };
        Note::list(notes, controlling, weaker, "VerticalPodAutoscalers target it");
        notes.extend(chain.unknown_owner.iter().map(|owner| {
            let text = format!(
                "{owner} owns the workload, and vscaled does not read its kind: if it can be scaled, upstream follows only a \
                 VerticalPodAutoscaler that targets it"
            );
            Note::new(None, None, text)
        }));
        self.vpa = Some(vpa);
        if let (Some(act), None) = (vpa.metadata.annotations.get(ACT), Act::of(vpa)) {
            let allowed = "true, false or on-trouble; until then the VPA's mode decides";
            notes.push(Note::unreadable(vpa, ACT, act, allowed));
        }
        Ok((vpa, chain, self.options.acts_on(vpa)))
    }

    /// Whether the pod is in a state in which it may be changed (`NewPodLister`, autoscaler `pkg/updater/logic`).
    fn check_changeable(&mut self) -> Result<(), Reason> {
        let pod = self.pod;
        let ignore = pod.metadata.annotations.get(IGNORE);
        let states = [
            (ignore.is_some_and(|ignore| ignore == "true"), Reason::Ignored),
            (pod.has_ended(), Reason::Ended),
            (pod.metadata.deletion_timestamp.is_some(), Reason::Terminating),
            (pod.spec.node_name.is_empty(), Reason::NotScheduled),
        ];
        if let Some((_, reason)) = states.into_iter().find(|(holds, _)| *holds) {
            return Err(reason);
        }
        let mut names: Vec<&str> = pod.all_containers().map(|container| container.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => {
                let note = Note::new(Some(pair[0]), None, "two containers have this name");
                self.decision.notes.push(note);
                Err(Reason::DuplicateContainer)
            }
        }
    }

    /// Takes over the recommendation, except for resources that a horizontal autoscaler scales on and for those that the
    /// kubelet refuses to resize.
    ///
    /// Errors: the reason why there is no target.
    fn follow(&mut self, vpa: &'a VerticalPodAutoscaler, chain: &OwnerChain<'_, 'a>) -> Result<(), Reason> {
        let (candidates, notes) = (&mut self.candidates, &mut self.decision.notes);
        let named = vpa.recommendations().iter().map(|one| &one.container_name);
        let (pod, options) = (self.pod, self.options);
        let not_resized = named.filter(|name| pod.container(name).is_none());
        let note = |name: &String| {
            let text = if pod.all_containers().any(|container| container.name == *name) {
                "recommended for, but only init containers that are sidecars are resized"
            } else {
                "recommended for, but the pod has no such container"
            };
            Note::new(Some(name), None, text)
        };
        Note::list(notes, not_resized, note, "containers that are not resized");
        for candidate in &mut *candidates {
            candidate.follow(vpa, notes);
        }
        self.check_targets(Reason::NoRecommendation)?;
        self.check_bounds(vpa)?;
        self.read_headroom(vpa)?;
        self.leave_alone(|one, resource| {
            let name = &chain.hpa_on(&one.spec.name, resource)?.metadata.name;
            Some(format!("HorizontalPodAutoscaler {name} scales on it"))
        });
        self.check_targets(Reason::HpaConflict)?;
        self.leave_alone(|_, resource| options.refusals.by_manager(pod, resource).map(str::to_owned));
        self.check_targets(Reason::StaticallyAssigned)?;
        self.leave_alone(|one, resource| {
            let stays_equal = one.moves_limit(resource) && one.limit_annotation(resource).is_none();
            options.refusals.of_recommended(pod, one.spec, stays_equal, resource)
        });
        self.check_targets(Reason::KubeletRefuses)
    }

    /// Errors: a bound of a container's policy is no amount that a container can have.
    fn check_bounds(&mut self, vpa: &VerticalPodAutoscaler) -> Result<(), Reason> {
        let mut policies = self.candidates.iter().filter_map(|one| one.policy);
        let Some((policy, (field, value))) = policies.find_map(|policy| Some((policy, policy.fraction()?))) else {
            return Ok(());
        };
        let (vpa, container) = (&vpa.metadata.name, &policy.container_name);
        let text = format!(
            "VerticalPodAutoscaler {vpa}: the policy for container {container}: {field}: {value} is no whole number: allowed are \
             whole bytes (such as 500Mi) and whole thousandths of a cpu (such as 250m)"
        );
        self.decision.notes.push(Note::new(None, None, text));
        Err(Reason::BoundUnreadable)
    }

    /// Errors: an annotation of the VPA does not say which limits go with requests.
    fn read_headroom(&mut self, vpa: &VerticalPodAutoscaler) -> Result<(), Reason> {
        for resource in Resource::ALL {
            let headroom = Headroom::of(vpa, resource).map_err(|malformed| {
                self.decision.notes.push(malformed);
                Reason::LimitUnreadable
            })?;
            for candidate in &mut self.candidates {
                candidate.headroom[resource as usize] = headroom;
            }
        }
        Ok(())
    }

    /// Drops the recommendations of containers for resources that there is a reason to leave alone. A reason that holds for
    /// all containers with a target is noted once.
    fn leave_alone(&mut self, why: impl Fn(&Candidate<'_>, Resource) -> Option<String>) {
        for resource in Resource::ALL {
            let targets = self.candidates.iter_mut().filter(|one| one.target(resource).is_some());
            let (mut left, mut all) = (Vec::new(), true);
            for candidate in targets {
                match why(candidate, resource) {
                    Some(why) => {
                        candidate.drop_recommendation(resource);
                        left.push((&candidate.spec.name, format!("{resource} is left alone: {why}")));
                    }
                    None => all = false,
                }
            }
            if all {
                left.dedup_by(|(_, one), (_, other)| one == other);
            }
            let notes = left.into_iter().map(|(name, text)| {
                let container = (!all).then_some(name.as_str());
                Note::new(container, Some(resource), text)
            });
            self.decision.notes.extend(notes);
        }
    }

    /// Errors: the `reason`, if no container has a target.
    fn check_targets(&self, reason: Reason) -> Result<(), Reason> {
        let any = self.candidates.iter().any(Candidate::has_target);
        any.then_some(()).ok_or(reason)
    }
}
