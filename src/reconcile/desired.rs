//! The desired state of a pod: the recommendation in force, an operator's override, temporary limits, or the way
//! back to the spec. Pure.
//!
//! An override wins over the recommendation until the override ends. When nothing is desired any more, the agent leaves
//! the pod's values as they are.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::overrides::{Override, check_names, check_result, overlay};
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, Resource, ResourceList};
use crate::plan::WriteScope;
use crate::plan::resize;

mod temporary;
pub(crate) use temporary::{AfterQuiet, Denied, GrowthPause, TemporaryLimit};

/// The desired state of one pod, as the state file has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DesiredState {
    pub(crate) recommended: Option<Recommended>,
    pub(crate) overridden: Option<Override>,
    /// The pod is on its way back to its spec. Limits that an override added where the spec declares none are removed, too.
    pub(crate) returning: bool,
    /// Limits that the guard has grown.
    #[serde(rename = "leases")]
    pub(crate) temporary: Vec<TemporaryLimit>,
    /// The pod's own amounts, while overrides and temporary limits change its spec through the API server.
    pub(crate) origin: Option<Vec<NamedRequirements>>,
    /// The sum of the containers' requests before the first recommendation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<ResourceList>,
    /// A pass has brought a recommendation into force.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) resized: bool,
    /// The values that passes may write. A state file without this field means all values.
    #[serde(default = "WriteScope::all")]
    pub(crate) scope: WriteScope,
}

/// A recommendation in force, until another one replaces it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recommended {
    /// The VPA's name; `None` where the values of a deleted VPA are taken back.
    pub(crate) vpa: Option<String>,
    pub(crate) at: Timestamp,
    /// The targets of every regular container.
    pub(crate) targets: Vec<NamedRequirements>,
}

impl DesiredState {
    pub(crate) fn is_empty(&self) -> bool {
        self.recommended.is_none() && self.overridden.is_none() && !self.returning && self.temporary.is_empty()
    }

    /// Whether an override or a temporary limit is in force, or is being taken back.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.overridden.is_some() || self.returning || !self.temporary.is_empty()
    }

    /// The targets of every regular container, if anything is desired.
    #[must_use]
    pub(crate) fn targets(&self, pod: &Pod) -> Option<Vec<NamedRequirements>> {
        if self.is_empty() {
            return None;
        }
        let mut targets = self.without_temporary(pod);
        self.lift(&mut targets);
        Some(targets)
    }

    /// The targets without temporary limits.
    #[must_use]
    pub(crate) fn without_temporary(&self, pod: &Pod) -> Vec<NamedRequirements> {
        let base = self.base(pod);
        match &self.overridden {
            Some(overridden) => overlay(base, &overridden.values),
            None => base,
        }
    }

    /// The targets without override and temporary limits.
    pub(crate) fn base(&self, pod: &Pod) -> Vec<NamedRequirements> {
        match &self.recommended {
            Some(recommended) => recommended.targets.clone(),
            None => self.origin.clone().unwrap_or_else(|| pod.requirements()),
        }
    }

    /// Sets an override; the values of an earlier one stay where the new one has none.
    ///
    /// Errors: a sentence, when the pod could not run with the result. Nothing changes then.
    pub(crate) fn set_override(&mut self, pod: &Pod, mut wanted: Override) -> Result<(), String> {
        check_names(pod, &wanted.values)?;
        if let Some(earlier) = &self.overridden {
            wanted.values = overlay(earlier.values.clone(), &wanted.values);
        }
        let result = overlay(self.base(pod), &wanted.values);
        check_result(pod, &wanted.values, &result)?;
        self.remember_origin(pod);
        self.temporary
            .retain(|limit| limit_in(&wanted.values, &limit.container, limit.resource).is_none());
        self.overridden = Some(wanted);
        self.returning = false;
        Ok(())
    }

    /// Ends the override, if there is one: the values of the recommendation or of the spec come back.
    pub(crate) fn end_override(&mut self) -> bool {
        let ended = self.overridden.take().is_some();
        self.returning |= ended;
        ended
    }

    /// Keeps the pod's own amounts before an override or a temporary limit changes the spec.
    pub(crate) fn remember_origin(&mut self, pod: &Pod) {
        if resize::supports_in_place_resize(pod) && self.origin.is_none() {
            self.origin = Some(self.base(pod));
        }
    }

    /// Clears the recommendation when its VPA no longer asks for it.
    pub(crate) fn end_recommendation(&mut self) {
        if let (Some(recommended), Some(origin)) = (self.recommended.take(), &mut self.origin) {
            *origin = recommended.targets;
        }
    }

    /// Another client has changed `spec`. The pod's `own` amounts in it count from now on, with the temporary limits on top;
    /// an override and a recommendation end.
    pub(crate) fn yield_to(&mut self, own: Vec<NamedRequirements>, spec: &[NamedRequirements]) {
        (self.overridden, self.recommended) = (None, None);
        self.origin = (!self.temporary.is_empty() || !resize::same(&own, spec)).then_some(own);
        // An earlier pass may have written its values after the kubelet wrote those of the other client.
        self.returning = true;
    }

    /// Begins the way back to the spec anew, after an undone shrink of a pod that had completed it.
    pub(crate) fn return_later(&mut self, pod: &Pod) {
        if self.is_empty() {
            self.remember_origin(pod);
            self.returning = true;
        }
    }

    /// Ends the way back to the spec.
    pub(crate) fn end_return(&mut self) {
        if self.overridden.is_none() && self.temporary.is_empty() {
            self.origin = None;
        }
        self.returning = false;
    }

    pub(crate) fn override_ends_at(&self) -> Option<Timestamp> {
        self.overridden.as_ref().and_then(|overridden| overridden.until)
    }

    /// Whether an operator has set this limit.
    pub(crate) fn is_overridden(&self, container: &str, resource: Resource) -> bool {
        let values = self.overridden.as_ref().map(|overridden| &overridden.values);
        values.is_some_and(|values| limit_in(values, container, resource).is_some())
    }

    /// The desired limit, or else the limit in the spec, in bytes or thousandths of a cpu.
    pub(crate) fn limit(&self, pod: &Pod, container: &str, resource: Resource) -> Option<u64> {
        let desired = self.targets(pod).unwrap_or_else(|| pod.requirements());
        limit_in(&desired, container, resource)
    }
}

/// A container's limit in a list, in bytes or thousandths of a cpu.
pub(crate) fn limit_in(list: &[NamedRequirements], container: &str, resource: Resource) -> Option<u64> {
    let found = list.iter().find(|named| named.name == container)?;
    found.resources.limits.get(resource)
}

#[cfg(test)]
mod tests;
