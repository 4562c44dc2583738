//! What a pass knows of the pod's cgroups from one observation.

use std::sync::Arc;
use std::time::Instant;

use super::Pass;
use crate::actuate::handles::PodHandles;
use crate::actuate::least_limits::{LeastLimits, OfPod};
use crate::actuate::shrink::{Lowering, ShrinkChecks};
use crate::model::{Bytes, MemoryLimit, Outcome, PodValues, QUICK, Settings, Step, Target, at_once};
use crate::plan::{Plan, PodTargets};

/// What one observation of the pod's cgroups has led to. The next observation replaces the whole value.
#[derive(Debug)]
pub(in crate::actuate) struct Observed {
    pub(in crate::actuate) wanted: PodValues,
    pub(super) plan: Plan,
    /// The least limits that `wanted` was made with.
    pub(super) least_limits: OfPod,
    /// The cgroups whose memory limits come down.
    pub(super) checks: ShrinkChecks,
    /// When the pass began to make room for lower limits, and in how many turns it has.
    pub(super) making_room: Option<(Instant, u32)>,
}

impl Pass {
    /// Opens the pod's cgroups, reads their files, and plans the steps to what the pass writes towards.
    pub(in crate::actuate) fn observe(&mut self) -> Result<Box<Observed>, Outcome> {
        let stages = &mut self.done.record.stages;
        if stages.queued.is_zero() {
            stages.queued = self.job.asked.elapsed();
        }
        let start = Instant::now();
        let live = Arc::clone(self.targets.bound.live());
        let (handles, tree) = PodHandles::open_and_read(&self.node.hierarchy, &live)?;
        // Part of the result from here on, also where no plan follows; so is whether a cgroup is gone.
        self.handles = handles;
        // A new cgroup may have the path of one that ended.
        let found = self.handles.identities();
        let others = self.job.cgroups.as_ref().is_some_and(|known| *known != found);
        self.job.cgroups = Some(found);
        stages.observe = start.elapsed();
        let start = Instant::now();
        self.done.stale = tree.containers.len() < live.containers.len();
        // Each of these changes what the next one reads: the least limits raise the amounts, from which the wanted values follow. Those
        // that a foreign writer keeps changing leave the wanted values before the plan is made.
        let (least_limits, grown) = lift_to_least(&mut self.targets, &self.node.least_limits);
        let mut wanted = self.targets.values(&tree, &self.node.traits);
        if !others {
            let foreign = &mut self.done.foreign;
            self.done.flipped = foreign.find_flips(&tree, &mut wanted, self.held_before, &grown);
        }
        let plan = Plan::of_files(&tree, &wanted.tree, &self.node.traits)?;
        let checks = ShrinkChecks::of(&plan, &self.handles, &self.job.seen)?;
        // The checks begin with what earlier tries have read, and what they read counts for the next try, unless a cgroup ends.
        self.job.seen.extend(checks.seen());
        stages.plan = start.elapsed();
        Ok(Box::new(Observed {
            wanted,
            plan,
            least_limits,
            checks,
            making_room: None,
        }))
    }

    /// Whether the guard has raised no limit of the pod since the pass observed.
    pub(in crate::actuate) fn is_current(&self, observed: &Observed) -> bool {
        self.node.least_limits.of(self.uid()) == observed.least_limits
    }
}

/// Lifts the amounts to the least limits. Returns those, and the containers whose amounts have risen.
fn lift_to_least(targets: &mut PodTargets, least_limits: &LeastLimits) -> (OfPod, Vec<String>) {
    let amounts = &mut targets.amounts;
    let before = amounts.containers.clone();
    let of_pod = least_limits.lift(&targets.bound.live().id.uid, amounts);
    let pairs = amounts.containers.iter().zip(before);
    let grown = pairs.filter_map(|(now, before)| (*now != before).then(|| now.name.clone()));
    (of_pod, grown.collect())
}

impl Observed {
    /// Whether the files may have changed since they were read: the pass has waited in between, for room under lower limits, for the
    /// API server, or for a slot to write steps that it planned before.
    pub(super) fn may_be_outdated(&self) -> bool {
        self.making_room.is_some_and(|(_, turns)| turns > 1)
    }

