//! When a container's hooks run: before its memory limit comes down, after the limit has grown, and when usage is about to reach
//! the limit. Pure: each transition returns what follows as [`HookEffect`]s.
//!
//! A pass keeps the earlier limit until the `before-shrink` hook has ended, and does everything else. The lower limit
//! follows whether the hook succeeds or fails.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::pod::Now;
use crate::actuate::HookRun;
use crate::model::objects::Pod;
use crate::model::{
    Bytes, Cause, ContainerId, ContainerName, HookEnd, LivePod, MemoryLimit, Outcome, PodAmounts, Resource, Target,
};
use crate::plan::hook::{Hook, HookMoment};
use crate::plan::shrink::Holds;

/// The `before-shrink` hook runs again if the limit could not be lowered for this long.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(5 * 60);

/// The `on-memory-pressure` hook runs at most once in this time.
const EVIDENCE_EVERY: SignedDuration = SignedDuration::from_hours(1);

/// The next step of a pod with a `before-shrink` hook that runs.
const HOOK_AWAITED: &str = "The lower memory limit follows once the container's before-shrink hook has ended.";

/// The pod whose hooks are due or end, and the moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HookedPod<'a> {
    pub(crate) pod: &'a Pod,
    /// `None` where the pod does not run.
    pub(crate) live: Option<&'a LivePod>,
    pub(crate) now: Now,
}

/// A consequence of a transition of the hooks.
#[derive(Debug)]
pub(crate) enum HookEffect {
    Run(Box<HookRun>),
    Record {
        cause: Cause,
        outcome: Outcome,
    },
    /// The `on-memory-pressure` hook needs the temporary limit no longer: the limit in bytes before it, and the temporary one.
    EndTemporaryLimit {
        container: ContainerName,
        limits: (u64, u64),
    },
    /// The `before-shrink` hook has ended: a pass with this cause lowers the limit.
    Shrink {
        container: ContainerName,
        cause: Cause,
    },
}

impl HookEffect {
    fn record(container: &str, moment: HookMoment, outcome: Outcome) -> Self {
        let (moment, container) = (moment.word(), container.to_owned());
        let cause = Cause::Hook { moment, container };
        Self::Record { cause, outcome }
    }
}

/// The hooks of a pod's containers, by container name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hooks {
    is_allowed: bool,
    begun: u64,
    containers: BTreeMap<ContainerName, ContainerHooks>,
    /// When a container last ran its `on-memory-pressure` hook, within the last hour, as the state file has it.
    evidence_at: BTreeMap<ContainerName, Timestamp>,
}

#[derive(Debug, Clone)]
struct ContainerHooks {
    id: ContainerId,
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
    /// What outlasts the agent: when each container last ran its `on-memory-pressure` hook.
    pub(crate) const fn saved(&self) -> &BTreeMap<ContainerName, Timestamp> {
        &self.evidence_at
    }

    /// Takes what an earlier agent saved.
    pub(crate) fn restore(&mut self, evidence_at: BTreeMap<ContainerName, Timestamp>) {
        self.evidence_at = evidence_at;
    }

