//! The part of a pass that deals with the kernel: observes, plans, makes room for lower limits, executes, verifies.
//!
//! It blocks, and comes in pieces: each [`Pass::advance`] goes on until the pass ends or has to wait, so that nobody
//! waits on a thread.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::execute::{End, Executor};
use super::floors::lift;
use super::foreign::{ForeignWriters, Verdict};
use super::handles::PodHandles;
use super::job::{Job, JobDone};
use super::node::Node;
use super::record::{Outcome, Stages, StepRecord};
use super::shrink::{Grounds, Lowering, Next, ShrinkReport, lowerings};
use crate::cgroup::CgroupError;
use crate::plan::shrink::keep;
use crate::plan::{Change, Plan, PlanError, PodState, PodTree, Step, Target, hierarchy};
use crate::resources::{Bytes, ControlFile, MemoryLimit};

/// A pass on its way.
#[derive(Debug)]
pub(super) struct Pass {
    asked: Instant,
    uid: String,
    handles: PodHandles,
    wanted: PodState,
    /// The floors that `wanted` was made with.
    floors: BTreeMap<String, Bytes>,
    plan: Plan,
    /// The cgroups whose memory limits are to come down.
    grounds: Grounds,
    /// Since when room is being made for that.
    preparing: Option<Instant>,
    incomplete: bool,
    flipped: Vec<(Target, ControlFile, Verdict)>,
    foreign: ForeignWriters,
    stages: Stages,
}

/// What became of a pass so far.
#[derive(Debug)]
pub(super) enum Progress {
    /// It is to go on then.
    Waits(Box<Pass>, Instant),
    /// It is over.
    Ended(Box<KernelPass>),
}

/// What the first part of a pass leaves for the second.
#[derive(Debug)]
pub(super) struct KernelPass {
    pub(super) handles: PodHandles,
    pub(super) wanted: PodState,
    /// The floors that `wanted` was made with.
    pub(super) floors: BTreeMap<String, Bytes>,
    pub(super) plan: Plan,
    pub(super) outcome: Outcome,
    pub(super) steps: Vec<StepRecord>,
    /// A container of the pod has no cgroup any more.
    pub(super) incomplete: bool,
    pub(super) flipped: Vec<(Target, ControlFile, Verdict)>,
    pub(super) foreign: ForeignWriters,
    pub(super) stages: Stages,
    pub(super) shrink: ShrinkReport,
}

/// What the pod's files and stored specs should hold.
pub(super) fn wanted(node: &Node, job: &Job, floors: &BTreeMap<String, Bytes>) -> PodState {
    let mut targets = job.targets.clone();
    lift(&mut targets, floors);
    let hierarchy = hierarchy(&job.pod, &targets, &node.traits);
    let mut wanted = if job.lift_undeclared {
        hierarchy.created()
    } else {
        hierarchy.wanted()
    };
    keep(&job.holds, &mut wanted);
    wanted
}

impl Pass {
    /// Observes and plans. Boxed, because most of what is done with it is moving it between threads.
    pub(super) fn begin(node: &Node, mut job: Job) -> Result<Box<Self>, Box<JobDone>> {
        let mut foreign = std::mem::take(&mut job.foreign);
        let mut stages = Stages {
            queued: job.asked.elapsed(),
            ..Stages::default()
        };
        let observing = Instant::now();
        let (handles, tree, reopened) = match observe(node, &mut job) {
            Ok(observed) => observed,
            Err(error) => return Err(Box::new(unobservable(&error, foreign))),
        };
        stages.observe = observing.elapsed();

        let incomplete = tree.containers.len() < job.live.containers.len();
        let planning = Instant::now();
        let floors = node.floors.of(&job.live.id.uid);
        let mut wanted = wanted(node, &job, &floors);
        let flipped = if job.held_before && !reopened {
            flips(&tree, &mut wanted, &mut foreign)
        } else {
            Vec::new()
        };
        let planned = plan(node, tree, &wanted).map_err(|error| error.to_string());
        let planned = planned.and_then(|plan| {
            let grounds = Grounds::of(&plan, &handles, &job.seen).map_err(|error| error.to_string())?;
            Ok((plan, grounds))
        });
        stages.plan = planning.elapsed();
        match planned {
            Ok((plan, grounds)) => Ok(Box::new(Self {
                asked: job.asked,
                uid: job.live.id.uid.clone(),
                handles,
                wanted,
                floors,
                plan,
                grounds,
                preparing: None,
                incomplete,
                flipped,
                foreign,
                stages,
            })),
            Err(reason) => Err(Box::new(JobDone {
                handles: Some(handles),
                flipped,
                stages,
                ..JobDone::failed(reason, foreign)
            })),
        }
    }

