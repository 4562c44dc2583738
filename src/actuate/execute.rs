//! Carries out steps on the kernel's files and systemd's properties, and undoes them when one is refused.
//!
//! In come a plan and the pod's open cgroups; out come the records of the steps and the outcome. Every step without an error
//! was read back. Blocks: call it from a thread that may.

use std::time::{Duration, Instant};

use super::handles::PodHandles;
use super::node::Node;
use super::shrink::{StepError, lower};
use crate::cgroup::systemd::{Systemd, SystemdError, Unit};
use crate::cgroup::{Cgroup, Reason};
use crate::failpoint::failpoint;
use crate::model::objects::PodId;
use crate::model::{Bytes, Change, ControlFile, MemoryLimit, Outcome, Setting, Settings, Step, StepRecord, Target};
use crate::plan::{Plan, systemd_keeps};

/// What a failed step may have changed, as steps to undo: the whole unit where systemd had its properties before a file could not be
/// written; the files, a step for each, where systemd failed or a file holds another value than the step wrote.
fn parts(step: &Step, failed: &StepError) -> Vec<Step> {
    let is_unit = matches!(step.change, Change::Unit { .. });
    let may_have_written = match failed {
        StepError::Cgroup(_) if is_unit && step.change.lowered_memory().is_none() => return vec![step.clone()],
        StepError::Cgroup(_) => is_mismatch(failed),
        StepError::Systemd(_) => true,
        StepError::NotShrinkable(_) | StepError::NoRoom(_) | StepError::NoCgroup(_) => false,
    };
    if !is_unit && !may_have_written {
        return Vec::new();
    }
    let of_file = |(from, to)| Step::of_file(step.target.clone(), from, to);
    step.change.files().into_iter().map(of_file).collect()
}

/// Whether another program writes the file.
const fn is_mismatch(failed: &StepError) -> bool {
    matches!(failed, StepError::Cgroup(error) if matches!(error.reason, Reason::Mismatch { .. }))
}

/// Whether a file has a property of its own. One property holds both of v1's files of a quota.
const fn has_property(file: ControlFile) -> bool {
    matches!(
        file,
        ControlFile::CpuMax
            | ControlFile::CpuWeight
            | ControlFile::MemoryMax
            | ControlFile::CpuShares
            | ControlFile::MemoryLimit
    )
}

/// A step without its lower `memory.high`, if more memory is in use: the kernel would slow the container down, and a high value does
/// no harm. Beside it what is left out, and why.
fn without_slow_down(step: &Step, used: impl FnOnce() -> Option<Bytes>) -> (Option<Step>, Option<(Step, String)>) {
    let lower = |(from, to): (Setting, Setting)| match (from, to) {
        (Setting::MemoryHigh(old), Setting::MemoryHigh(new)) if new < old => Some((from, to, new)),
        _ => None,
    };
    let lowered = step.change.files().into_iter().find_map(lower);
    let left = lowered.and_then(|(from, to, new)| {
        let used = used()?.get();
        let why = format!("left as it is: {used} bytes are in use, and a lower value would slow the processes down");
        (MemoryLimit::Bytes(used) > new).then(|| (Step::of_file(step.target.clone(), from, to), why))
    });
    let rest = match &step.change {
        _ if left.is_none() => Some(step.clone()),
        Change::Unit { from, to } => {
            let is_other = |setting: &Setting| setting.file() != ControlFile::MemoryHigh;
            let [from, to] = [from, to].map(|settings| settings.iter().filter(is_other).collect::<Settings>());
            (!to.is_empty()).then(|| Step {
                target: step.target.clone(),
                change: Change::Unit { from, to },
            })
        }
        Change::File { .. } | Change::Spec { .. } | Change::Resize { .. } => None,
    };
    (rest, left)
}

/// Gives the pod's unit the memory limit of the pod's file, where the file alone was raised. systemd would write its own, lower limit
/// back with the next change of any property, and the kernel would kill what no longer fits. Returns whether systemd has failed; file
/// and property are then as before.
pub(super) fn raise_unit(node: &Node, handles: &PodHandles, pod: &PodId) -> bool {
    let raise = || -> Result<(), StepError> {
        let cgroup = handles.get(&Target::Pod).ok_or(StepError::NoCgroup(Target::Pod))?;
        let known = with_unit(node, cgroup, |systemd, unit| systemd.get(unit, node.traits.version))?;
        let Some(known) = known.and_then(|known| known.memory_limit()) else {
            return Ok(());
        };
        let held = cgroup.read_all()?;
        let mut files = [ControlFile::MemoryMax, ControlFile::MemoryLimit].into_iter();
        let limit = files.find_map(|file| held.get(file));
        match limit.filter(|limit| limit.memory() > Some(known)) {
            Some(limit) => set_properties(node, cgroup, &Settings::from_iter([limit])),
            None => Ok(()),
        }
    };
    let raised = raise();
    if let Err(error) = &raised
        && !error.is_gone()
    {
        tracing::warn!(%pod, %error, "cannot raise the memory limit that systemd has for the pod; systemd may put its lower one back");
    }
    raised.is_err_and(|error| error.is_of_systemd())
}

