//! Makes room for the lower limits of a plan, before its first step: looks, and has the kernel reclaim.
//!
//! What to do is decided by [`ShrinkCheck`], for each cgroup whose limit is to come down; here it is done, one step at a time,
//! so that other pods get their turn in between. No limit is touched.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::actuate::handles::PodHandles;
use crate::cgroup::CgroupError;
use crate::model::{Bytes, MemoryLimit, PodTree, Target};
use crate::plan::Plan;
use crate::plan::shrink::{
    Before, CheckStep, MemoryReading, NotShrinkable, RECLAIM_STEP, Reclaim, ShrinkCheck, Sightings, WatchReading, rate,
};

/// Refaults are counted for at least this long before they say how many there are usually.
const RATE_OVER: Duration = Duration::from_millis(500);

/// The part of a memory limit that is kept free for a kubelet that looks before it writes: more than is cached again before it
/// does.
const KEPT_FREE: u64 = 16;

/// What earlier tries have seen, for each cgroup of a pod.
pub type SeenBefore = BTreeMap<Target, Sightings>;

/// All cgroups of one pod whose limits are to come down.
#[derive(Debug, Default)]
pub(in crate::actuate) struct ShrinkChecks(Vec<LimitCheck>);

#[derive(Debug)]
struct LimitCheck {
    target: Target,
    policy: ShrinkCheck,
    ready: bool,
    first: Option<(Instant, MemoryReading)>,
    latest: Option<(Instant, MemoryReading)>,
}

#[derive(Debug)]
pub(in crate::actuate) enum Next {
    /// Every limit can be written now.
    Ready,
    /// Call again, not before then.
    Wait(Instant),
    /// This one cannot be lowered.
    Refused(Target, NotShrinkable),
}

impl ShrinkChecks {
    /// Those of a plan, children before their parent, as in the plan.
    pub(in crate::actuate) fn of(plan: &Plan, handles: &PodHandles, seen: &SeenBefore) -> Result<Self, CgroupError> {
        let mut checks = Vec::new();
        for step in plan.steps() {
            let (Some((_, to)), Some(cgroup)) = (step.change.lowered_memory(), handles.get(&step.target)) else {
                continue;
            };
            let seen = seen.get(&step.target).copied().unwrap_or_default();
            let reclaim = cgroup.outer().reclaim_way()?;
            checks.push(LimitCheck {
                target: step.target.clone(),
                policy: ShrinkCheck::new(to, reclaim, seen),
                ready: false,
                first: None,
                latest: None,
            });
        }
        Ok(Self(checks))
    }

    /// Whether no limit is to come down.
    pub(in crate::actuate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Goes on with each of them by one step at most. Blocks while the kernel reclaims.
    pub(in crate::actuate) fn advance(&mut self, handles: &PodHandles) -> Result<Next, CgroupError> {
        let mut next: Option<Instant> = None;
        for check in &mut self.0 {
            let Some(cgroup) = handles.get(&check.target).filter(|_| !check.ready) else {
                continue;
            };
            let reading = cgroup.outer().memory_reading()?;
            let now = Instant::now();
            check.first.get_or_insert((now, reading));
            check.latest = Some((now, reading));
            let again = match check.policy.next(&reading, now) {
                CheckStep::Ready => {
                    check.ready = true;
                    continue;
                }
                CheckStep::LookAt(at) => at,
                CheckStep::Reclaim(bytes) => {
                    cgroup.outer().reclaim(bytes)?;
                    now
                }
                CheckStep::Refused(why) => return Ok(Next::Refused(check.target.clone(), why)),
            };
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        Ok(next.map_or(Next::Ready, Next::Wait))
    }

    /// Whether one of them would be refused at first sight. Does nothing else.
    pub(in crate::actuate) fn check(&mut self, handles: &PodHandles) -> Result<Next, CgroupError> {
        let now = Instant::now();
        for check in &mut self.0 {
            if let Some(cgroup) = handles.get(&check.target)
                && let CheckStep::Refused(why) = check.policy.next(&cgroup.outer().memory_reading()?, now)
            {
                return Ok(Next::Refused(check.target.clone(), why));
            }
        }
        Ok(Next::Ready)
    }

    /// What has been seen, for the next try.
    pub(in crate::actuate) fn seen(&self) -> SeenBefore {
        let seen = |check: &LimitCheck| (check.target.clone(), check.policy.sightings());
        self.0.iter().map(seen).collect()
    }

    /// What is known of a cgroup in the moment before its limit is lowered to `to`.
    pub(in crate::actuate) fn before(&self, target: &Target, last: WatchReading, to: Bytes) -> Before {
        let check = self.0.iter().find(|check| check.target == *target);
        let held = last.memory.held();
        let seen = check.and_then(|check| check.policy.sightings().most());
        // Where it never used more than it may use now, all that it ever used is known.
        let peak = last.memory.peak.filter(|peak| *peak <= to);
        Before {
            last,
            most: peak.or(seen).unwrap_or(held).max(held),
            refaults: check.map_or(Bytes::ZERO, LimitCheck::refaults),
        }
    }
}

impl LimitCheck {
    /// How many bytes a second had to be read again while the cgroup was looked at.
    fn refaults(&self) -> Bytes {
        let (Some((began, first)), Some((ended, latest))) = (self.first, self.latest) else {
            return Bytes::ZERO;
        };
        let over = ended.saturating_duration_since(began);
        if over < RATE_OVER {
            return Bytes::ZERO;
        }
        rate(first.refaults, latest.refaults, over)
    }
}

/// Has the kernel reclaim what containers use of the last part of their memory limits, one step at most: a kubelet that
/// looks before it writes finds less in use than they allow.
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