    /// Goes on, and executes the plan once there is room for every limit it lowers.
    pub(super) fn advance(mut self: Box<Self>, node: &Node) -> Result<Progress, Box<JobDone>> {
        let waited = self.preparing.is_some();
        let preparing = *self.preparing.get_or_insert_with(Instant::now);
        let next = self.grounds.advance(&self.handles);
        if !self.grounds.is_empty() {
            self.stages.prepare = preparing.elapsed();
        }
        match next {
            Ok(Next::Wait(until)) => return Ok(Progress::Waits(self, until)),
            Ok(Next::Ready) => {}
            Ok(Next::Refused(target, why)) => {
                let refused = Outcome::Refused {
                    reason: format!("{target}: {why}"),
                };
                return Ok(Progress::Ended(Box::new(self.end(
                    refused,
                    Vec::new(),
                    true,
                    Vec::new(),
                ))));
            }
            Err(error) => return Err(Box::new(unobservable(&error, self.foreign))),
        }
        if node.floors.of(&self.uid) != self.floors {
            let overtaken = Outcome::Interrupted {
                reason: "a limit was grown in an emergency meanwhile".to_owned(),
            };
            return Ok(Progress::Ended(Box::new(self.end(
                overtaken,
                Vec::new(),
                false,
                Vec::new(),
            ))));
        }
        if waited && let Err(error) = self.plan_again(node) {
            return Err(Box::new(error));
        }
        Ok(Progress::Ended(Box::new(self.execute(node))))
    }

    /// Making room took a while: starts from what is there now.
    fn plan_again(&mut self, node: &Node) -> Result<(), JobDone> {
        let foreign = std::mem::take(&mut self.foreign);
        let tree = match self.handles.read() {
            Ok(tree) => tree,
            Err(error) => return Err(unobservable(&error, foreign)),
        };
        match plan(node, tree, &self.wanted) {
            Ok(plan) => self.plan = plan,
            Err(error) => return Err(JobDone::failed(error.to_string(), foreign)),
        }
        self.foreign = foreign;
        Ok(())
    }

    fn execute(mut self: Box<Self>, node: &Node) -> KernelPass {
        let lowered = match self.before_lowering() {
            Ok(lowered) => lowered,
            Err(error) => {
                let interrupted = Outcome::Interrupted {
                    reason: error.to_string(),
                };
                return self.end(interrupted, Vec::new(), false, Vec::new());
            }
        };
        let writing = Instant::now();
        let executed = Executor::new(node, &self.handles).run(&self.plan);
        self.stages.write = if self.plan.is_empty() {
            Duration::ZERO
        } else {
            writing.elapsed()
        };
        self.stages.verified = self.asked.elapsed();
        let outcome = match executed.end {
            End::Done if self.plan.is_empty() => Outcome::Unchanged,
            End::Done => Outcome::Applied,
            End::Refused(reason) => Outcome::Refused { reason },
            End::Interrupted(reason) => Outcome::Interrupted { reason },
            End::RolledBack(reason) => Outcome::RolledBack { reason },
            End::Incomplete(reason) => Outcome::Incomplete { reason },
        };
        let changes_memory = |step: &&Step| step.change.files().iter().any(|(_, to)| to.memory().is_some());
        let steps = self.plan.steps().iter().filter(changes_memory);
        let touched = steps.map(|step| step.target.clone()).collect();
        let mut kernel = self.end(outcome, executed.records, executed.not_shrinkable, executed.freezes);
        kernel.shrink.lowered = lowered;
        kernel.shrink.touched = touched;
        kernel
    }

