//! One container while the rules are applied to it: what it has, what is recommended for it, and what it will have.

use std::fmt::Display;

use super::boost::Boost;
use super::limit_rule::{Headroom, LimitRule};
use super::note::Note;
use crate::model::objects::{Container, ContainerPolicy, ControlledValues, LimitRangeItem, Pod, VerticalPodAutoscaler};
use crate::model::{NamedRequirements, PodAmounts, Requirements, Resource, ResourceList};

/// One of the three amounts of a recommendation. The same bounds apply to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Upper,
    Target,
    Lower,
}

impl Part {
    pub(super) const ALL: [Self; 3] = [Self::Upper, Self::Target, Self::Lower];
}

/// A regular container or sidecar of the pod.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) spec: &'a Container,
    pub(super) policy: Option<&'a ContainerPolicy>,
    /// How limits follow requests, in the order of [`Resource::ALL`].
    pub(super) headroom: [Headroom; 2],
    /// The recommendation, by [`Part`], which the rules change step by step. An unset amount changes nothing.
    recommended: [ResourceList; 3],
    /// What the container has now. Bounds and triggers compare with these amounts.
    pub(super) in_force: Requirements,
    /// The amounts whose ratio of limit to request the new limit keeps.
    pub(super) base: Requirements,
    /// What the container keeps if the decision changes nothing.
    pub(super) standing: Requirements,
    /// What the container has after the decision.
    pub(super) outcome: Requirements,
    /// The startup boost of its cpu.
    pub(super) boost: Option<Boost>,
}

impl<'a> Candidate<'a> {
    /// A container with the amounts that it has, and no recommendation yet.
    ///
    /// `ContainerRequestsAndLimits` (autoscaler `pkg/utils/resources/resourcehelpers.go`): requests and limits come from the
    /// container's status if that has resources, else from the spec. A record of what the agent applied outranks both.
    pub(super) fn new(pod: &Pod, spec: &'a Container, applied: Option<&PodAmounts>) -> Self {
        let (in_force, base, standing) = match applied.and_then(|all| all.container(&spec.name)) {
            Some(applied) => (*applied, spec.resources, *applied),
            None => {
                let status = pod.container_status(&spec.name).and_then(|status| status.resources);
                let in_force = status.unwrap_or(spec.resources);
                (in_force, in_force, spec.resources)
            }
        };
        Self {
            spec,
            policy: None,
            headroom: Default::default(),
            recommended: Default::default(),
            in_force,
            base,
            standing,
            outcome: standing,
            boost: None,
        }
    }

    /// Takes over the VPA's recommendation for the container, without the resources that its policy excludes.
    pub(super) fn follow(&mut self, vpa: &'a VerticalPodAutoscaler, notes: &mut Vec<Note>) {
        let policy = vpa.policy_for(&self.spec.name);
        self.policy = policy;
        notes.extend(policy.and_then(|policy| self.same_policies(policy, vpa)));
        let Some(own) = vpa.recommendation_for(&self.spec.name) else {
            return;
        };
        self.recommended = [own.upper_bound, own.target, own.lower_bound];
        for resource in Resource::ALL {
            let is_excluded = policy.is_some_and(|policy| policy.is_off() || !policy.controls(resource));
            if is_excluded && own.target.get(resource).is_some() {
                let text = format!("{resource} is left alone: the VPA's policy excludes it");
                notes.push(self.note(resource, text));
                self.drop_recommendation(resource);
            }
        }
    }

    /// A note if the VPA has several policies for the name in this one.
    fn same_policies(&self, policy: &ContainerPolicy, vpa: &VerticalPodAutoscaler) -> Option<Note> {
        let name = &policy.container_name;
        let all = vpa.policies().iter();
        let same = all.filter(|one| one.container_name == *name).count();
        (same > 1).then(|| {
            let (vpa, counts) = (&vpa.metadata.name, if name == "*" { "last" } else { "first" });
            let text = format!(
                "VerticalPodAutoscaler {vpa} has {same} policies for container {name}, and only the {counts} counts"
            );
            Note::new(Some(&self.spec.name), None, text)
        })
    }

    /// Whether the limit of a resource changes with its request.
    pub(super) fn moves_limit(&self, resource: Resource) -> bool {
        let values = self.policy.and_then(|policy| policy.controlled_values);
        values.unwrap_or_default() == ControlledValues::RequestsAndLimits && self.headroom(resource) != Headroom::Keep
    }

    fn headroom(&self, resource: Resource) -> Headroom {
        self.headroom[resource as usize]
    }

