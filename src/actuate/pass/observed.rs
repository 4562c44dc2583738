//! What a pass knows of the pod's cgroups from one observation.

use std::time::Instant;

use super::Aim;
use crate::actuate::handles::PodHandles;
use crate::actuate::least_limits::OfPod;
use crate::actuate::shrink::{Lowering, ShrinkChecks};
use crate::model::{Bytes, MemoryLimit, Outcome, PodValues, Settings, Step, Target};
use crate::plan::Plan;

/// What one observation of the pod's cgroups has led to. The next observation replaces the whole value.
#[derive(Debug)]
pub(in crate::actuate) struct Observed {
    /// What the pass wrote towards. For another aim it observes again.
    pub(super) aim: Aim,
    pub(in crate::actuate) wanted: PodValues,
    pub(super) plan: Plan,
    /// The least limits that `wanted` was made with.
    pub(super) least_limits: OfPod,
    /// The cgroups whose memory limits come down.
    pub(super) checks: ShrinkChecks,
    /// When the pass began to make room for lower limits, and in how many turns it has.
    pub(super) making_room: Option<(Instant, u32)>,
}

impl Observed {
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
                let last = cgroup.outer().watch_reading()?;
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
