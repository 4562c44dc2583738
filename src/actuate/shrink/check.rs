//! Makes room for the lower limits of a plan before its first step: reads memory use and has the kernel reclaim.
//!
//! [`ShrinkCheck`] decides each action, for each cgroup whose limit comes down. This module carries out one action at a time,
//! so that other pods get their turn in between. It changes no limit.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::actuate::handles::PodHandles;
use crate::cgroup::CgroupError;
use crate::model::{Bytes, MemoryLimit, PodTree, Target};
use crate::plan::Plan;
use crate::plan::shrink::{Before, CheckStep, RECLAIM_STEP, Reclaim, ShrinkCheck, UsageHistory, WatchReading};

/// The part of a memory limit that the agent keeps free for a kubelet that compares the memory in use before it writes: more
/// than the containers cache until then.
const KEPT_FREE: u64 = 16;

/// The memory use that earlier tries have read, for each cgroup of a pod.
pub type SeenBefore = BTreeMap<Target, UsageHistory>;

/// The cgroups of one pod whose limits come down.
#[derive(Debug, Default)]
pub(in crate::actuate) struct ShrinkChecks(Vec<LimitCheck>);

#[derive(Debug)]
struct LimitCheck {
    target: Target,
    policy: ShrinkCheck,
    ready: bool,
}

#[derive(Debug)]
pub(in crate::actuate) enum Next {
    /// Every limit can be written now.
    Ready,
    /// Call again at this time or later.
    Wait(Instant),
    /// A limit cannot be lowered: its cgroup and the reason, a sentence.
    Refused(String),
}

impl ShrinkChecks {
    /// The cgroups of a plan, in the plan's order: children before their parent.
    pub(in crate::actuate) fn of(plan: &Plan, handles: &PodHandles, seen: &SeenBefore) -> Result<Self, CgroupError> {
        let mut checks = Vec::new();
        for step in &plan.steps {
            let (Some((_, to)), Some(cgroup)) = (step.change.lowered_memory(), handles.get(&step.target)) else {
                continue;
            };
            let seen = seen.get(&step.target).copied().unwrap_or_default();
            let reclaim = cgroup.outer().reclaim_way()?;
            checks.push(LimitCheck {
                target: step.target.clone(),
                policy: ShrinkCheck::new(to, reclaim, seen),
                ready: false,
            });
        }
        Ok(Self(checks))
    }

    /// Whether no limit comes down.
    pub(in crate::actuate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes at most one step for each cgroup: reads it and, where `may_reclaim`, has the kernel reclaim. Blocks meanwhile.
    pub(in crate::actuate) fn advance(&mut self, handles: &PodHandles, may_reclaim: bool) -> Result<Next, CgroupError> {
        let mut next: Option<Instant> = None;
        for check in &mut self.0 {
            let Some(cgroup) = handles.get(&check.target).filter(|_| !check.ready) else {
                continue;
            };
            let reading = cgroup.outer().memory_reading()?;
            let now = Instant::now();
            let again = match check.policy.next(&reading, now) {
                CheckStep::Ready => {
                    check.ready = true;
                    continue;
                }
                CheckStep::LookAt(at) => at,
                CheckStep::Reclaim(bytes) => {
                    if may_reclaim {
                        cgroup.outer().reclaim(bytes)?;
                    }
                    now
                }
                CheckStep::Refused(why) => return Ok(Next::Refused(format!("{}: {why}", check.target))),
            };
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        Ok(next.map_or(Next::Ready, Next::Wait))
    }

    /// The memory use that the checks have read, for the next try.
    pub(in crate::actuate) fn seen(&self) -> SeenBefore {
        let seen = |check: &LimitCheck| (check.target.clone(), check.policy.history());
        self.0.iter().map(seen).collect()
    }

    /// The state of a cgroup immediately before its limit is lowered to `to`, for the watch.
    pub(in crate::actuate) fn before(&self, target: &Target, last: WatchReading, to: Bytes) -> Before {
        let check = self.0.iter().find(|check| check.target == *target);
        let held = last.memory.held();
        let seen = check.and_then(|check| check.policy.history().most());
        // A peak below the new limit is the most that the cgroup ever used.
        let peak = last.memory.peak.filter(|peak| *peak <= to);
        Before {
            last,
            most: peak.or(seen).unwrap_or(held).max(held),
            refaults: check.map_or(Bytes::ZERO, |check| check.policy.refaults()),
        }
    }
}

/// Has the kernel reclaim the memory that containers use within the last part of their limits, one step at most. A kubelet that
/// compares the memory in use before it writes then finds less in use than the limits allow.
pub(in crate::actuate) fn reclaim_below_limits(wanted: &PodTree, handles: &PodHandles) -> Result<(), CgroupError> {
    for (name, settings) in &wanted.containers {
        let (Some(MemoryLimit::Bytes(limit)), Some(cgroup)) =
            (settings.memory_limit(), handles.get(&Target::Container(name.clone())))
        else {
            continue;
        };
        let roof = Bytes::new(limit - limit / KEPT_FREE);
        let too_much = cgroup.outer().memory_usage()?.saturating_sub(roof);
        if !too_much.is_zero() && cgroup.outer().reclaim_way()? == Reclaim::OnRequest {
            cgroup.outer().reclaim(too_much.min(RECLAIM_STEP))?;
        }
    }
    Ok(())
}
