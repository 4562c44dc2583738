//! Runs a container's hooks: before its memory limit comes down, after the limit has grown, and when usage is about
//! to reach the limit. Pure.
//!
//! A pass keeps the earlier limit until the `before-shrink` hook has ended, and does everything else. The lower limit
//! follows whether the hook succeeds or fails.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::{Effect, Effects, PodState};
use crate::actuate::HookRun;
use crate::model::objects::Pod;
use crate::model::{Bytes, Cause, ChangeRecord, HookEnd, MemoryLimit, Outcome, Resource, Target};
use crate::plan::hook::{Hook, HookMoment};
use crate::plan::lift_kept;
use crate::plan::shrink::Holds;

/// The `before-shrink` hook runs again if the limit could not be lowered for this long.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(5 * 60);

/// The `on-memory-pressure` hook runs at most once in this time.
const EVIDENCE_EVERY: SignedDuration = SignedDuration::from_hours(1);

/// The hooks of a pod's containers, by container name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hooks {
    is_allowed: bool,
    begun: u64,
    containers: BTreeMap<String, ContainerHooks>,
    /// When a container last ran its `on-memory-pressure` hook, within the last hour.
    evidence_at: BTreeMap<String, Timestamp>,
}

/// The hooks of one container.
#[derive(Debug, Clone, Default)]
struct ContainerHooks {
    id: String,
    /// The memory limit in bytes, as passes left it.
    limit: Option<u64>,
    /// The memory limit that hooks have announced to the container. The `after-grow` hook is
    /// due while `limit` is higher.
    announced_limit: Option<u64>,
    announced: Option<Announcement>,
    /// The limit, and the temporary limit that it was raised to, while the `on-memory-pressure` hook is due or runs.
    evidence: Option<(u64, u64)>,
    /// The number of the hook that runs in the container.
    running: Option<u64>,
}

/// A lower limit and its `before-shrink` hook.
#[derive(Debug, Clone)]
struct Announcement {
    to: u64,
    cause: Cause,
    begun: bool,
    ended: Option<Instant>,
}

impl ContainerHooks {
    /// The hook that is due unless another one runs, with the old and the new limit in bytes.
    fn take_due(&mut self) -> Option<(HookMoment, u64, u64)> {
        match (&self.announced, self.evidence, self.limit) {
            _ if self.running.is_some() => None,
            (_, Some((limit, lent)), _) => Some((HookMoment::OnMemoryPressure, limit, lent)),
            (Some(Announcement { to, begun: false, .. }), None, Some(limit)) => {
                Some((HookMoment::BeforeShrink, limit, *to))
            }
            (_, None, limit) => {
                let from = std::mem::replace(&mut self.announced_limit, limit)?;
                let to = limit.filter(|limit| from < *limit)?;
                Some((HookMoment::AfterGrow, from, to))
            }
        }
    }
}

impl Hooks {
    /// When a container last ran its `on-memory-pressure` hook, within the last hour, as the state file has it.
    pub(super) const fn evidence_at(&self) -> &BTreeMap<String, Timestamp> {
        &self.evidence_at
    }

    /// Takes what an earlier agent has saved.
    pub(super) fn restore(&mut self, evidence_at: BTreeMap<String, Timestamp>) {
        self.evidence_at = evidence_at;
    }

    /// Forgets the `on-memory-pressure` hooks that may run again.
    pub(super) fn time_passed(&mut self, now: Timestamp) {
        self.evidence_at
            .retain(|_, at| now.duration_since(*at) < EVIDENCE_EVERY);
    }

    /// When the next `on-memory-pressure` hook may run again.
    pub(super) fn wakes_at(&self) -> Option<Timestamp> {
        let earliest = self.evidence_at.values().min();
        earliest.and_then(|at| at.checked_add(EVIDENCE_EVERY).ok())
    }

    pub(super) fn forget_announced(&mut self) {
        self.containers.values_mut().for_each(|known| known.announced = None);
    }

    /// Whether the `on-memory-pressure` hook is due or runs.
    pub(super) fn is_leaving_evidence(&self, container: &str) -> bool {
        let known = self.containers.get(container);
        known.is_some_and(|known| known.evidence.is_some())
    }

