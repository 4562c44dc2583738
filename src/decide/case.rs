//! One pod's way through the rules, from its objects to a reason.

use jiff::Timestamp;

use super::candidate::{Candidate, recommendations};
use super::growth::{self, Ceiling};
use super::index::{Index, Namespace};
use super::matching::Chain;
use super::{Action, IGNORE_ANNOTATION, Note, Options, Reason, capping, trigger, verdict};
use crate::objects::{Pod, VerticalPodAutoscaler};
use crate::resources::{NamedRequirements, Resource};

/// What is known about one pod so far.
pub(super) struct Case<'a> {
    pod: &'a Pod,
    now: Timestamp,
    options: &'a Options,
    /// The regular containers, in their order.
    candidates: Vec<Candidate<'a>>,
    /// The VPA that controls the pod, or would, once it is found.
    pub(super) vpa: Option<&'a VerticalPodAutoscaler>,
    /// What the rules did.
    pub(super) notes: Vec<Note>,
    /// How far limits may grow in an emergency.
    pub(super) ceilings: Vec<Ceiling>,
}

impl<'a> Case<'a> {
    pub(super) fn new(
        pod: &'a Pod,
        now: Timestamp,
        options: &'a Options,
        applied: Option<&[NamedRequirements]>,
    ) -> Self {
        let candidate = |container| Candidate::new(pod, container, applied);
        Self {
            pod,
            now,
            options,
            candidates: pod.spec.containers.iter().map(candidate).collect(),
            vpa: None,
            notes: Vec::new(),
            ceilings: Vec::new(),
        }
    }

    /// What every container has where nothing changes.
    pub(super) fn standing(&self) -> Vec<NamedRequirements> {
        self.candidates.iter().map(Candidate::standing).collect()
    }

    /// The amounts to give all containers and why, or why to leave them.
    pub(super) fn decide(&mut self, index: &Index<'a>) -> Result<(Reason, Vec<NamedRequirements>), Reason> {
        let namespace = index.namespace(&self.pod.metadata.namespace).ok_or(Reason::NoVpa)?;
        let (vpa, chain) = self.control(namespace)?;
        self.may_change()?;
        let followed = self.follow(vpa, namespace, &chain);
        if followed.is_ok() {
            capping::cap(&mut self.candidates, &namespace.limits, &mut self.notes);
        }
        let by_hpa = |resource| chain.hpa_on(resource, namespace).is_some();
        self.ceilings = growth::ceilings(self.pod, &self.candidates, &namespace.limits, by_hpa);
        followed?;
        let (pod, now) = (self.pod, self.now);
        let due = trigger::when(pod, vpa, &self.candidates, now, self.options, &mut self.notes);
        if due.action() != Action::Resize {
            return Err(due);
        }
        let outcome: Vec<NamedRequirements> = self
            .candidates
            .iter()
            .map(|candidate| capping::outcome(candidate, &namespace.limits.container, &mut self.notes))
            .collect();
        if !verdict::changes_anything(&self.candidates, &outcome) {
            return Err(Reason::AtTarget);
        }
        match verdict::forbids(pod, &self.candidates, &outcome, &mut self.notes) {
            Some(reason) => Err(reason),
            None => Ok((due, outcome)),
        }
    }

    /// Finds the VPA that controls the pod. One that is only not acted on is named, but ends the case.
    fn control(&mut self, namespace: &Namespace<'a>) -> Result<(&'a VerticalPodAutoscaler, Chain<'a>), Reason> {
        let chain = Chain::above(self.pod, namespace);
        let found = chain.and_then(|chain| Ok((chain.vpas(self.pod, namespace)?, chain)));
        let (vpas, chain) = found.map_err(|unmatched| {
            self.notes.push(Note::Unmatched(unmatched));
            Reason::NoVpa
        })?;
        let mut active = vpas.iter().filter(|vpa| self.options.acts_on(vpa));
        let Some(&vpa) = active.next() else {
            self.vpa = vpas.first().copied();
            return Err(self.vpa.map_or(Reason::NoVpa, |_| Reason::NotActedOn));
        };
        self.notes.extend(active.map(|outranked| Note::Outranked {
            vpa: outranked.metadata.name.clone(),
        }));
        self.vpa = Some(vpa);
        Ok((vpa, chain))
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

    /// Takes up the recommendation, except for what horizontal autoscalers follow.
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
        if self.candidates.iter().all(|candidate| !candidate.has_target()) {
            return Err(Reason::NoRecommendation);
        }
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
                for candidate in &mut self.candidates {
                    candidate.leave(resource);
                }
            }
        }
        if self.candidates.iter().all(|candidate| !candidate.has_target()) {
            return Err(Reason::HpaConflict);
        }
        Ok(())
    }
}
