//! Runs steps on the kernel's files and systemd's properties, and undoes them when one is refused.
//!
//! In come a plan and the pod's open cgroups; out comes what was done, step by step, and how it ended. Every step that
//! counts as done was read back. Blocks: call it from a thread that may.

use std::time::{Duration, Instant};

use super::handles::PodHandles;
use super::node::Node;
use super::shrink::{Freezer, LowerError, lower};
use crate::cgroup::systemd::{Systemd, SystemdError, Unit};
use crate::cgroup::{Cgroup, CgroupError, Reason};
use crate::failpoint::failpoint;
use crate::model::{Change, MemoryLimit, Outcome, Setting, Settings, Step, StepRecord, Target};
use crate::plan::Plan;

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Lower(#[from] LowerError),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error("{0} has no open cgroup")]
    NoCgroup(Target),
}

impl StepError {
    fn is_gone(&self) -> bool {
        match self {
            Self::Cgroup(error) => error.is_gone(),
            Self::Lower(error) => error.is_gone(),
            Self::Systemd(_) => false,
            Self::NoCgroup(_) => true,
        }
    }

    /// Whether the file was written and holds another value.
    const fn is_mismatch(&self) -> bool {
        matches!(
            self,
            Self::Lower(LowerError::Cgroup(error)) | Self::Cgroup(error) if matches!(error.reason, Reason::Mismatch { .. })
        )
    }

    /// Whether a memory limit could not be lowered, for now.
    const fn is_not_shrinkable(&self) -> bool {
        match self {
            Self::Lower(LowerError::Cgroup(error)) | Self::Cgroup(error) => is_too_low(error),
            Self::Lower(LowerError::Freeze(_) | LowerError::TooMuch { .. }) => true,
            Self::Systemd(_) | Self::NoCgroup(_) => false,
        }
    }
}

/// What a failed step may have written, a step for each file: those of a unit, although systemd did not take its
/// properties, and a file that holds another value than was written.
fn parts(step: &Step, failed: &StepError) -> Vec<Step> {
    if !matches!(step.change, Change::Unit { .. }) && !failed.is_mismatch() {
        return Vec::new();
    }
    let part = |(from, to)| Step {
        target: step.target.clone(),
        change: Change::File { from, to },
    };
    step.change.files().into_iter().map(part).collect()
}

const fn is_too_low(error: &CgroupError) -> bool {
    matches!(error.reason, Reason::BelowUsage { .. } | Reason::Busy { .. })
}

/// Writes one pod's files and unit properties.
#[derive(Debug)]
pub(super) struct Executor<'a> {
    handles: &'a PodHandles,
    units: Option<&'a Systemd>,
    freezer: &'a Freezer,
    /// For how long cgroups stood still.
    pub(super) freezes: Vec<Duration>,
    /// What was done, in order, undoing included.
    pub(super) records: Vec<StepRecord>,
    /// What is to be undone if the pass fails.
    pub(super) written: Vec<Step>,
    /// A memory limit could not be lowered: more is in use.
    pub(super) not_shrinkable: bool,
}

impl<'a> Executor<'a> {
    /// For the cgroups of one pod.
    pub(super) fn new(node: &'a Node, handles: &'a PodHandles) -> Self {
        Self {
            handles,
            units: node.units.as_deref(),
            freezer: &node.freezer,
            freezes: Vec::new(),
            records: Vec::new(),
            written: Vec::new(),
            not_shrinkable: false,
        }
    }

    /// Runs the file and unit steps of a plan; steps for the runtime are not this executor's and are passed over.
    ///
    /// Errors: how the pass ends. Where a step failed, what was [written](Self::written) is to be undone, unless a cgroup ended
    /// under our hands: then what was done so far is in order, and the rest is planned anew.
    pub(super) fn run(&mut self, plan: &Plan) -> Result<(), Outcome> {
        self.check_all(plan)?;
        for step in plan.steps().iter().filter(|step| step.change.is_kernels()) {
            let start = Instant::now();
            if let Some(why) = self.would_slow_down(step) {
                let record = StepRecord::carried_out(step, start.elapsed(), &Err::<(), _>(why));
                self.records.push(record);
                continue;
            }
            let result = self.carry_out(step);
            self.records
                .push(StepRecord::carried_out(step, start.elapsed(), &result));
            let Err(error) = result else {
                failpoint("step.written");
                self.written.push(step.clone());
                continue;
            };
            let reason = error.to_string();
            if error.is_gone() {
                return Err(Outcome::Interrupted { reason });
            }
            self.not_shrinkable = error.is_not_shrinkable();
            self.written.extend(parts(step, &error));
            return Err(Outcome::RolledBack { reason });
        }
        Ok(())
    }