    /// When `on-memory-pressure` hooks last ran.
    pub(crate) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.evidence_at.values_mut()
    }

    /// Forgets the `on-memory-pressure` hooks that may run again.
    pub(crate) fn time_passed(&mut self, now: Timestamp) {
        self.evidence_at
            .retain(|_, at| now.duration_since(*at) < EVIDENCE_EVERY);
    }

    /// When the next `on-memory-pressure` hook may run again.
    pub(crate) fn wakes_at(&self) -> Option<Timestamp> {
        let earliest = self.evidence_at.values().min();
        earliest.and_then(|at| at.checked_add(EVIDENCE_EVERY).ok())
    }

    pub(crate) fn forget_announced(&mut self) {
        self.containers.values_mut().for_each(|known| known.announced = None);
    }

    /// Whether the `on-memory-pressure` hook is due or runs.
    pub(crate) fn is_leaving_evidence(&self, container: &str) -> bool {
        let known = self.containers.get(container);
        known.is_some_and(|known| known.evidence.is_some())
    }

    /// The memory that the guard must keep for the `on-memory-pressure` hook, if the container has one that may run
    /// now. A hook that cannot be parsed needs none; its error goes on record.
    pub(crate) fn evidence_of(&self, pod: &Pod, container: &str) -> Option<Bytes> {
        let hook = Hook::of(pod, container, HookMoment::OnMemoryPressure)?;
        let kept = hook.map_or(Bytes::ZERO, |hook| hook.memory);
        (!self.evidence_at.contains_key(container)).then_some(kept)
    }

    /// Whether a lower limit waits for a hook.
    pub(crate) fn is_announcing(&self) -> bool {
        self.held().next().is_some()
    }

    /// The limits that are kept until a hook has ended.
    fn held(&self) -> impl Iterator<Item = (Target, MemoryLimit)> {
        self.containers.iter().filter_map(|(name, known)| {
            let waits = known.announced.as_ref()?.ended.is_none();
            let held = known.limit.filter(|_| waits)?;
            Some((Target::Container(name.clone()), MemoryLimit::Bytes(held)))
        })
    }

    /// These kept limits, with those that are kept until a hook has ended.
    pub(crate) fn holds(&self, mut holds: Holds) -> Holds {
        for (target, limit) in self.held() {
            let held = holds.entry(target).or_insert(limit);
            *held = limit.max(*held);
        }
        holds
    }

    /// What the pod waits for, as a sentence, if a lower limit waits for a hook.
    pub(crate) fn next_step(&self) -> Option<String> {
        self.is_announcing().then(|| HOOK_AWAITED.to_owned())
    }

    /// Notes which containers run now, and their memory limits. Returns whether a lower limit waits for no hook any more.
    pub(crate) fn update(&mut self, pod: &Pod, live: Option<&LivePod>, limits: &PodAmounts) -> bool {
        let Some(live) = live else { return false };
        let was_announcing = self.is_announcing();
        let known = &mut self.containers;
        if Hook::any(pod) {
            let runs = |name: &ContainerName| live.containers.get(name).map(|container| &container.id);
            known.retain(|name, known| runs(name) == Some(&known.id));
            for (name, container) in &live.containers {
                let limit = limits.limit(name, Resource::Memory);
                known.entry(name.clone()).or_insert_with(|| ContainerHooks {
                    id: container.id.clone(),
                    limit,
                    announced_limit: limit,
                    announced: None,
                    evidence: None,
                    running: None,
                });
            }
        } else {
            known.clear();
        }
        was_announcing && !self.is_announcing()
    }

    /// Starts the `before-shrink` hooks of the pass that is due, if one is, for its cause and its targets. An operator's
    /// change and an undone shrink wait for no hook.
    pub(crate) fn pass_due(
        &mut self,
        of: HookedPod<'_>,
        is_allowed: bool,
        cause: Option<&Cause>,
        targets: &PodAmounts,
    ) -> Vec<HookEffect> {
        self.is_allowed = is_allowed;
        let Some(cause) = cause.filter(|_| of.live.is_some()) else {
            return Vec::new();
        };
        let at_once = matches!(
            cause,
            Cause::Operator { .. } | Cause::Released { .. } | Cause::FailedShrink { .. }
        );
        for (name, known) in &mut self.containers {
            let to = targets.limit(name, Resource::Memory);
            let lower = to.filter(|to| is_allowed && !at_once && known.limit.is_some_and(|from| *to < from));
            let wants = |_: &u64| Hook::of(of.pod, name, HookMoment::BeforeShrink).is_some();
            let Some(to) = lower.filter(wants) else {
                known.announced = None;
                continue;
            };
            known.announced.take_if(|announced| match announced.ended {
                Some(at) => announced.to > to || of.now.instant.saturating_duration_since(at) >= ANNOUNCE_AGAIN,
                None => !announced.begun && announced.to != to,
            });
            known.announced.get_or_insert_with(|| Announcement {
                to,
                cause: cause.clone(),
                begun: false,
                ended: None,
            });
        }
        self.run_due(of)
    }

    /// Starts the `after-grow` hooks after a pass that left every limit at its value in these `targets`.
    pub(crate) fn pass_ended(&mut self, of: HookedPod<'_>, targets: &PodAmounts) -> Vec<HookEffect> {
        for (name, known) in &mut self.containers {
            known.limit = targets.limit(name, Resource::Memory);
            known.announced_limit = known.announced_limit.or(known.limit).min(known.limit);
            known.announced.take_if(|announced| known.limit <= Some(announced.to));
        }
        self.run_due(of)
    }

    /// Starts the `on-memory-pressure` hook, unless it ran within the last hour. The guard has raised the first of these `limits`
    /// to the second.
    pub(crate) fn pressure(&mut self, of: HookedPod<'_>, container: &str, limits: (u64, u64)) -> Vec<HookEffect> {
        let known = self.containers.get_mut(container);
        let entry = self.evidence_at.entry(container.into());
        let (Some(known), Entry::Vacant(entry)) = (known, entry) else {
            return Vec::new();
        };
        entry.insert(of.now.wall);
        known.evidence = Some(limits);
        // The guard reports this only where hooks may run.
        self.is_allowed = true;
        self.run_due(of)
    }

    /// Runs the hooks that are due in containers in which no hook runs.
    fn run_due(&mut self, of: HookedPod<'_>) -> Vec<HookEffect> {
        let mut effects = Vec::new();
        for (name, container) in of.live.into_iter().flat_map(|live| &live.containers) {
            let known = self.containers.get_mut(name);
            // The limit that was raised for a hook comes down at its end. One that may not run any more fails at once.
            let known = known.filter(|known| self.is_allowed || known.evidence.is_some());
            let due = known.and_then(|known| Some((known.take_due()?, known)));
            let Some(((moment, old, new), known)) = due else {
                continue;
            };
            let hook = Hook::of(of.pod, name, moment);
            let runs = matches!(hook, Some(Ok(_)));
            if let (HookMoment::BeforeShrink, Some(announced)) = (moment, &mut known.announced) {
                (announced.begun, announced.ended) = (true, (!runs).then_some(of.now.instant));
            }
            let unused = known.evidence.take_if(|_| !runs);
            if let Some(Ok(hook)) = hook {
                self.begun += 1;
                known.running = Some(self.begun);
                if moment == HookMoment::OnMemoryPressure {
                    effects.push(HookEffect::record(name, moment, Outcome::Unchanged));
                }
                effects.push(HookEffect::Run(Box::new(HookRun {
                    number: self.begun,
                    container: name.clone(),
                    live: container.clone(),
                    moment,
                    hook,
                    old,
                    new,
                })));
            } else if let Some(Err(error)) = hook {
                let failed = HookEnd::failed(error);
                effects.push(HookEffect::record(name, moment, Outcome::Hook(failed)));
            }
            let container = name.clone();
            effects.extend(unused.map(|limits| HookEffect::EndTemporaryLimit { container, limits }));
        }
        effects
    }

    /// Notes the end of a hook: a limit that waited for the hook may come down.
    pub(crate) fn ended(&mut self, of: HookedPod<'_>, run: &HookRun, end: HookEnd) -> Vec<HookEffect> {
        let mut effects = Vec::new();
        let known = self.containers.get_mut(&run.container);
        if let Some(known) = known.filter(|known| known.id == run.live.id && known.running == Some(run.number)) {
            known.running = None;
            known.evidence.take_if(|_| run.moment == HookMoment::OnMemoryPressure);
            if let (HookMoment::BeforeShrink, Some(announced)) = (run.moment, &mut known.announced)
                && (announced.begun, announced.ended) == (true, None)
            {
                announced.ended = Some(of.now.instant);
                effects.push(HookEffect::Shrink {
                    container: run.container.clone(),
                    cause: announced.cause.clone(),
                });
            }
        }
        if run.moment == HookMoment::OnMemoryPressure {
            effects.push(HookEffect::EndTemporaryLimit {
                container: run.container.clone(),
                limits: (run.old, run.new),
            });
        }
        effects.push(HookEffect::record(&run.container, run.moment, Outcome::Hook(end)));
        effects.extend(self.run_due(of));
        effects
    }
}