    /// The memory that the guard must keep for the `on-memory-pressure` hook, if the container has one that may run
    /// now. A hook that cannot be parsed needs none; its error goes on record.
    pub(super) fn evidence_of(&self, pod: &Pod, container: &str) -> Option<Bytes> {
        let hook = Hook::of(pod, container, HookMoment::OnMemoryPressure)?;
        let kept = hook.map_or(Bytes::ZERO, |hook| hook.memory);
        (!self.evidence_at.contains_key(container)).then_some(kept)
    }

    /// Whether a lower limit waits for a hook.
    pub(super) fn is_announcing(&self) -> bool {
        self.holds().next().is_some()
    }

    /// The limits that are kept until a hook has ended.
    fn holds(&self) -> impl Iterator<Item = (Target, MemoryLimit)> {
        self.containers.iter().filter_map(|(name, known)| {
            let waits = known.announced.as_ref()?.ended.is_none();
            let held = known.limit.filter(|_| waits)?;
            Some((Target::Container(name.clone()), MemoryLimit::Bytes(held)))
        })
    }
}

impl PodState {
    /// Notes which containers run now; `restored` says that they may have the limits of an earlier agent.
    pub(super) fn update_hooks(&mut self, restored: bool) {
        let Some(live) = &self.live else { return };
        let known = &mut self.hooks.containers;
        if !Hook::any(&self.pod) {
            known.clear();
            return;
        }
        let desired = self.desired.targets(&self.pod).filter(|_| restored);
        let limits = desired.unwrap_or_else(|| self.pod.requirements());
        let runs = |name: &String| live.containers.get(name).map(|container| &container.id);
        known.retain(|name, known| runs(name) == Some(&known.id));
        for (name, container) in &live.containers {
            let limit = limits.limit(name, Resource::Memory);
            known.entry(name.clone()).or_insert_with(|| ContainerHooks {
                id: container.id.clone(),
                limit,
                announced_limit: limit,
                ..ContainerHooks::default()
            });
        }
    }

    /// The limits that are kept although lower ones are desired.
    pub(crate) fn holds(&self, now: Timestamp) -> Holds {
        let mut holds = self.shrink.backoffs.holds(now);
        for (target, limit) in self.hooks.holds() {
            let held = holds.entry(target).or_insert(limit);
            *held = limit.max(*held);
        }
        holds
    }

    /// Starts the `before-shrink` hooks of a pass that is due. An operator's change and an undone shrink wait for no hook.
    pub(super) fn announce(&mut self, is_allowed: bool, effects: &mut Effects) {
        self.hooks.is_allowed = is_allowed;
        let Some(pending) = self.work.pending.as_ref().filter(|_| self.live.is_some()) else {
            return;
        };
        let now = effects.now;
        let cause = pending.cause.clone();
        let at_once = matches!(
            cause,
            Cause::Operator { .. } | Cause::Released { .. } | Cause::FailedShrink { .. }
        );
        let mut targets = self.desired.targets(&self.pod).unwrap_or_default();
        lift_kept(&self.shrink.backoffs.holds(now.wall), &mut targets);
        for (name, known) in &mut self.hooks.containers {
            let to = targets.limit(name, Resource::Memory);
            let lower = to.filter(|to| is_allowed && !at_once && known.limit.is_some_and(|from| *to < from));
            let wants = |_: &u64| Hook::of(&self.pod, name, HookMoment::BeforeShrink).is_some();
            let Some(to) = lower.filter(wants) else {
                known.announced = None;
                continue;
            };
            known.announced.take_if(|announced| match announced.ended {
                Some(at) => announced.to > to || now.instant.saturating_duration_since(at) >= ANNOUNCE_AGAIN,
                None => !announced.begun && announced.to != to,
            });
            known.announced.get_or_insert_with(|| Announcement {
                to,
                cause: cause.clone(),
                begun: false,
                ended: None,
            });
        }
        self.run_hooks(effects);
    }

