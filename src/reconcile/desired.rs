//! What a pod should have: the recommendation in force, an operator's override, temporary limits, or the way back to the
//! spec.
//!
//! Pure. In come decisions, operators' requests, growths and the time; out comes what every container should have now. An
//! override wins over the VPA until it ends. When nothing is desired any more, the pod's values are left as they are.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::overrides::{Override, check_names, check_result, overlay};
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, Resource, ResourceList};
use crate::plan::WriteScope;
use crate::plan::resize;

mod temporary;
pub(crate) use temporary::{AfterQuiet, Denied, GrowthPause, TemporaryLimit};

/// Everything that is desired for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DesiredState {
    /// The recommendation last acted on.
    pub(crate) recommended: Option<Recommended>,
    pub(crate) overridden: Option<Override>,
    /// An override ended and what it left behind is not undone yet: limits it added where the pod declares
    /// none have to go, too.
    pub(crate) returning: bool,
    /// Limits that were grown in an emergency.
    #[serde(rename = "leases")]
    pub(crate) temporary: Vec<TemporaryLimit>,
    /// What the spec had before an override or a temporary limit: through the API server, they change the spec.
    pub(crate) origin: Option<Vec<NamedRequirements>>,
    /// What its containers requested when it first followed a recommendation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<ResourceList>,
    /// A recommendation was given to it while it ran.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) resized: bool,
    /// What of the pod's files is written. What an earlier agent saved without it is all of them.
    #[serde(default = "WriteScope::all")]
    pub(crate) scope: WriteScope,
}

/// A recommendation that was acted on: enforced until the next one is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recommended {
    /// The VPA's name; none where what a VPA that is gone had given is taken back.
    pub(crate) vpa: Option<String>,
    pub(crate) at: Timestamp,
    /// What every regular container should have.
    pub(crate) targets: Vec<NamedRequirements>,
}

impl DesiredState {
    pub(crate) fn is_empty(&self) -> bool {
        self.recommended.is_none() && self.overridden.is_none() && !self.returning && self.temporary.is_empty()
    }

    /// Whether an operator, or the guard, has changed what the pod should have, or a change of theirs is being taken back.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.overridden.is_some() || self.returning || !self.temporary.is_empty()
    }

    /// What every regular container should have now, if anything is desired.
    #[must_use]
    pub(crate) fn targets(&self, pod: &Pod) -> Option<Vec<NamedRequirements>> {
        if self.is_empty() {
            return None;
        }
        let mut targets = self.without_temporary(pod);
        self.lift(&mut targets);
        Some(targets)
    }

    /// What every regular container would have without temporary limits.
    #[must_use]
    pub(crate) fn without_temporary(&self, pod: &Pod) -> Vec<NamedRequirements> {
        let base = self.base(pod);
        match &self.overridden {
            Some(overridden) => overlay(base, &overridden.values),
            None => base,
        }
    }

    /// What every regular container would have without override and temporary limits.
    pub(crate) fn base(&self, pod: &Pod) -> Vec<NamedRequirements> {
        match &self.recommended {
            Some(recommended) => recommended.targets.clone(),
            None => self.origin.clone().unwrap_or_else(|| pod.requirements()),
        }
    }

    /// Sets an override; an earlier one's values stay where the new one says nothing.
    ///
    /// Errors: a sentence, when the result could not run; nothing is changed then.
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

    /// Ends the override, if there is one: the recommendation's values come back, or else the spec's.
    pub(crate) fn end_override(&mut self) -> bool {
        let ended = self.overridden.take().is_some();
        self.returning |= ended;
        ended
    }

    /// Something is about to be changed in the spec that is to be undone later.
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

    /// Somebody else has changed the spec to this: it counts now, and the temporary limits on top of it.
    pub(crate) fn yield_to(&mut self, spec: Vec<NamedRequirements>) {
        self.recommended = None;
        self.origin = (!self.temporary.is_empty()).then_some(spec);
        // A pass that did not know yet may have written the earlier values after the kubelet wrote these.
        self.returning = true;
    }

    /// A limit that was lowered goes up again for a while. On a way back to the spec that had ended, it begins anew.
    pub(crate) fn return_later(&mut self, pod: &Pod) {
        if self.is_empty() {
            self.remember_origin(pod);
            self.returning = true;
        }
    }

    /// What an override or a temporary limit left behind is undone.
    pub(crate) fn end_return(&mut self) {
        if self.overridden.is_none() && self.temporary.is_empty() {
            self.origin = None;
        }
        self.returning = false;
    }

    /// When the override ends by itself.
    pub(crate) fn override_ends_at(&self) -> Option<Timestamp> {
        self.overridden.as_ref().and_then(|overridden| overridden.until)
    }

    /// Whether an operator has set this limit.
    pub(crate) fn is_overridden(&self, container: &str, resource: Resource) -> bool {
        let values = self.overridden.as_ref().map(|overridden| &overridden.values);
        values.is_some_and(|values| limit_in(values, container, resource).is_some())
    }

    /// The limit that is desired, or in the spec where nothing is, in bytes or thousandths of a cpu.
    pub(crate) fn limit(&self, pod: &Pod, container: &str, resource: Resource) -> Option<u64> {
        let desired = self.targets(pod).unwrap_or_else(|| pod.requirements());
        limit_in(&desired, container, resource)
    }

    /// The limit as it would be without a temporary one, in bytes or thousandths of a cpu.
    pub(crate) fn limit_without_temporary(&self, pod: &Pod, container: &str, resource: Resource) -> Option<u64> {
        limit_in(&self.without_temporary(pod), container, resource)
    }
}

/// A container's limit in a list, in bytes or thousandths of a cpu.
pub(crate) fn limit_in(list: &[NamedRequirements], container: &str, resource: Resource) -> Option<u64> {
    let found = list.iter().find(|named| named.name == container)?;
    found.resources.limits.get(resource)
}

#[cfg(test)]
mod tests;
