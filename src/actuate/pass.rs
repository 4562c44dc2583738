//! The part of a pass that deals with the kernel: observes, plans, makes room for lower limits, executes, verifies.
//!
//! It blocks, and comes in pieces: each [`Pass::advance`] goes on until the pass ends or has to wait, so that nobody
//! waits on a thread.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::execute::{End, Executed, Executor};
use super::foreign::{ForeignWriters, Verdict};
use super::handles::PodHandles;
use super::job::{Job, JobDone};
use super::least_limits::lift;
use super::node::Node;
use super::observe::{flips, observe, unobservable};
use super::shrink::{Grounds, Lowering, Next, ShrinkReport};
use super::through_api::ApiReport;
use crate::cgroup::CgroupError;
use crate::model::{
    Bytes, ControlFile, MemoryLimit, Outcome, PodTree, PodValues, Settings, Stages, Step, StepRecord, Target,
};
use crate::plan::shrink::{RECLAIM_STEP, Reclaim};
use crate::plan::{Plan, PlanError, Quotas};

/// The part of a memory limit that is kept free for a kubelet that looks before it writes: more than is
/// cached again before it does.
const PRESSED: u64 = 16;

/// A pass on its way.
#[derive(Debug)]
pub(super) struct Pass {
    errand: Errand,
    asked: Instant,
    uid: String,
    handles: PodHandles,
    wanted: PodValues,
    quotas: Quotas,
    /// The least_limits that `wanted` was made with.
    least_limits: BTreeMap<String, Bytes>,
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

/// How far a pass is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Errand {
    /// Until every file holds what it should.
    Apply,
    /// The same, and what comes close to a memory limit is reclaimed: somebody else is to write that limit, too, and looks
    /// at what is in use before.
    Press,
    /// Until there is room for every lower limit, so that somebody can be asked first.
    MakeRoom,
    /// There is room: until every file holds what it should.
    Write,
}

/// What became of a pass so far.
#[derive(Debug)]
pub(super) enum Progress {
    /// It is to go on then.
    Waits(Box<Pass>, Instant),
    /// There is room, and it was to do no more.
    Prepared(Box<Pass>),
    Ended(Box<KernelPass>),
}

/// What the first part of a pass leaves for the second.
#[derive(Debug)]
pub(super) struct KernelPass {
    pub(super) handles: PodHandles,
    pub(super) wanted: PodValues,
    quotas: Quotas,
    /// The least_limits that `wanted` was made with.
    pub(super) least_limits: BTreeMap<String, Bytes>,
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

impl Pass {
    /// Observes and plans. Boxed, because most of what is done with it is moving it between threads.
    pub(super) fn begin(node: &Node, mut job: Job, errand: Errand) -> Result<Box<Self>, Box<JobDone>> {
        let mut foreign = std::mem::take(&mut job.foreign);
        let mut stages = Stages {
            queued: job.asked.elapsed(),
            ..Stages::default()
        };
        let observing = Instant::now();
        let (handles, tree, reopened) = match observe(node, &mut job) {
            Ok(observed) => observed,
            Err(error) => return Err(unobservable(&error, foreign)),
        };
        stages.observe = observing.elapsed();

        let incomplete = tree.containers.len() < job.targets.bound.live().containers.len();
        let planning = Instant::now();
        let least_limits = node.least_limits.of(&job.targets.bound.live().id.uid);
        lift(&mut job.targets.containers, &least_limits);
        let mut wanted = job.targets.values(&tree, &node.traits);
        let flipped = if reopened {
            Vec::new()
        } else {
            flips(&tree, &mut wanted, &mut foreign, job.held_before)
        };
        let planned = plan(node, tree, &wanted).map_err(|error| error.to_string());
        let planned = planned.and_then(|plan| {
            let grounds = Grounds::of(&plan, &handles, &job.seen).map_err(|error| error.to_string())?;
            Ok((plan, grounds))
        });
        stages.plan = planning.elapsed();
        match planned {
            Ok((plan, grounds)) => Ok(Box::new(Self {
                errand,
                asked: job.asked,
                uid: job.targets.bound.live().id.uid.clone(),
                handles,
                wanted,
                quotas: job.targets.scope.quotas,
                least_limits,
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
                quotas: job.targets.scope.quotas,
                ..JobDone::failed(reason, foreign)
            })),
        }
    }

