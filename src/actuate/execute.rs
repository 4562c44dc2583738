//! Runs steps on the kernel's files and systemd's properties, and undoes them when one is refused.
//!
//! In come a plan and the pod's open cgroups; out comes what was done, step by step, and how it ended. Every step that
//! counts as done was read back. Blocks: call it from a thread that may.

use std::time::Instant;

use super::handles::PodHandles;
use super::record::StepRecord;
use crate::cgroup::systemd::{Systemd, SystemdError, Unit};
use crate::cgroup::{Cgroup, CgroupError};
use crate::plan::{Change, Plan, Step, Target};
use crate::resources::{Setting, Settings};

/// What became of a plan.
#[derive(Debug)]
pub(super) struct Executed {
    /// What was done, in order, undoing included.
    pub(super) records: Vec<StepRecord>,
    /// How it ended.
    pub(super) end: End,
}

/// How a plan ended.
#[derive(Debug)]
pub(super) enum End {
    /// Every step was done and verified.
    Done,
    /// A check before the first step failed; nothing was written.
    Refused(String),
    /// A cgroup ended under our hands: what was done so far is in order, the rest has to be planned anew.
    Interrupted(String),
    /// A step failed; everything before it was undone.
    RolledBack(String),
    /// A step failed, and so did undoing.
    Incomplete(String),
}

/// Why one step failed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error("{0} has no open cgroup")]
    NoCgroup(Target),
}

impl StepError {
    fn is_gone(&self) -> bool {
        match self {
            Self::Cgroup(error) => error.is_gone(),
            Self::Systemd(_) => false,
            Self::NoCgroup(_) => true,
        }
    }
}

/// Writes one pod's files and unit properties.
#[derive(Debug)]
pub(super) struct Executor<'a> {
    pub(super) handles: &'a PodHandles,
    pub(super) units: Option<&'a Systemd>,
}

impl Executor<'_> {
    /// Runs the file and unit steps of a plan; steps for the runtime are not this executor's and are passed over.
    pub(super) fn run(&self, plan: &Plan) -> Executed {
        let mut records = Vec::new();
        if let Err(refusal) = self.check_all(plan) {
            return Executed {
                records,
                end: End::Refused(refusal),
            };
        }
        let mut done = Vec::new();
        for step in plan
            .steps()
            .iter()
            .filter(|step| !matches!(step.change, Change::Spec { .. }))
        {
            let mut record = StepRecord::planned(step);
            let start = Instant::now();
            let result = self.carry_out(&step.target, &step.change);
            record.took = start.elapsed();
            record.error = result.as_ref().err().map(ToString::to_string);
            records.push(record);
            match result {
                Ok(()) => done.push(step),
                Err(error) if error.is_gone() => {
                    return Executed {
                        records,
                        end: End::Interrupted(error.to_string()),
                    };
                }
                Err(error) => {
                    let end = match self.undo(&done, &mut records) {
                        Ok(()) => End::RolledBack(error.to_string()),
                        Err(undoing) => End::Incomplete(format!("{error}; and it could not be undone: {undoing}")),
                    };
                    return Executed { records, end };
                }
            }
        }
        Executed {
            records,
            end: End::Done,
        }
    }

    /// Whether the checks before the first step would pass.
    pub(super) fn check_all(&self, plan: &Plan) -> Result<(), String> {
        plan.steps()
            .iter()
            .try_for_each(|step| self.check(step))
            .map_err(|error| error.to_string())
    }

    /// Puts back what steps replaced, the last one first: each state on the way back was in order on the way there.
    pub(super) fn undo<'s, I>(&self, done: I, records: &mut Vec<StepRecord>) -> Result<(), String>
    where
        I: IntoIterator<Item = &'s &'s Step>,
        I::IntoIter: DoubleEndedIterator,
    {
        for step in done.into_iter().rev() {
            let reversed = match &step.change {
                Change::File { from, to } => Change::File { from: *to, to: *from },
                Change::Unit { from, to } => Change::Unit {
                    from: to.clone(),
                    to: from.clone(),
                },
                Change::Spec { .. } => continue,
            };
            let reversed = Step {
                target: step.target.clone(),
                change: reversed,
            };
            let mut record = StepRecord {
                rollback: true,
                ..StepRecord::planned(&reversed)
            };
            let start = Instant::now();
            let result = self.carry_out(&reversed.target, &reversed.change);
            record.took = start.elapsed();
            record.error = result.as_ref().err().map(ToString::to_string);
            records.push(record);
            if let Err(error) = result
                && !error.is_gone()
            {
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    /// Refuses, before anything is written, a limit below what is in use.
    fn check(&self, step: &Step) -> Result<(), StepError> {
        let changes: Vec<(Setting, Setting)> = match &step.change {
            Change::File { from, to } => vec![(*from, *to)],
            Change::Unit { from, to } => to.iter().filter_map(|to| Some((from.get(to.file())?, to))).collect(),
            Change::Spec { .. } => Vec::new(),
        };
        if changes.is_empty() {
            return Ok(());
        }
        let cgroup = self.cgroup(&step.target)?;
        changes
            .into_iter()
            .try_for_each(|(from, to)| Ok(cgroup.outer().check_usage(from, to)?))
    }

    fn carry_out(&self, target: &Target, change: &Change) -> Result<(), StepError> {
        let cgroup = self.cgroup(target)?;
        match change {
            Change::File { to, .. } => cgroup.write(*to).map(drop)?,
            Change::Unit { to, .. } => self.set_unit(cgroup, to)?,
            Change::Spec { .. } => {}
        }
        Ok(())
    }

    /// Tells systemd, and then writes the files itself: systemd writes them whenever its event loop comes to it.
    ///
    /// Without a bus only the files are written: the kernel holds the values at once, and should systemd put its own
    /// back, that is drift like any other.
    fn set_unit(&self, cgroup: &Cgroup, to: &Settings) -> Result<(), StepError> {
        if let (Some(systemd), Some(unit)) = (self.units, Unit::of(cgroup.path())) {
            systemd.set(&unit, to)?;
        }
        to.iter()
            .try_for_each(|setting| cgroup.write(setting).map(drop))
            .map_err(StepError::from)
    }

    fn cgroup(&self, target: &Target) -> Result<&Cgroup, StepError> {
        self.handles
            .get(target)
            .ok_or_else(|| StepError::NoCgroup(target.clone()))
    }
}
