//! Everybody else's copies of the pod's state, which only effects keep up to date.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::actuate::LeastLimits;
use crate::guard::GuardedPod;
use crate::model::ContainerName;

/// What the state file, the guard, all writers and the agent's watches have of the pod, and what is under way for it.
#[derive(Debug, Clone)]
pub(super) struct Copies {
    pub(super) saved: Option<SavedPod>,
    guarded: Option<GuardedPod>,
    pub(super) least_limits: LeastLimits,
    pub(super) watched: Option<u64>,
    /// The pod whose files are watched.
    files: Option<Arc<LivePod>>,
    /// The pod whose limit is being raised.
    pub(super) raising: Option<PodUid>,
    /// The hooks that run, by container.
    pub(super) hooks: BTreeMap<ContainerName, Box<HookRun>>,
    /// The requests without an answer.
    pub(super) waiting: BTreeSet<RequestId>,
    pub(super) is_decision_due: bool,
    /// The containers that would have started again for a first recommendation.
    pub(super) restarts: u64,
}

impl Copies {
    pub(super) fn of(state: &PodState, now: Timestamp) -> Self {
        Self {
            saved: None,
            guarded: watched_limits(state, true, now),
            least_limits: LeastLimits::default(),
            watched: None,
            files: None,
            raising: None,
            hooks: BTreeMap::new(),
            waiting: BTreeSet::new(),
            is_decision_due: false,
            restarts: 0,
        }
    }

    /// Another agent starts with this state.
    pub(super) fn start_agent(&mut self, state: &PodState, now: Timestamp) {
        let restarts = self.restarts;
        *self = Self {
            restarts,
            ..Self::of(state, now)
        };
    }

    /// Carries out an effect; `by_pass` if the end of a pass has it.
    pub(super) fn update(&mut self, effect: Effect, state: &PodState, now: Timestamp, by_pass: bool) {
        match effect {
            // The worst case: the agent is killed before the file is written.
            Effect::Save { can_wait: true, .. } => {}
            Effect::Save { pods, .. } => self.saved = pods.into_values().flatten().next(),
            Effect::WatchGuard => self.guarded = watched_limits(state, true, now),
            Effect::SetLeastLimits(limits) => self.least_limits.set(limits),
            Effect::RunHook(run) => {
                let other = self.hooks.insert(run.container.clone(), run);
                assert_eq!(other, None, "two hooks in one container");
            }
            // Only a pass has open cgroups to watch.
            Effect::WatchFiles(_) => self.files = state.live.clone().filter(|_| by_pass),
            Effect::WatchShrink(watch) => self.watched = watch.map(|(number, _)| number),
            Effect::Record { answers: Some(id), .. } | Effect::Refuse { request: id, .. } => {
                assert!(self.waiting.remove(&id), "{id} is answered twice");
            }
            Effect::RaisePodLevel { bound, low } => {
                assert_eq!(state.live.as_ref(), Some(bound.live()));
                assert_eq!(state.drift.low_pod_level(), Some(low));
                self.raising = Some(bound.live().id.uid.clone());
            }
            Effect::Decide => self.is_decision_due = true,
            Effect::Avoided(Avoided::Eviction { restarts }) => self.restarts += restarts,
            Effect::ShrinkEnded(ended) => {
                assert_eq!(state.shrink.watch(), None, "a shrink that has ended is watched");
                let undone = state.work.pending().is_some() && !state.desired.is_empty();
                assert!(ended.is_ok() || undone, "no pass undoes the shrink");
            }
            // The world carries out the other effects.
            Effect::RunPass { .. }
            | Effect::AdmitRequest { .. }
            | Effect::Record { answers: None, .. }
            | Effect::Settled(_)
            | Effect::Avoided(_)
            | Effect::Log(_) => {}
        }
    }
}

impl World {
    /// Everybody's copy is what the state says, and whoever sent a request has an answer or waits for one. A sentence says what does not
    /// hold.
    pub(super) fn check_copies(&self) -> Result<(), String> {
        let (state, copies) = (&self.state, &self.copies);
        let undescribed = |saved: Option<SavedPod>| {
            saved.map(|saved| SavedPod {
                described: None,
                ..saved
            })
        };
        let [was, is] = [copies.saved.clone(), state.saved()].map(undescribed);
        let watched = state.shrink.watch().map(|(number, _)| number);
        let temporary: BTreeMap<_, _> = state.desired.memory_limits().collect();
        let is_heeded = |name: &str, uid: &str| {
            let least = temporary.get(name).copied().filter(|_| uid == self.uid);
            copies.least_limits.get(&uid.into(), name) == least
        };
        let are_heeded = |name| ["u1", "u2"].into_iter().all(|uid| is_heeded(name, uid));
        let work = &state.work;
        let waiting: BTreeSet<_> = work.requests().collect();
        let answers = work.pending().is_some() || work.running().is_some() || work.retry_at.is_some();
        let checks = [
            (was == is, "the state file is outdated"),
            (
                copies.guarded == watched_limits(state, true, self.now.wall),
                "the guard is outdated",
            ),
            (CONTAINERS.into_iter().all(are_heeded), "writers heed another limit"),
            (copies.watched == watched, "other lower limits are watched"),
            (
                copies.files.is_none() || copies.files == state.live,
                "files of another pod are watched",
            ),
            (
                copies.restarts <= CONTAINERS.len() as u64,
                "one recommendation was the first twice",
            ),
            (
                !state.hooks.is_announcing() || !copies.hooks.is_empty(),
                "a limit is kept for ever",
            ),
            (copies.waiting == waiting, "a request was forgotten"),
            (
                waiting.is_empty() || state.live.is_some() && answers,
                "no pass will answer a request",
            ),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, why)) => Err(format!("{why}: {copies:?}, {state:?}")),
            None => Ok(()),
        }
    }
}
