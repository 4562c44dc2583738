//! Makes room for the lower limits of a plan, before its first step: looks, and has the kernel reclaim.
//!
//! What to do is decided by [`Ground`], for each cgroup whose limit is to come down; here it is done, one step at a time,
//! so that other pods get their turn in between. No limit is touched.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::actuate::handles::PodHandles;
use crate::cgroup::CgroupError;
use crate::model::{Bytes, Target};
use crate::plan::Plan;
use crate::plan::shrink::{Before, Ground, GroundStep, MemoryReading, NotShrinkable, Sightings, WatchReading, rate};

/// Refaults are counted for at least this long before they say how many there are usually.
const RATE_OVER: Duration = Duration::from_millis(500);

/// What earlier tries have seen, for each cgroup of a pod.
pub type SeenBefore = BTreeMap<Target, Sightings>;

/// All cgroups of one pod whose limits are to come down.
#[derive(Debug)]
pub(in crate::actuate) struct Grounds(Vec<Plot>);

#[derive(Debug)]
struct Plot {
    target: Target,
    ground: Ground,
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

impl Grounds {
    /// Those of a plan, children before their parent, as in the plan.
    pub(in crate::actuate) fn of(plan: &Plan, handles: &PodHandles, seen: &SeenBefore) -> Result<Self, CgroupError> {
        let mut plots = Vec::new();
        for step in plan.steps() {
            let (Some((_, to)), Some(cgroup)) = (step.change.lowered_memory(), handles.get(&step.target)) else {
                continue;
            };
            let seen = seen.get(&step.target).copied().unwrap_or_default();
            let reclaim = cgroup.outer().reclaim_way()?;
            plots.push(Plot {
                target: step.target.clone(),
                ground: Ground::new(to, reclaim, seen),
                ready: false,
                first: None,
                latest: None,
            });
        }
        Ok(Self(plots))
    }

    /// Whether no limit is to come down.
    pub(in crate::actuate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Goes on with each of them by one step at most. Blocks while the kernel reclaims.
    pub(in crate::actuate) fn advance(&mut self, handles: &PodHandles) -> Result<Next, CgroupError> {
        let mut next: Option<Instant> = None;
        for plot in &mut self.0 {
            let Some(cgroup) = handles.get(&plot.target).filter(|_| !plot.ready) else {
                continue;
            };
            let reading = cgroup.outer().memory_reading()?;
            let now = Instant::now();
            plot.first.get_or_insert((now, reading));
            plot.latest = Some((now, reading));
            let again = match plot.ground.next(&reading, now) {
                GroundStep::Ready => {
                    plot.ready = true;
                    continue;
                }
                GroundStep::LookAt(at) => at,
                GroundStep::Reclaim(bytes) => {
                    cgroup.outer().reclaim(bytes)?;
                    now
                }
                GroundStep::Refused(why) => return Ok(Next::Refused(plot.target.clone(), why)),
            };
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        Ok(next.map_or(Next::Ready, Next::Wait))
    }

    /// Whether one of them would be refused at first sight. Does nothing else.
    pub(in crate::actuate) fn check(&mut self, handles: &PodHandles) -> Result<Next, CgroupError> {
        let now = Instant::now();
        for plot in &mut self.0 {
            if let Some(cgroup) = handles.get(&plot.target)
                && let GroundStep::Refused(why) = plot.ground.next(&cgroup.outer().memory_reading()?, now)
            {
                return Ok(Next::Refused(plot.target.clone(), why));
            }
        }
        Ok(Next::Ready)
    }

    /// What has been seen, for the next try.
    pub(in crate::actuate) fn seen(&self) -> SeenBefore {
        let seen = |plot: &Plot| (plot.target.clone(), plot.ground.sightings());
        self.0.iter().map(seen).collect()
    }

    /// What is known of a cgroup in the moment before its limit is lowered to `to`.
    pub(in crate::actuate) fn before(&self, target: &Target, last: WatchReading, to: Bytes) -> Before {
        let plot = self.0.iter().find(|plot| plot.target == *target);
        let held = last.memory.held();
        let seen = plot.and_then(|plot| plot.ground.sightings().most());
        // Where it never used more than it may use now, all that it ever used is known.
        let peak = last.memory.peak.filter(|peak| *peak <= to);
        Before {
            last,
            most: peak.or(seen).unwrap_or(held).max(held),
            refaults: plot.map_or(Bytes::ZERO, Plot::refaults),
        }
    }
}

impl Plot {
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