    /// Checks what can be checked before the first step.
    ///
    /// Errors: how the pass ends, without anything written.
    pub(super) fn check_all(&mut self, plan: &Plan) -> Result<(), Outcome> {
        let checked = plan.steps().iter().try_for_each(|step| self.check(step));
        checked.map_err(|error| {
            self.not_shrinkable = error.is_not_shrinkable();
            let reason = error.to_string();
            if error.is_gone() {
                Outcome::Interrupted { reason }
            } else {
                Outcome::Refused { reason }
            }
        })
    }

    /// Puts back what steps replaced, the last one first: each state on the way back was in order on the way there.
    ///
    /// Errors: why one cannot be put back; those before it stay as well.
    pub(super) fn undo(&mut self) -> Result<(), String> {
        while let Some(step) = self.written.pop() {
            let change = match step.change {
                Change::File { from, to } => Change::File { from: to, to: from },
                Change::Unit { from, to } => Change::Unit { from: to, to: from },
                Change::Spec { .. } | Change::Resize { .. } => continue,
            };
            let target = step.target;
            let reversed = Step { target, change };
            let start = Instant::now();
            failpoint("step.undone");
            let result = self.carry_out(&reversed);
            self.records.push(StepRecord {
                rollback: true,
                ..StepRecord::carried_out(&reversed, start.elapsed(), &result)
            });
            if let Err(error) = result
                && !error.is_gone()
            {
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    /// Refuses, before anything is written, a limit below what is in use and cannot be reclaimed.
    fn check(&self, step: &Step) -> Result<(), StepError> {
        let changes = step.change.files();
        if changes.is_empty() {
            return Ok(());
        }
        let cgroup = self.cgroup(&step.target)?;
        changes
            .into_iter()
            .try_for_each(|(from, to)| Ok(cgroup.outer().check_usage(from, to)?))
    }

    fn carry_out(&mut self, step: &Step) -> Result<(), StepError> {
        let cgroup = self.cgroup(&step.target)?;
        match &step.change {
            Change::File { .. } => self.write_all(cgroup, step),
            Change::Unit { to, .. } => self.set_unit(cgroup, to, step),
            Change::Spec { .. } | Change::Resize { .. } => Ok(()),
        }
    }

    /// Why `memory.high` is not lowered with its limit: more is in use, so the kernel would hold the container up. One that
    /// is too high does no harm.
    fn would_slow_down(&self, step: &Step) -> Option<String> {
        let Change::File {
            to: Setting::MemoryHigh(to),
            from: Setting::MemoryHigh(from),
        } = &step.change
        else {
            return None;
        };
        let usage = self.cgroup(&step.target).ok()?.outer().memory_usage().ok()?;
        (to < from && MemoryLimit::Bytes(usage.get()) > *to)
            .then(|| format!("left as it is: {} bytes are in use, and would be held up", usage.get()))
    }

    fn write_all(&mut self, cgroup: &Cgroup, step: &Step) -> Result<(), StepError> {
        for (from, to) in step.change.files() {
            let lowers = to.memory().is_some_and(|to| Some(to) < from.memory());
            if lowers {
                lower(cgroup, to, self.freezer, &mut self.freezes)?;
            } else {
                cgroup.write(to)?;
            }
        }
        Ok(())
    }

    /// Tells systemd, and writes the files itself: systemd writes them whenever its event loop comes to it.
    ///
    /// A lower memory limit is written first, because systemd would write it without a look at what is in use; written
    /// again, it is what holds already.
    ///
    /// Without a bus only the files are written: the kernel holds the values at once, and should systemd put its own
    /// back, that is drift like any other.
    fn set_unit(&mut self, cgroup: &Cgroup, to: &Settings, step: &Step) -> Result<(), StepError> {
        let lowers = step.change.lowered_memory().is_some();
        if lowers {
            self.write_all(cgroup, step)?;
        }
        if let (Some(systemd), Some(unit)) = (self.units, Unit::of(cgroup.path())) {
            systemd.set(&unit, to)?;
        }
        if lowers { Ok(()) } else { self.write_all(cgroup, step) }
    }

    fn cgroup(&self, target: &Target) -> Result<&'a Cgroup, StepError> {
        self.handles
            .get(target)
            .ok_or_else(|| StepError::NoCgroup(target.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CpuShares;

    #[test]
    fn a_file_that_reads_differently_is_put_back_with_the_rest() {
        let shares = |shares| Setting::CpuShares(CpuShares::new(shares));
        let change = Change::File {
            from: shares(100),
            to: shares(200),
        };
        let step = Step {
            target: Target::Pod,
            change,
        };
        let failed = |reason| {
            StepError::Cgroup(CgroupError {
                file: "/pod/cpu.shares".into(),
                reason,
            })
        };
        let mismatch = Reason::Mismatch {
            wanted: shares(200),
            read_back: shares(150),
        };
        assert_eq!(parts(&step, &failed(mismatch)), std::slice::from_ref(&step));
        assert_eq!(parts(&step, &failed(Reason::Invalid { wanted: shares(200) })), []);
    }
}