    /// Starts the `after-grow` hooks after a pass that left every limit at its desired value.
    pub(super) fn announce_growth(&mut self, effects: &mut Effects) {
        if self.hooks.containers.is_empty() {
            return;
        }
        let mut targets = self.desired.targets_or_spec(&self.pod);
        lift_kept(&self.holds(effects.now.wall), &mut targets);
        for (name, known) in &mut self.hooks.containers {
            known.limit = targets.limit(name, Resource::Memory);
            known.announced_limit = known
                .limit
                .map(|limit| known.announced_limit.map_or(limit, |announced| announced.min(limit)));
            known.announced.take_if(|announced| known.limit <= Some(announced.to));
        }
        self.run_hooks(effects);
    }

    /// Starts the `on-memory-pressure` hook, unless it ran within the last hour.
    pub(super) fn request_evidence(&mut self, container: &str, limits: (u64, u64), effects: &mut Effects) {
        let Some(known) = self.hooks.containers.get_mut(container) else {
            return;
        };
        if let Entry::Vacant(entry) = self.hooks.evidence_at.entry(container.to_owned()) {
            entry.insert(effects.now.wall);
            known.evidence = Some(limits);
            // The guard reports this only where hooks may run.
            self.hooks.is_allowed = true;
            self.run_hooks(effects);
        }
    }

    /// Runs the hooks that are due in containers in which no hook runs.
    fn run_hooks(&mut self, effects: &mut Effects) {
        let Some(live) = self.live.clone().filter(|_| self.hooks.is_allowed) else {
            return;
        };
        for (name, container) in &live.containers {
            let Some(known) = self.hooks.containers.get_mut(name) else {
                continue;
            };
            let Some((moment, old, new)) = known.take_due() else {
                continue;
            };
            let hook = Hook::of(&self.pod, name, moment);
            let runs = matches!(hook, Some(Ok(_)));
            if let (HookMoment::BeforeShrink, Some(announced)) = (moment, &mut known.announced) {
                let now = effects.now.instant;
                (announced.begun, announced.ended) = (true, (!runs).then_some(now));
            }
            let unused = known.evidence.take_if(|_| !runs);
            if let Some(Ok(hook)) = hook {
                self.hooks.begun += 1;
                known.running = Some(self.hooks.begun);
                let run = HookRun {
                    number: self.hooks.begun,
                    container: name.clone(),
                    live: container.clone(),
                    moment,
                    hook,
                    old,
                    new,
                };
                if moment == HookMoment::OnMemoryPressure {
                    self.record_hook(name, moment, Outcome::Unchanged, effects);
                }
                effects.push(Effect::RunHook(Box::new(run)));
            } else if let Some(Err(error)) = hook {
                let failed = HookEnd::failed(error);
                self.record_hook(name, moment, Outcome::Hook(failed), effects);
            }
            if unused.is_some() {
                self.end_evidence_limit(name, (old, new), effects.now);
            }
        }
    }

    /// Notes the end of a hook, and makes the pass due that lowers the limit.
    pub(super) fn end_hook(&mut self, run: &HookRun, end: HookEnd, effects: &mut Effects) {
        let known = self.hooks.containers.get_mut(&run.container);
        if let Some(known) = known.filter(|known| known.id == run.live.id && known.running == Some(run.number)) {
            known.running = None;
            known.evidence.take_if(|_| run.moment == HookMoment::OnMemoryPressure);
            if let (HookMoment::BeforeShrink, Some(announced)) = (run.moment, &mut known.announced)
                && (announced.begun, announced.ended) == (true, None)
            {
                announced.ended = Some(effects.now.instant);
                let cause = announced.cause.clone();
                self.restart(cause, effects.now);
                let targets = [Target::Container(run.container.clone()), Target::Pod];
                self.shrink.forget_seen(&targets);
            }
        }
        if run.moment == HookMoment::OnMemoryPressure {
            self.end_evidence_limit(&run.container, (run.old, run.new), effects.now);
        }
        self.record_hook(&run.container, run.moment, Outcome::Hook(end), effects);
        self.run_hooks(effects);
    }

    fn record_hook(&mut self, container: &str, moment: HookMoment, what: Outcome, effects: &mut Effects) {
        let Some(live) = &self.live else { return };
        let (moment, container) = (moment.word(), container.to_owned());
        let record = ChangeRecord::new(live.id.clone(), Cause::Hook { moment, container }, what);
        self.record(record, None, false, effects);
    }
}