/// Sets these properties of a cgroup's unit, if it has one. With any of them systemd also writes `cpu.max`, mostly before the properties
/// are read back: the burst outlasts that.
fn set_properties(node: &Node, cgroup: &Cgroup, wanted: &Settings) -> Result<(), StepError> {
    let burst = cgroup.outer().read(ControlFile::CpuMaxBurst)?;
    let set = with_unit(node, cgroup, |systemd, unit| systemd.set(unit, wanted));
    let restored = cgroup.outer().restore_burst(burst);
    set?;
    Ok(restored?)
}

/// Calls systemd about the unit of a cgroup; `None` if there is no unit, or no systemd. A unit ends with its cgroup, and a later cgroup
/// may have a unit of the same name.
fn with_unit<T>(
    node: &Node,
    cgroup: &Cgroup,
    call: impl FnOnce(&Systemd, &Unit) -> Result<T, SystemdError>,
) -> Result<Option<T>, StepError> {
    let (Some(systemd), Some(unit)) = (&node.units, Unit::of(cgroup.path())) else {
        return Ok(None);
    };
    cgroup.outer().check()?;
    let answer = call(systemd.as_ref(), &unit);
    answer.map(Some).map_err(|error| unless_ended(cgroup, error))
}

/// The error of systemd, or that the cgroup has ended.
fn unless_ended(cgroup: &Cgroup, error: SystemdError) -> StepError {
    match cgroup.outer().check() {
        Err(ended) if ended.is_gone() => ended.into(),
        Ok(()) | Err(_) => error.into(),
    }
}

/// Writes one pod's files and unit properties.
#[derive(Debug)]
pub(super) struct Executor<'a> {
    node: &'a Node,
    handles: &'a PodHandles,
    /// Whether written values also become properties of the containers' scopes. Nothing else sets those after a drift, and
    /// systemd would write its own value again.
    pub(super) aligns_scopes: bool,
    /// How long each freeze of a cgroup lasted.
    pub(super) freezes: Vec<Duration>,
    /// The steps that were carried out, in order, with those that undo others.
    pub(super) records: Vec<StepRecord>,
    /// The steps to undo if the pass fails.
    pub(super) written: Vec<Step>,
    /// A memory limit could not be lowered: too much memory is in use.
    pub(super) not_shrinkable: bool,
    /// A file holds another value than a step wrote.
    pub(super) mismatch: bool,
    /// systemd refused a step, or could not be reached.
    pub(super) systemd_failed: bool,
}

impl<'a> Executor<'a> {
    pub(super) fn new(node: &'a Node, handles: &'a PodHandles) -> Self {
        Self {
            node,
            handles,
            aligns_scopes: false,
            freezes: Vec::new(),
            records: Vec::new(),
            written: Vec::new(),
            not_shrinkable: false,
            mismatch: false,
            systemd_failed: false,
        }
    }

    /// Carries out the file and unit steps of a plan, and skips steps for the runtime.
    ///
    /// Errors: how the pass ends. Where a step fails, the caller undoes the [written](Self::written) steps, unless a cgroup has
    /// ended: then the written steps are in order, and the next pass plans the rest anew.
    pub(super) fn run(&mut self, plan: &Plan) -> Result<(), Outcome> {
        self.check_all(plan)?;
        for step in plan.steps.iter().filter(|step| step.change.writes_cgroups()) {
            let start = Instant::now();
            let used = || self.cgroup(&step.target).ok()?.outer().memory_usage().ok();
            let (step, left) = without_slow_down(step, used);
            if let Some((left, why)) = left {
                let record = StepRecord::carried_out(&left, start.elapsed(), &Err::<(), _>(why));
                self.records.push(record);
            }
            let Some(step) = step else { continue };
            tracing::debug!(%step, "a step begins");
            // An undo takes back the property as well, if the step sets one.
            let (whole, result) = match self.with_property(&step) {
                Ok(whole) => {
                    let result = self.carry_out(&whole);
                    (whole, result)
                }
                Err(error) => (step.clone(), Err(error)),
            };
            // Recorded before it is judged: a failed step is on record, too, ahead of the steps that undo others.
            let record = StepRecord::carried_out(&step, start.elapsed(), &result);
            self.records.push(record);
            let Err(error) = result else {
                failpoint("step.written");
                self.written.push(whole);
                continue;
            };
            return Err(self.note_failure(&whole, &error));
        }
        Ok(())
    }

