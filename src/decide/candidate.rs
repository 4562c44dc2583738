//! A container on its way through the rules, and where its amounts come from.

use super::boost::Boost;
use super::note::Note;
use crate::model::objects::{
    Container, ContainerPolicy, ContainerRecommendation, ControlledValues, Pod, VerticalPodAutoscaler,
};
use crate::model::{NamedRequirements, Requirements, Resource, ResourceList};

/// What the recommender says about one container, and what the rules make of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recommended {
    pub(super) target: ResourceList,
    pub(super) lower: ResourceList,
    pub(super) upper: ResourceList,
}

/// One of the three amounts of a recommendation; all of them pass the same rules.
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

    pub(super) fn drop(&mut self, resource: Resource) {
        for part in Part::ALL {
            self.part_mut(part).set(resource, None);
        }
    }
}

/// A regular container or sidecar of the pod.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) spec: &'a Container,
    pub(super) policy: Option<&'a ContainerPolicy>,
    /// None: the container is left as it is.
    pub(super) recommended: Option<Recommended>,
    /// What the container has: bounds and triggers are tested against this.
    pub(super) in_force: Requirements,
    /// Whose ratio of limit to request is kept.
    pub(super) ratio: Requirements,
    /// What stands where nothing changes.
    pub(super) standing: Requirements,
    /// Whether it has more cpu than it is to keep.
    pub(super) boost: Option<Boost>,
}

impl<'a> Candidate<'a> {
    /// A container with the amounts it has, and no recommendation yet.
    ///
    /// `ContainerRequestsAndLimits` (autoscaler `pkg/utils/resources/resourcehelpers.go`): both lists from the
    /// container's status if it has resources, else both from the spec; a record of what was applied outranks either.
    pub(super) fn new(pod: &Pod, spec: &'a Container, applied: Option<&[NamedRequirements]>) -> Self {
        let applied = applied.and_then(|containers| containers.iter().find(|container| container.name == spec.name));
        let (in_force, ratio, standing) = match applied {
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
            recommended: None,
            in_force,
            ratio,
            standing,
            boost: None,
        }
    }

    /// Takes up what the VPA recommends for the container and its policy lets through.
    pub(super) fn follow(&mut self, vpa: &'a VerticalPodAutoscaler, notes: &mut Vec<Note>) {
        self.policy = vpa.policy_for(&self.spec.name);
        let Some(said) = recommendations(vpa)
            .iter()
            .find(|said| said.container_name == self.spec.name)
        else {
            return;
        };
        let mut recommended = Recommended {
            target: said.target,
            lower: said.lower_bound,
            upper: said.upper_bound,
        };
        for resource in Resource::ALL {
            let excluded = self
                .policy
                .is_some_and(|policy| policy.is_off() || !policy.controls(resource));
            if excluded && said.target.get(resource).is_some() {
                notes.push(Note::NotControlled {
                    container: self.spec.name.clone(),
                    resource,
                });
                recommended.drop(resource);
            }
        }
        self.recommended = Some(recommended);
    }

    pub(super) fn values(&self) -> ControlledValues {
        self.policy
            .and_then(|policy| policy.controlled_values)
            .unwrap_or_default()
    }

    /// The container as it is.
    pub(super) fn standing(&self) -> NamedRequirements {
        NamedRequirements {
            name: self.spec.name.clone(),
            resources: self.standing,
        }
    }

    /// Leaves a resource as it is, whatever is recommended.
    pub(super) fn leave(&mut self, resource: Resource) {
        if let Some(recommended) = &mut self.recommended {
            recommended.drop(resource);
        }
    }

    /// Leaves a resource as it is, also where a boost of it is over.
    pub(super) fn leave_entirely(&mut self, resource: Resource) {
        self.leave(resource);
        if resource == Resource::Cpu {
            self.boost = None;
        }
    }

    /// Leaves everything as it is, but for cpu whose boost is over.
    pub(super) fn leave_all_but_boost(&mut self) {
        for resource in Resource::ALL {
            if !self.ends_boost(resource) {
                self.leave(resource);
            }
        }
    }

    /// Whether a resource is to change: to its target, or back from a boost.
    pub(super) fn moves(&self, resource: Resource) -> bool {
        self.target(resource).is_some() || (resource == Resource::Cpu && self.before_boost().is_some())
    }

    /// Whether a boost of the resource is over and the container still has it.
    pub(super) fn ends_boost(&self, resource: Resource) -> bool {
        resource == Resource::Cpu && matches!(self.boost, Some(Boost::Over(_)))
    }

    /// What the container had before a boost that is over, where that is known.
    pub(super) const fn before_boost(&self) -> Option<Requirements> {
        match self.boost {
            Some(Boost::Over(before)) => before,
            Some(Boost::Lasts) | None => None,
        }
    }

    /// Whether any resource is to change.
    pub(super) fn has_target(&self) -> bool {
        Resource::ALL
            .into_iter()
            .any(|resource| self.target(resource).is_some())
    }

    /// What the container's request should become, if the resource has a target.
    pub(super) fn target(&self, resource: Resource) -> Option<u64> {
        self.recommended.as_ref()?.target.get(resource)
    }
}

pub(super) fn recommendations(vpa: &VerticalPodAutoscaler) -> &[ContainerRecommendation] {
    vpa.status
        .recommendation
        .as_ref()
        .map_or(&[], |recommendation| &recommendation.container_recommendations)
}