    /// Goes on, and executes the plan once there is room for every limit it lowers.
    pub(super) fn advance(mut self: Box<Self>, node: &Node) -> Result<Progress, Box<JobDone>> {
        let waited = self.preparing.is_some();
        let preparing = *self.preparing.get_or_insert_with(Instant::now);
        let next = self.grounds.advance(&self.handles);
        if !self.grounds.is_empty() && self.errand != Errand::Write {
            self.stages.prepare = preparing.elapsed();
        }
        let kernel = match next {
            Ok(Next::Wait(until)) => return Ok(Progress::Waits(self, until)),
            Ok(Next::Refused(target, why)) => {
                self.end(Executed::not_shrinkable(format!("{target}: {why}")), Vec::new())
            }
            Ok(Next::Ready) if node.least_limits.of(&self.uid) != self.least_limits => {
                let overtaken = "a limit was grown in an emergency meanwhile".to_owned();
                self.plan = Plan::default();
                self.end(Executed::nothing(End::Interrupted(overtaken)), Vec::new())
            }
            Ok(Next::Ready) if self.errand == Errand::MakeRoom => {
                match Executor::new(node, &self.handles).check_all(&self.plan) {
                    Ok(()) => return Ok(Progress::Prepared(self)),
                    Err(error) => self.end(Executed::refused(&error), Vec::new()),
                }
            }
            Ok(Next::Ready) => {
                let mut overtaken = Vec::new();
                if waited {
                    (self, overtaken) = self.plan_again(node)?;
                }
                self.execute(node, overtaken)
            }
            Err(error) => return Err(unobservable(&error, self.foreign)),
        };
        Ok(Progress::Ended(Box::new(kernel)))
    }

    /// There is room, and whoever was to be asked has agreed.
    pub(super) fn to_write(mut self: Box<Self>) -> Box<Self> {
        self.errand = Errand::Write;
        self
    }

    /// Whoever was to be asked did not agree: nothing was written.
    pub(super) fn into_abandoned(mut self: Box<Self>) -> JobDone {
        self.plan = Plan::default();
        self.end(Executed::nothing(End::Done), Vec::new()).into_done(false)
    }

    /// Making room took a while: starts from what is there now. Returns also the limits that were to come down and hold
    /// that already: a kubelet that was asked writes them as well, and may be first. They are watched all the same.
    fn plan_again(mut self: Box<Self>, node: &Node) -> Result<(Box<Self>, Vec<Lowering>), Box<JobDone>> {
        let read = self.handles.read().and_then(|tree| {
            let holds = |target: &Target, to| tree.get(target).and_then(Settings::memory_limit) == Some(to);
            Ok((self.before_lowering(holds)?, tree))
        });
        match read {
            Ok((overtaken, tree)) => match plan(node, tree, &self.wanted) {
                Ok(plan) => {
                    self.plan = plan;
                    Ok((self, overtaken))
                }
                Err(error) => Err(Box::new(JobDone::failed(error.to_string(), self.foreign))),
            },
            Err(error) => Err(unobservable(&error, self.foreign)),
        }
    }

    fn execute(mut self: Box<Self>, node: &Node, mut lowered: Vec<Lowering>) -> KernelPass {
        match self.before_lowering(|_, _| true) {
            Ok(lowering) => lowered.extend(lowering),
            Err(error) => return self.end(Executed::interrupted(error.to_string()), Vec::new()),
        }
        let writing = Instant::now();
        let executed = Executor::new(node, &self.handles).run(&self.plan);
        self.stages.write = if self.plan.is_empty() {
            Duration::ZERO
        } else {
            writing.elapsed()
        };
        self.stages.verified = self.asked.elapsed();
        if self.errand == Errand::Press
            && let Err(error) = self.press()
        {
            tracing::warn!(%error, "no room is made for the kubelet");
        }
        self.end(executed, lowered)
    }

