//! Makes room for the lower limits of a plan before its first step: reads memory use and has the kernel reclaim.
//!
//! [`ShrinkCheck`] decides each action, for each cgroup whose limit comes down. This module carries out one action at a time,
//! so that other pods get their turn in between. It changes no limit.

use std::collections::BTreeMap;
use std::time::Instant;

use super::commit::StepError;
use crate::actuate::handles::PodHandles;
use crate::cgroup::{CgroupDir, CgroupError};
use crate::model::{Bytes, MemoryLimit, PodTree, QUICK, Target, at_once};
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

    /// Takes at most one step for each cgroup: reads it and, where `may_reclaim`, has the kernel reclaim. Blocks meanwhile. Returns when
    /// to call again; `None` once every limit can be written.
    ///
    /// Errors: [`StepError::NoRoom`] for a limit that cannot be lowered; a file cannot be read or written.
    pub(in crate::actuate) fn advance(
        &mut self,
        handles: &PodHandles,
        may_reclaim: bool,
    ) -> Result<Option<Instant>, StepError> {
        let mut next: Option<Instant> = None;
        for check in &mut self.0 {
            let Some(cgroup) = handles.get(&check.target).filter(|_| !check.ready) else {
                continue;
            };
            let (now, reading) = at_once(QUICK, Instant::now, || cgroup.outer().memory_reading())?;
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
                CheckStep::Refused(why) => return Err(StepError::NoRoom(format!("{}: {why}", check.target))),
            };
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        Ok(next)
    }

    /// The memory use that the checks have read, for the next try.
    pub(in crate::actuate) fn seen(&self) -> SeenBefore {
        let seen = |check: &LimitCheck| (check.target.clone(), check.policy.history());
        self.0.iter().map(seen).collect()
    }

    /// The state of a cgroup immediately before its limit is lowered to `to`, with the latest reading and its time, for the watch.
    pub(in crate::actuate) fn before(&self, target: &Target, (at, last): (Instant, WatchReading), to: Bytes) -> Before {
        let check = self.0.iter().find(|check| check.target == *target);
        let held = last.memory.held();
        let seen = check.and_then(|check| check.policy.history().most());
        // A peak below the new limit is the most that the cgroup ever used.
        let peak = last.memory.peak.filter(|peak| *peak <= to);
        Before {
            last,
            at,
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
        // The other containers still have memory to give when one has ended.
        CgroupError::unless_gone(reclaim_above(cgroup.outer(), Bytes::new(limit - limit / KEPT_FREE)))?;
    }
    Ok(())
}

/// Has the kernel reclaim what is in use above this amount, one step at most.
fn reclaim_above(cgroup: &CgroupDir, roof: Bytes) -> Result<(), CgroupError> {
    let too_much = cgroup.memory_usage()?.saturating_sub(roof);
    if !too_much.is_zero() && cgroup.reclaim_way()? == Reclaim::OnRequest {
        cgroup.reclaim(too_much.min(RECLAIM_STEP))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::actuate::node::Node;
    use crate::model::{LivePod, MemoryReading, Setting, Settings, Step};

    const fn mib(mebibytes: u64) -> Bytes {
        Bytes::new(mebibytes << 20)
    }

    fn limit(mebibytes: u64) -> Setting {
        Setting::MemoryMax(MemoryLimit::Bytes(mebibytes << 20))
    }

    fn app() -> Target {
        Target::Container("app".into())
    }

    /// The open cgroups of a pod whose container `app` uses so many MiB, and once used so many, if that is known.
    fn handles(root: &Path, used: u64, peak: Option<u64>) -> PodHandles {
        let directory = root.join("pod/app");
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: String| fs::write(directory.join(name), text).unwrap();
        write("memory.current", format!("{}\n", used << 20));
        write("memory.reclaim", String::new());
        if let Some(peak) = peak {
            write("memory.peak", format!("{}\n", peak << 20));
        }
        let live = LivePod::on_files(["app"]);
        PodHandles::open(&Node::on_files(root).hierarchy, &live).unwrap()
    }

    #[test]
    fn each_lower_limit_is_checked() {
        let plan = |to: u64| Plan {
            steps: vec![Step::of_file(app(), limit(128), limit(to))],
        };
        let next = |used: u64, peak: Option<u64>| {
            let root = tempfile::tempdir().unwrap();
            let handles = handles(root.path(), used, peak);
            let mut checks = ShrinkChecks::of(&plan(64), &handles, &SeenBefore::new()).unwrap();
            let next = checks.advance(&handles, true);
            (next, checks.seen()[&app()].most())
        };
        assert!(matches!(next(40, Some(41)), (Ok(None), Some(most)) if most == mib(40)));
        assert!(matches!(next(40, None), (Ok(Some(_)), Some(most)) if most == mib(40)));
        let (refused, most) = next(100, Some(100));
        let why = refused.unwrap_err().to_string();
        assert!(why.starts_with("container app: "), "{why}");
        assert_eq!(most, None);
        let root = tempfile::tempdir().unwrap();
        let handles = handles(root.path(), 40, None);
        let checks = |to| ShrinkChecks::of(&plan(to), &handles, &SeenBefore::new()).unwrap();
        assert!(!checks(127).is_empty() && checks(129).is_empty());
    }

    #[test]
    fn a_watch_begins_with_the_most_that_fits() {
        let most = |held: u64, peak: Option<u64>| {
            let last = WatchReading {
                memory: MemoryReading {
                    usage: mib(held),
                    anonymous: mib(held),
                    peak: peak.map(mib),
                    ..MemoryReading::default()
                },
                kills: 0,
                stalled: None,
            };
            let at = Instant::now();
            let before = ShrinkChecks::default().before(&app(), (at, last), mib(100));
            assert_eq!((before.at, before.last, before.refaults), (at, last, Bytes::ZERO));
            before.most
        };
        assert_eq!(most(60, Some(80)), mib(80));
        assert_eq!(most(60, Some(100)), mib(100));
        assert_eq!(
            most(60, Some(101)),
            mib(60),
            "the peak is from before the lower limit was wanted"
        );
        assert_eq!(most(60, None), mib(60));
        assert_eq!(most(60, Some(40)), mib(60));
    }

    #[test]
    fn a_sixteenth_of_a_limit_is_kept_free() {
        for (used, reclaimed) in [(150, ""), (151, "1048576\n"), (190, "33554432\n")] {
            let root = tempfile::tempdir().unwrap();
            drop(handles(root.path(), used, None));
            fs::create_dir(root.path().join("pod/aaa")).unwrap();
            let live = LivePod::on_files(["aaa", "app"]);
            let handles = PodHandles::open(&Node::on_files(root.path()).hierarchy, &live).unwrap();
            // One container ends meanwhile.
            fs::remove_dir(root.path().join("pod/aaa")).unwrap();
            let limited = |name: &str| (name.into(), Settings::from_iter([limit(160)]));
            let wanted = PodTree {
                containers: ["aaa", "app"].map(limited).into(),
                ..PodTree::default()
            };
            reclaim_below_limits(&wanted, &handles).unwrap();
            let text = fs::read_to_string(root.path().join("pod/app/memory.reclaim")).unwrap();
            assert_eq!(text, reclaimed, "{used}");
        }
    }
}