    /// Notes what a failed step means for the rest of the pass. Returns how the pass ends.
    fn note_failure(&mut self, step: &Step, error: &StepError) -> Outcome {
        if !error.is_gone() {
            self.not_shrinkable = error.is_not_shrinkable();
            self.mismatch = is_mismatch(error);
            self.systemd_failed = error.is_of_systemd();
            self.written.extend(parts(step, error));
        }
        error.ends(Outcome::RolledBack)
    }

    /// Checks all steps before the first one: refuses a limit below the memory that is in use and cannot be reclaimed.
    ///
    /// Errors: how the pass ends without a write.
    pub(super) fn check_all(&mut self, plan: &Plan) -> Result<(), Outcome> {
        let check = |step: &Step| {
            for (from, to) in step.change.files() {
                self.cgroup(&step.target)?.outer().check_usage(from, to)?;
            }
            Ok(())
        };
        plan.steps.iter().try_for_each(check).map_err(|error: StepError| {
            self.not_shrinkable = error.is_not_shrinkable();
            error.ends(Outcome::Refused)
        })
    }

    /// Undoes the written steps, the last one first: each state on the way back was valid on the way there.
    ///
    /// Errors: why a step cannot be undone; the steps before it stay as well.
    pub(super) fn undo(&mut self) -> Result<(), String> {
        while let Some(step) = self.written.pop() {
            let Step { target, change } = step;
            let change = match change {
                Change::File { from, to } => Change::File { from: to, to: from },
                Change::Unit { from, to } => Change::Unit { from: to, to: from },
                Change::Spec { .. } | Change::Resize { .. } => continue,
            };
            let reversed = Step { target, change };
            let start = Instant::now();
            failpoint("step.undone");
            let result = self.put_back(&reversed);
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

    /// Carries out a step of an undo. Once systemd fails, puts the files back alone: the limits would stay otherwise, with those of
    /// all steps before.
    fn put_back(&mut self, step: &Step) -> Result<(), StepError> {
        if !self.systemd_failed {
            match self.carry_out(step) {
                Err(StepError::Systemd(error)) => {
                    tracing::warn!(%step, %error, "files are put back without systemd, which may write the undone values again");
                    self.systemd_failed = true;
                }
                result => return result,
            }
        }
        let cgroup = self.cgroup(&step.target)?;
        self.write_all(cgroup, step)
    }

    fn carry_out(&mut self, step: &Step) -> Result<(), StepError> {
        let cgroup = self.cgroup(&step.target)?;
        match &step.change {
            Change::File { .. } => self.write_all(cgroup, step),
            Change::Unit { to, .. } => self.set_unit(cgroup, to, step),
            Change::Spec { .. } | Change::Resize { .. } => Ok(()),
        }
    }

    fn write_all(&mut self, cgroup: &Cgroup, step: &Step) -> Result<(), StepError> {
        for (from, to) in step.change.files() {
            let lowers = to.memory().is_some_and(|to| Some(to) < from.memory());
            if lowers {
                lower(cgroup, to, &self.node.freezer, &mut self.freezes)?;
            } else {
                cgroup.write(to)?;
            }
        }
        Ok(())
    }

    /// Sets the properties in systemd, and writes the files: systemd writes them some time later.
    ///
    /// Writes a lower memory limit before the properties: systemd writes a limit without a check of the memory in use,
    /// and must find the file unchanged.
    ///
    /// Without a bus, writes the files only. Should systemd then put its own values back, a pass repairs that like any drift.
    fn set_unit(&mut self, cgroup: &Cgroup, to: &Settings, step: &Step) -> Result<(), StepError> {
        let lowers = step.change.lowered_memory().is_some();
        if lowers {
            self.write_all(cgroup, step)?;
        }
        set_properties(self.node, cgroup, to)?;
        if lowers { Ok(()) } else { self.write_all(cgroup, step) }
    }

    /// The step, or for the file of a container the change of its scope where the property differs. systemd writes the property's
    /// value, and the file may hold a finer quota.
    fn with_property(&self, step: &Step) -> Result<Step, StepError> {
        let (from, to) = match (self.aligns_scopes, &step.target, &step.change) {
            (true, Target::Container(_), &Change::File { from, to }) if has_property(to.file()) => (from, to),
            _ => return Ok(step.clone()),
        };
        let (cgroup, version) = (self.cgroup(&step.target)?, self.node.traits.version);
        let known = with_unit(self.node, cgroup, |systemd, unit| systemd.get(unit, version))?;
        let known = known.and_then(|known| known.get(to.file()));
        let [from, wanted] = [from, to].map(|setting| Settings::from_iter([setting]));
        Ok(if known.is_none() || known == systemd_keeps(&wanted).get(to.file()) {
            step.clone()
        } else {
            Step {
                target: step.target.clone(),
                change: Change::Unit { from, to: wanted },
            }
        })
    }

    fn cgroup(&self, target: &Target) -> Result<&'a Cgroup, StepError> {
        self.handles
            .get(target)
            .ok_or_else(|| StepError::NoCgroup(target.clone()))
    }
}

#[cfg(test)]
mod tests;