    /// The annotation that the limit of a resource follows, if it does not keep its ratio.
    pub(super) fn limit_annotation(&self, resource: Resource) -> Option<&'static str> {
        matches!(self.headroom(resource), Headroom::Plus(_) | Headroom::Times(_))
            .then(|| Headroom::annotation(resource))
    }

    /// Which limit goes with a request. A container without a limit has the LimitRange's default.
    pub(super) fn limit_rule(&self, resource: Resource, limits: &LimitRangeItem) -> LimitRule {
        let default = limits.default.amount(resource);
        LimitRule::new(self.headroom(resource), self.base.of(resource), default)
    }

    /// A note about one of the container's resources.
    pub(super) fn note(&self, resource: Resource, text: impl Display) -> Note {
        Note::new(Some(&self.spec.name), Some(resource), text)
    }

    /// One amount of the recommendation.
    pub(super) fn recommended(&self, part: Part, resource: Resource) -> Option<u64> {
        self.recommended[part as usize].get(resource)
    }

    /// Replaces one amount of the recommendation.
    pub(super) fn recommend(&mut self, part: Part, resource: Resource, amount: Option<u64>) {
        self.recommended[part as usize].set(resource, amount);
    }

    /// Replaces one amount of the recommendation by the result of a rule. Notes the rule if the target changes.
    pub(super) fn cap(&mut self, part: Part, resource: Resource, to: u64, rule: &str, notes: &mut Vec<Note>) {
        if let (Part::Target, Some(from)) = (part, self.target(resource).filter(|from| *from != to)) {
            let [from, to] = resource.quantities([from, to]);
            notes.push(self.note(resource, format!("{resource} request {from} becomes {to}: {rule}")));
        }
        self.recommend(part, resource, Some(to));
    }

    pub(super) fn drop_recommendation(&mut self, resource: Resource) {
        Part::ALL
            .into_iter()
            .for_each(|part| self.recommend(part, resource, None));
    }

    /// The wanted request of the container, if the resource has a target.
    pub(super) fn target(&self, resource: Resource) -> Option<u64> {
        self.recommended(Part::Target, resource)
    }

    /// Whether any resource has a target.
    pub(super) fn has_target(&self) -> bool {
        Resource::ALL.iter().any(|resource| self.target(*resource).is_some())
    }

    /// Whether the target of a resource is a bound of the VPA's policy.
    pub(super) fn is_pinned(&self, resource: Resource) -> bool {
        let target = self.target(resource);
        target.is_some() && self.allowed(resource).contains(&target)
    }

    /// The minimum and the maximum that the VPA's policy allows.
    pub(super) fn allowed(&self, resource: Resource) -> [Option<u64>; 2] {
        let bounds = self.policy.map(|policy| [&policy.min_allowed, &policy.max_allowed]);
        bounds.map_or([None; 2], |bounds| bounds.map(|bound| bound.get(resource)))
    }

    /// Whether the decision gives a resource a new amount: its target, or the amount from before a boost.
    pub(super) fn moves(&self, resource: Resource) -> bool {
        self.target(resource).is_some() || (resource == Resource::Cpu && self.before_boost().is_some())
    }

    /// Whether a boost of the resource is over and the container still has it.
    pub(super) fn ends_boost(&self, resource: Resource) -> bool {
        resource == Resource::Cpu && matches!(self.boost, Some(Boost::Over(_)))
    }

    /// The amounts from before a boost that is over, if the annotation has them.
    pub(super) const fn before_boost(&self) -> Option<Requirements> {
        match self.boost {
            Some(Boost::Over(before)) => before,
            Some(Boost::Lasts) | None => None,
        }
    }

    /// Leaves memory as it is if its limit would come down. With a lower request alone the next limit would be a larger multiple of it.
    pub(super) fn keep_memory_limit(&mut self, notes: &mut Vec<Note>) {
        let [from, to] = [self.standing, self.outcome].map(|has| has.limits.memory);
        if from.zip(to).is_some_and(|(from, to)| to < from) {
            self.outcome.requests.memory = self.standing.requests.memory;
            self.outcome.limits.memory = from;
            self.drop_recommendation(Resource::Memory);
            let text = "memory is left alone: the API server lowers no memory limit of a running container";
            notes.push(self.note(Resource::Memory, text));
        }
    }

    /// Whether the outcome differs from the amounts in force or from the kept ones, in a resource that moves.
    pub(super) fn changes(&self) -> bool {
        let mut resources = Resource::ALL.into_iter();
        resources.any(|resource| self.moves(resource) && self.differs(resource))
    }

    /// Whether the outcome of a resource differs from the amounts in force or from the kept ones.
    pub(super) fn differs(&self, resource: Resource) -> bool {
        [self.in_force, self.standing]
            .iter()
            .any(|from| differ(from, &self.outcome, resource))
    }
}

/// Whether a resource has another request or limit. Unset and zero are equal.
pub(super) fn differ(from: &Requirements, to: &Requirements, resource: Resource) -> bool {
    let [from, to] = [from, to].map(|has| has.of(resource).map(Option::unwrap_or_default));
    from != to
}

/// These amounts of the containers, without those of the pod as a whole.
pub(super) fn amounts(candidates: &[Candidate<'_>], of: fn(&Candidate<'_>) -> Requirements) -> PodAmounts {
    let named = |one: &Candidate<'_>| NamedRequirements::new(&one.spec.name, of(one));
    candidates.iter().map(named).collect()
}
