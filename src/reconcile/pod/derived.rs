//! The effects of a change: every copy of a part of the state is updated, or what watches that part. Pure.

use std::collections::BTreeMap;

use super::{Effect, PodState};
use crate::model::objects::{PodUid, ResizePhase};
use crate::model::{Bytes, ContainerName, Reason};

/// The effects after a state has changed from `before` to `after`.
pub(super) fn effects(before: &PodState, after: &PodState) -> Vec<Effect> {
    let mut effects = Vec::new();
    effects.extend(save(before, after));
    if before.resize.is_in_flight(&before.pod) && before.resize.is_carried_out_in(&after.pod) {
        effects.push(Effect::Settled(after.pod.cgroup_uid().into()));
    }
    let [was, is] = [before, after].map(least_limits);
    if was != is {
        let ended = was.map(|(uid, _)| (uid, BTreeMap::new()));
        effects.push(Effect::SetLeastLimits(ended.into_iter().chain(is).collect()));
    }
    if before.live != after.live {
        effects.push(Effect::WatchFiles(None));
    }
    if known_to_guard(before) != known_to_guard(after) {
        effects.push(Effect::WatchGuard);
    }
    if before.trouble != after.trouble && after.decision.reason == Reason::NoTrouble {
        effects.push(Effect::Decide);
    }
    let watch = after.shrink.watch();
    if before.shrink.watch() != watch {
        effects.push(Effect::WatchShrink(watch));
    }
    effects
}

fn save(before: &PodState, after: &PodState) -> Option<Effect> {
    let [mut was, is] = [before, after].map(PodState::saved);
    if was == is {
        return None;
    }
    let ended = was.as_ref().map(|saved| (saved.pod.clone(), None));
    if let (Some(was), Some(is)) = (&mut was, &is) {
        was.described.clone_from(&is.described);
    }
    let same_resize = ResizePhase::of(&before.pod) == ResizePhase::of(&after.pod)
        && before.pod.resizes_in_place() == after.pod.resizes_in_place();
    let same_state = was == is;
    let saved = is.map(|saved| (saved.pod.clone(), Some(saved)));
    Some(Effect::Save {
        pods: ended.into_iter().chain(saved).collect(),
        can_wait: same_state && same_resize && before.pod.spec == after.pod.spec,
    })
}

/// The least memory limits of the pod that runs here equal the temporary ones.
fn least_limits(state: &PodState) -> Option<(PodUid, BTreeMap<ContainerName, Bytes>)> {
    let limits = state.desired.memory_limits();
    let limits = limits.map(|(name, limit)| (ContainerName::from(name), limit));
    let id = state.identity.as_ref()?;
    Some((id.uid.clone(), limits.collect()))
}

fn known_to_guard(state: &PodState) -> impl PartialEq + '_ {
    let may_grow = (&state.decision.ceilings, state.growth.saved(), state.hooks.saved());
    (&state.pod, &state.live, &state.desired, &state.resize, may_grow)
}