    /// Whether the guard has raised the limit, or a part of it. Such a limit ends no watch of a lowered one: it says nothing about
    /// the limit that is decided.
    fn is_temporary(&self, target: &Target) -> bool {
        match target {
            Target::Container(name) => self.least_limits.contains_key(name),
            Target::Pod => !self.least_limits.is_empty(),
        }
    }

    /// Whether the decided limit is above a watched one.
    fn was_raised(&self, watched: &Lowering) -> bool {
        let wanted = self.wanted.tree.get(&watched.target).and_then(Settings::memory_limit);
        !self.is_temporary(&watched.target) && wanted > Some(MemoryLimit::Bytes(watched.to.get()))
    }

    /// The cgroups whose memory limits the pass writes, and those whose watched limits another writer has raised to the wanted ones.
    pub(super) fn touched(&self, lowered: &[Lowering], watched: &[Lowering]) -> Vec<Target> {
        let changes_memory = |step: &&Step| step.change.files().iter().any(|(_, to)| to.memory().is_some());
        let steps = self.plan.steps.iter().filter(changes_memory).map(|step| &step.target);
        let steps = steps.filter(|target| !self.is_temporary(target));
        let raised = watched.iter().filter(|watched| self.was_raised(watched));
        let limits = lowered.iter().chain(raised).map(|lowering| &lowering.target);
        steps.chain(limits).cloned().collect()
    }

    /// Reads the cgroups whose limits are about to come down, those of them that `counts` selects. The watch
    /// compares later readings with these.
    pub(super) fn before_lowering(
        &self,
        handles: &PodHandles,
        counts: impl Fn(&Target, Bytes) -> bool,
    ) -> Result<Vec<Lowering>, Outcome> {
        let mut lowered = Vec::new();
        for step in &self.plan.steps {
            let (Some((from, to)), Some(cgroup)) = (step.change.lowered_memory(), handles.get(&step.target)) else {
                continue;
            };
            if counts(&step.target, to) {
                let last = at_once(QUICK, Instant::now, || cgroup.watch_reading())?;
                lowered.push(Lowering {
                    target: step.target.clone(),
                    from,
                    to,
                    before: self.checks.before(&step.target, last, to),
                });
            }
        }
        Ok(lowered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Setting;
    use crate::plan::shrink::Before;

    fn app() -> Target {
        Target::Container("app".into())
    }

    fn limit(mebibytes: u64) -> Setting {
        Setting::MemoryMax(MemoryLimit::Bytes(mebibytes << 20))
    }

    /// An observation that led to this limit for the container, and to no step.
    fn observed(mebibytes: u64, least_limits: OfPod) -> Observed {
        let mut wanted = PodValues::default();
        let settings = Settings::from_iter([limit(mebibytes)]);
        wanted.tree.containers.insert("app".into(), settings);
        Observed {
            wanted,
            plan: Plan::default(),
            least_limits,
            checks: ShrinkChecks::default(),
            making_room: None,
        }
    }

    fn given() -> OfPod {
        OfPod::from([("app".into(), Bytes::new(200 << 20))])
    }

    #[test]
    fn only_a_decided_limit_ends_a_watch() {
        let watched = Lowering {
            target: app(),
            from: MemoryLimit::Bytes(200 << 20),
            to: Bytes::new(100 << 20),
            before: Before::of_test(),
        };
        let touched = |observed: Observed| observed.touched(&[], std::slice::from_ref(&watched));
        assert_eq!(touched(observed(200, OfPod::new())), [app()]);
        assert_eq!(touched(observed(200, given())), [], "the guard raised it");
        assert_eq!(touched(observed(100, OfPod::new())), [], "as low as before");
    }

    #[test]
    fn a_step_for_the_guard_ends_no_watch() {
        let touched = |least_limits: OfPod| {
            let mut observed = observed(200, least_limits);
            observed.plan.steps.push(Step::of_file(app(), limit(100), limit(200)));
            observed.touched(&[], &[])
        };
        assert_eq!((touched(OfPod::new()), touched(given())), (vec![app()], Vec::new()));
    }
}