    /// What the cgroups say whose limits are about to come down: what is seen later is compared with it.
    fn before_lowering(&self) -> Result<Vec<Lowering>, CgroupError> {
        let mut lowered = Vec::new();
        for step in self.plan.steps() {
            for (from, to) in lowerings(step) {
                let (Some(from), Some(MemoryLimit::Bytes(to)), Some(cgroup)) =
                    (from.memory(), to.memory(), self.handles.get(&step.target))
                else {
                    continue;
                };
                let last = cgroup.outer().watch_reading()?;
                lowered.push(Lowering {
                    target: step.target.clone(),
                    from,
                    to: Bytes::new(to),
                    before: self.grounds.before(&step.target, last, Bytes::new(to)),
                });
            }
        }
        Ok(lowered)
    }

    fn end(
        self: Box<Self>,
        outcome: Outcome,
        steps: Vec<StepRecord>,
        refused: bool,
        freezes: Vec<Duration>,
    ) -> KernelPass {
        KernelPass {
            shrink: ShrinkReport {
                lowered: Vec::new(),
                touched: Vec::new(),
                refused,
                freezes,
                seen: self.grounds.seen(),
            },
            handles: self.handles,
            wanted: self.wanted,
            floors: self.floors,
            plan: self.plan,
            outcome,
            steps,
            incomplete: self.incomplete,
            flipped: self.flipped,
            foreign: self.foreign,
            stages: self.stages,
        }
    }
}

fn plan(node: &Node, tree: PodTree, wanted: &PodState) -> Result<Plan, PlanError> {
    let observed = PodState {
        tree,
        ..PodState::default()
    };
    Plan::between(&observed, wanted, &node.traits)
}

/// A pass over a pod whose files cannot be read, or not any more.
fn unobservable(error: &CgroupError, foreign: ForeignWriters) -> JobDone {
    let reason = error.to_string();
    let failed = JobDone::failed(reason.clone(), foreign);
    if error.is_gone() {
        JobDone {
            stale: true,
            outcome: Outcome::Interrupted { reason },
            ..failed
        }
    } else {
        failed
    }
}

/// Reads the pod's cgroups, and says whether any had to be opened anew although an earlier pass had them: one that ended
/// may have been followed by another at the same path.
fn observe(node: &Node, job: &mut Job) -> Result<(PodHandles, PodTree, bool), CgroupError> {
    let known = job.handles.take();
    let reopened = known.is_some();
    if let Some(handles) = known {
        match handles.read() {
            Ok(tree) if tree.containers.len() == job.live.containers.len() => return Ok((handles, tree, false)),
            Err(error) if !error.is_gone() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    let handles = PodHandles::open(&node.hierarchy, &job.live)?;
    let tree = handles.read()?;
    Ok((handles, tree, reopened))
}

/// Finds values that somebody else changed, and takes those out of `wanted` that are to be left alone. Those that are
/// left alone already are no news.
fn flips(
    observed: &PodTree,
    wanted: &mut PodState,
    foreign: &mut ForeignWriters,
) -> Vec<(Target, ControlFile, Verdict)> {
    let now = Timestamp::now();
    let mut flipped = Vec::new();
    let PodState { tree, specs } = wanted;
    let containers = tree
        .containers
        .iter_mut()
        .map(|(name, settings)| (Target::Container(name.clone()), settings));
    for (target, settings) in std::iter::once((Target::Pod, &mut tree.pod)).chain(containers) {
        let Some(held) = observed.get(&target) else { continue };
        let differing: Vec<ControlFile> = settings
            .iter()
            .filter(|wanted| held.get(wanted.file()).is_some_and(|held| !held.means(*wanted)))
            .map(|wanted| wanted.file())
            .collect();
        for file in differing {
            let known = foreign.paused(&target, file, now).is_some();
            let verdict = foreign.flipped(&target, file, now);
            if let Verdict::LeaveUntil(_) = verdict {
                settings.remove(file);
                if let Target::Container(name) = &target
                    && let Some(spec) = specs.get_mut(name)
                {
                    // The runtime would write the file.
                    spec.forget(file);
                }
            }
            if !known {
                flipped.push((target.clone(), file, verdict));
            }
        }
    }
    flipped
}

impl KernelPass {
    /// Undoes the file steps, because the runtime refused.
    pub(super) fn undo(&mut self, node: &Node) -> Result<(), String> {
        let done: Vec<_> = self
            .plan
            .steps()
            .iter()
            .filter(|step| !matches!(step.change, Change::Spec { .. }))
            .collect();
        Executor::new(node, &self.handles).undo(&done, &mut self.steps)
    }
}
