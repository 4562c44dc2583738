//! What others have a copy of, and what follows when a copy is outdated. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Effect, GrowthPause, PodState};
use crate::decide::Ceiling;
use crate::model::objects::{Pod, PodId};
use crate::model::{Bytes, LivePod};
use crate::plan::resize::AcceptedResize;
use crate::plan::shrink::Regrets;
use crate::reconcile::desired::DesiredState;
use crate::reconcile::resize::{PreparedResize, WrittenAhead};

/// The parts of a pod's state that the state file, the guard, the writers and the watches have copies of.
pub(super) struct Shared {
    identity: Option<PodId>,
    pod: Arc<Pod>,
    live: Option<Arc<LivePod>>,
    desired: DesiredState,
    requests: (Option<AcceptedResize>, Option<PreparedResize>, Option<WrittenAhead>),
    backoffs: Regrets,
    ceilings: Vec<Ceiling>,
    pauses: BTreeMap<String, GrowthPause>,
    watched: Option<u64>,
}

impl Shared {
    pub(super) fn of(state: &PodState) -> Self {
        Self {
            identity: state.identity.clone(),
            pod: Arc::clone(&state.pod),
            live: state.live.clone(),
            desired: state.desired.clone(),
            requests: (
                state.resize.accepted.clone(),
                state.resize.prepared.clone(),
                state.resize.written_ahead.clone(),
            ),
            backoffs: state.shrink.backoffs().clone(),
            ceilings: state.decision.ceilings.clone(),
            pauses: state.growth.pauses.clone(),
            watched: state.shrink.watch().map(|(number, _)| number),
        }
    }

    /// Appends what has to follow now that the state is `after`.
    pub(super) fn derive(self, after: &PodState, effects: &mut Vec<Effect>) {
        let now = Self::of(after);
        if self.saved() != now.saved() {
            effects.push(Effect::SaveState);
        }
        self.derive_least_limits(&now, effects);
        if self.live != now.live {
            effects.push(Effect::CloseFiles);
        }
        if (&self.pod, &self.live, &self.desired) != (&now.pod, &now.live, &now.desired)
            || (&self.ceilings, &self.pauses) != (&now.ceilings, &now.pauses)
        {
            effects.push(Effect::WatchGuard);
        }
        if self.watched != now.watched {
            effects.push(match after.shrink.watch() {
                Some((number, lowered)) => Effect::WatchShrink(number, lowered.to_vec()),
                None => Effect::EndShrinkWatch,
            });
        }
    }

    /// The least limits follow the temporary ones.
    fn derive_least_limits(&self, now: &Self, effects: &mut Vec<Effect>) {
        let mut before = self.least_limits();
        if let Some(earlier) = self.uid().filter(|uid| now.uid() != Some(uid)) {
            effects.push(Effect::ForgetLeastLimits(earlier.to_owned()));
            before.clear();
        }
        let Some(uid) = now.uid() else { return };
        let after = now.least_limits();
        let containers = before
            .keys()
            .chain(after.keys().filter(|name| !before.contains_key(*name)));
        for container in containers {
            let (from, to) = (before.get(container).copied(), after.get(container).copied());
            if from != to {
                effects.push(Effect::MoveLeastLimit {
                    uid: uid.to_owned(),
                    container: (*container).to_owned(),
                    from,
                    to,
                });
            }
        }
    }

    /// What the state file holds, if anything is desired.
    fn saved(&self) -> Option<impl PartialEq + '_> {
        let saved = (
            &self.identity,
            &self.pod,
            &self.desired,
            &self.requests,
            &self.backoffs,
            &self.pauses,
        );
        (!self.desired.is_empty() || !self.pauses.is_empty()).then_some(saved)
    }

    fn uid(&self) -> Option<&str> {
        self.identity.as_ref().map(|id| id.uid.as_str())
    }

    fn least_limits(&self) -> BTreeMap<&str, Bytes> {
        self.desired.temporary.of_memory().collect()
    }
}
