//! Derives the effects that update copies of the state: in the state file, the guard, the least limits and the watches. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, PodState};
use crate::model::Bytes;

impl PodState {
    /// The effects that update every copy after the state changed from `before`.
    pub(super) fn derived_from(&self, before: &Self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if before.known_to_file() != self.known_to_file() {
            effects.push(Effect::SaveState);
        }
        self.derive_least_limits(before, &mut effects);
        if before.live != self.live {
            effects.push(Effect::WatchFiles(None));
        }
        if before.known_to_guard() != self.known_to_guard() {
            effects.push(Effect::WatchGuard);
        }
        let number = |state: &Self| state.shrink.watch().map(|(number, _)| number);
        if number(before) != number(self) {
            effects.push(match self.shrink.watch() {
                Some((number, lowered)) => Effect::WatchShrink(number, lowered.to_vec()),
                None => Effect::EndShrinkWatch,
            });
        }
        effects
    }

    fn known_to_file(&self) -> Option<impl PartialEq + '_> {
        let asked = (&self.resize.accepted, &self.resize.prepared, &self.resize.written_ahead);
        let undone = (&self.shrink.backoffs, &self.growth.pauses, &self.growth.evidence_at);
        let waits = &self.decision.canary.waits;
        let saved = (&self.identity, &self.pod, &self.desired, asked, undone, waits);
        self.is_saved().then_some(saved)
    }

    fn known_to_guard(&self) -> impl PartialEq + '_ {
        let may_grow = (&self.decision.ceilings, &self.growth.pauses, &self.growth.evidence_at);
        (&self.pod, &self.live, &self.desired, may_grow)
    }

    /// The least memory limits equal the temporary ones.
    fn derive_least_limits(&self, before: &Self, effects: &mut Vec<Effect>) {
        let uid = |state: &Self| state.identity.as_ref().map(|id| id.uid.clone());
        let (earlier, uid) = (uid(before), uid(self));
        let mut least_before: BTreeMap<&str, Bytes> = before.desired.memory_limits().collect();
        if let Some(earlier) = earlier.filter(|earlier| uid.as_ref() != Some(earlier)) {
            effects.push(Effect::ForgetLeastLimits(earlier));
            least_before.clear();
        }
        let Some(uid) = uid else { return };
        let least: BTreeMap<&str, Bytes> = self.desired.memory_limits().collect();
        let containers: BTreeSet<&str> = least_before.keys().chain(least.keys()).copied().collect();
        for container in containers {
            let (from, to) = (least_before.get(container).copied(), least.get(container).copied());
            if from != to {
                effects.push(Effect::MoveLeastLimit {
                    uid: uid.clone(),
                    container: container.to_owned(),
                    from,
                    to,
                });
            }
        }
    }
}