    /// Has the kernel reclaim what the containers use of the last part of their memory limits, one step at most.
    fn press(&self) -> Result<(), CgroupError> {
        for (name, settings) in &self.wanted.tree.containers {
            let (Some(MemoryLimit::Bytes(limit)), Some(cgroup)) = (
                settings.memory_limit(),
                self.handles.get(&Target::Container(name.clone())),
            ) else {
                continue;
            };
            let roof = Bytes::new(limit - limit / PRESSED);
            let too_much = cgroup.outer().memory_usage()?.saturating_sub(roof);
            if !too_much.is_zero() && cgroup.outer().reclaim_way()? == Reclaim::OnRequest {
                cgroup.outer().reclaim(too_much.min(RECLAIM_STEP))?;
            }
        }
        Ok(())
    }

    /// What the cgroups say whose limits are about to come down, those of them that count: what is seen
    /// later is compared with it.
    fn before_lowering(&self, counts: impl Fn(&Target, MemoryLimit) -> bool) -> Result<Vec<Lowering>, CgroupError> {
        let mut lowered = Vec::new();
        for step in self.plan.steps() {
            let (Some((from, to)), Some(cgroup)) = (step.change.lowered_memory(), self.handles.get(&step.target))
            else {
                continue;
            };
            if !counts(&step.target, MemoryLimit::Bytes(to.get())) {
                continue;
            }
            let last = cgroup.outer().watch_reading()?;
            lowered.push(Lowering {
                target: step.target.clone(),
                from,
                to,
                before: self.grounds.before(&step.target, last, to),
            });
        }
        Ok(lowered)
    }

    fn end(self: Box<Self>, executed: Executed, lowered: Vec<Lowering>) -> KernelPass {
        let changes_memory = |step: &&Step| step.change.files().iter().any(|(_, to)| to.memory().is_some());
        let steps = self.plan.steps().iter().filter(changes_memory);
        let touched = steps
            .map(|step| &step.target)
            .chain(lowered.iter().map(|lowering| &lowering.target));
        let shrink = ShrinkReport {
            touched: touched.cloned().collect(),
            lowered,
            refused: executed.not_shrinkable,
            freezes: executed.freezes,
            seen: self.grounds.seen(),
        };
        let outcome = match executed.end {
            End::Done if self.plan.is_empty() => Outcome::Unchanged,
            End::Done => Outcome::Applied,
            End::Refused(reason) => Outcome::Refused { reason },
            End::Interrupted(reason) => Outcome::Interrupted { reason },
            End::RolledBack(reason) => Outcome::RolledBack { reason },
            End::Incomplete(reason) => Outcome::Incomplete { reason },
        };
        KernelPass {
            handles: self.handles,
            wanted: self.wanted,
            quotas: self.quotas,
            least_limits: self.least_limits,
            plan: self.plan,
            outcome,
            steps: executed.records,
            incomplete: self.incomplete,
            flipped: self.flipped,
            foreign: self.foreign,
            stages: self.stages,
            shrink,
        }
    }
}

fn plan(node: &Node, tree: PodTree, wanted: &PodValues) -> Result<Plan, PlanError> {
    let observed = PodValues {
        tree,
        ..PodValues::default()
    };
    Plan::between(&observed, wanted, &node.traits)
}

impl KernelPass {
    /// What is told of the pass once it is over. Cgroups that are stale are not kept open.
    pub(super) fn into_done(self, stale: bool) -> JobDone {
        JobDone {
            handles: (!stale).then_some(self.handles),
            foreign: self.foreign,
            outcome: self.outcome,
            steps: self.steps,
            flipped: self.flipped,
            stages: self.stages,
            stale,
            formula: None,
            quotas: self.quotas,
            shrink: self.shrink,
            api: ApiReport::default(),
        }
    }

    /// Whether the node is to be looked at again: what lives there has changed.
    pub(super) const fn is_stale(&self) -> bool {
        self.incomplete || matches!(self.outcome, Outcome::Interrupted { .. })
    }

    /// Undoes the file steps, because the runtime refused.
    pub(super) fn undo(&mut self, node: &Node) -> Result<(), String> {
        let done: Vec<_> = self
            .plan
            .steps()
            .iter()
            .filter(|step| step.change.is_kernels())
            .collect();
        Executor::new(node, &self.handles).undo(&done, &mut self.steps)
    }
}
