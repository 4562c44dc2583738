//! One container while the rules are applied to it: what it has, what is recommended for it, and what it will have.

use super::boost::Boost;
use super::limit_range::Bounds;
use super::note::Note;
use super::proportional::Ratio;
use crate::model::objects::{
    Container, ContainerPolicy, ContainerRecommendation, ControlledValues, Pod, VerticalPodAutoscaler,
};
use crate::model::{NamedRequirements, Requirements, Resource, ResourceList};

/// The recommendation for one container, which the rules change step by step. An unset amount changes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recommended {
    pub(super) target: ResourceList,
    pub(super) lower: ResourceList,
    pub(super) upper: ResourceList,
}

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

impl Recommended {
    pub(super) const fn part(&self, part: Part) -> &ResourceList {
        match part {
            Part::Upper => &self.upper,
            Part::Target => &self.target,
            Part::Lower => &self.lower,
        }
    }

    pub(super) const fn part_mut(&mut self, part: Part) -> &mut ResourceList {
        match part {
            Part::Upper => &mut self.upper,
            Part::Target => &mut self.target,
            Part::Lower => &mut self.lower,
        }
    }
}

/// A regular container or sidecar of the pod.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) spec: &'a Container,
    pub(super) policy: Option<&'a ContainerPolicy>,
    pub(super) recommended: Recommended,
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
    pub(super) fn new(pod: &Pod, spec: &'a Container, applied: Option<&[NamedRequirements]>) -> Self {
        let applied = applied.and_then(|containers| containers.iter().find(|container| container.name == spec.name));
        let (in_force, base, standing) = match applied {
            Some(applied) => (applied.resources, spec.resources, applied.resources),
            None => {
                let status = pod.container_status(&spec.name).and_then(|status| status.resources);
                let in_force = status.unwrap_or(spec.resources);
                (in_force, in_force, spec.resources)
            }
        };
        Self {
            spec,
            policy: None,
            recommended: Recommended::default(),
            in_force,
            base,
            standing,
            outcome: standing,
            boost: None,
        }
    }

    /// Takes over what the VPA recommends for the container, without the resources that its policy excludes.
    pub(super) fn follow(&mut self, vpa: &'a VerticalPodAutoscaler, notes: &mut Vec<Note>) {
        let policy = vpa.policy_for(&self.spec.name);
        self.policy = policy;
        let mut recommendations = recommendations(vpa).iter();
        let Some(own) = recommendations.find(|one| one.container_name == self.spec.name) else {
            return;
        };
        self.recommended = Recommended {
            target: own.target,
            lower: own.lower_bound,
            upper: own.upper_bound,
        };
        for resource in Resource::ALL {
            let is_excluded = policy.is_some_and(|policy| policy.is_off() || !policy.controls(resource));
            if is_excluded && own.target.get(resource).is_some() {
                notes.push(Note::NotControlled {
                    container: self.spec.name.clone(),
                    resource,
                });
                self.drop_recommendation(resource);
            }
        }
    }

    pub(super) fn controlled_values(&self) -> ControlledValues {
        self.policy
            .and_then(|policy| policy.controlled_values)
            .unwrap_or_default()
    }

    /// How many times its request the limit of a resource is. A container without a limit has the LimitRange's default.
    pub(super) fn ratio(&self, resource: Resource, limits: &Bounds) -> Ratio {
        let Requirements { requests, limits: own } = self.base;
        let default = limits.default.amount(resource);
        Ratio::new(requests.amount(resource), own.amount(resource), default)
    }

    /// These amounts under the container's name.
    pub(super) fn named(&self, resources: Requirements) -> NamedRequirements {
        NamedRequirements {
            name: self.spec.name.clone(),
            resources,
        }
    }

    /// Drops the recommendation for a resource.
    pub(super) fn drop_recommendation(&mut self, resource: Resource) {
        for part in Part::ALL {
            self.recommended.part_mut(part).set(resource, None);
        }
    }

    /// What the container's request should become, if the resource has a target.
    pub(super) fn target(&self, resource: Resource) -> Option<u64> {
        self.recommended.target.get(resource)
    }

    pub(super) fn has_target(&self) -> bool {
        !self.recommended.target.is_empty()
    }

    /// Whether the decision gives a resource a new amount: its target, or what the container had before a boost.
    pub(super) fn moves(&self, resource: Resource) -> bool {
        self.target(resource).is_some() || (resource == Resource::Cpu && self.before_boost().is_some())
    }

    /// Whether a boost of the resource is over and the container still has it.
    pub(super) fn ends_boost(&self, resource: Resource) -> bool {
        resource == Resource::Cpu && matches!(self.boost, Some(Boost::Over(_)))
    }

    /// What the container had before a boost that is over, if the annotation says so.
    pub(super) const fn before_boost(&self) -> Option<Requirements> {
        match self.boost {
            Some(Boost::Over(before)) => before,
            Some(Boost::Lasts) | None => None,
        }
    }

    /// Whether the outcome differs from what is in force or from what stands, in a resource that moves.
    pub(super) fn changes(&self) -> bool {
        let differs = |from, resource| differ(from, &self.outcome, resource);
        Resource::ALL
            .into_iter()
            .filter(|resource| self.moves(*resource))
            .any(|resource| differs(&self.in_force, resource) || differs(&self.standing, resource))
    }
}

/// Whether a resource has another request or limit. Unset and zero are equal.
pub(super) fn differ(from: &Requirements, to: &Requirements, resource: Resource) -> bool {
    from.requests.amount(resource) != to.requests.amount(resource)
        || from.limits.amount(resource) != to.limits.amount(resource)
}

pub(super) fn recommendations(vpa: &VerticalPodAutoscaler) -> &[ContainerRecommendation] {
    vpa.status
        .recommendation
        .as_ref()
        .map_or(&[], |recommendation| &recommendation.container_recommendations)
}
