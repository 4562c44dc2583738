//! One pass over one pod: observe, plan, execute, verify; then tell the runtime.
//!
//! The kernel comes first, because containers feel the files and nothing else: they hold the new values within a
//! millisecond. The runtime is told next, so that its stored spec agrees and no later update by somebody else brings
//! the old values back. If the runtime cannot be reached, that is owed and nothing is undone; if it refuses, everything
//! is undone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::execute::{End, Executor};
use super::foreign::{ForeignWriters, Verdict};
use super::handles::{LivePod, PodHandles};
use super::node::Node;
use super::record::{Cause, Outcome, Stages, StepRecord};
use super::runtime_stage::{self, RuntimeEnd};
use crate::cgroup::CgroupError;
use crate::objects::Pod;
use crate::plan::{Change, Plan, PodState, PodTree, Target, hierarchy};
use crate::resources::{ControlFile, NamedRequirements, WeightFormula};

/// What to do in one pass.
#[derive(Debug)]
pub struct Job {
    /// The pod as its source describes it.
    pub pod: Arc<Pod>,
    /// Where it lives.
    pub live: Arc<LivePod>,
    /// Its cgroups, if an earlier pass opened them.
    pub handles: Option<PodHandles>,
    /// What its containers should have.
    pub targets: Vec<NamedRequirements>,
    /// Whether limits the pod does not declare are to be lifted, rather than left as they are.
    pub lift_undeclared: bool,
    /// Who asked.
    pub cause: Cause,
    /// When the decision was made.
    pub asked: Instant,
    /// Whether an earlier pass left every file as it should be: then a file that differs was changed by somebody else.
    pub held_before: bool,
    /// What is known about those who change values of this pod.
    pub foreign: ForeignWriters,
    /// Whether to compare the runtime's stored spec even if no file had to change.
    pub check_runtime: bool,
}

/// What became of a pass.
#[derive(Debug)]
pub struct JobDone {
    /// The pod's open cgroups, unless one of them is gone.
    pub handles: Option<PodHandles>,
    /// What is known about foreign writers now.
    pub foreign: ForeignWriters,
    /// How it ended.
    pub outcome: Outcome,
    /// What was done.
    pub steps: Vec<StepRecord>,
    /// Values that somebody else had changed.
    pub flipped: Vec<(Target, ControlFile, Verdict)>,
    /// How long it took.
    pub stages: Stages,
    /// A cgroup is gone: look at the node again.
    pub stale: bool,
    /// The runtime's formula turned out to be another one than assumed.
    pub formula: Option<WeightFormula>,
}

/// What the first part of a pass leaves for the second.
pub(super) struct KernelPass {
    pub(super) handles: PodHandles,
    pub(super) wanted: PodState,
    pub(super) plan: Plan,
    pub(super) outcome: Outcome,
    pub(super) steps: Vec<StepRecord>,
    /// A container of the pod has no cgroup any more.
    incomplete: bool,
    flipped: Vec<(Target, ControlFile, Verdict)>,
    foreign: ForeignWriters,
    stages: Stages,
}

/// Does the pass. Never blocks the caller's thread for longer than it takes to hand work over.
pub async fn reconcile(node: Arc<Node>, mut job: Job) -> JobDone {
    let (check_runtime, live) = (job.check_runtime, Arc::clone(&job.live));
    let lane = node.lanes.kernel().await;
    let kernel_node = Arc::clone(&node);
    let foreign = std::mem::take(&mut job.foreign);
    let span = tracing::Span::current();
    let kernel = move || span.in_scope(|| kernel_pass(&kernel_node, job, foreign));
    let kernel = tokio::task::spawn_blocking(kernel).await;
    drop(lane);
    let mut kernel = match kernel {
        Ok(Ok(kernel)) => kernel,
        Ok(Err(done)) => return *done,
        Err(panic) => return JobDone::failed(format!("internal error: {panic}"), ForeignWriters::default()),
    };
    let mut stages = kernel.stages;

    let mut stale = kernel.incomplete || matches!(kernel.outcome, Outcome::Interrupted { .. });
    let mut formula = None;
    if kernel.outcome.holds() && (check_runtime || !kernel.plan.is_empty()) {
        let start = Instant::now();
        // Boxed, so that the many passes that only wait for their turn at the files are small.
        let told = Box::pin(runtime_stage::tell(&node, &live, &mut kernel)).await;
        stages.runtime = start.elapsed();
        formula = told.formula;
        stale |= matches!(told.end, RuntimeEnd::Gone);
        kernel.outcome = told.end.into_outcome(kernel.outcome, !kernel.steps.is_empty());
    }
    JobDone {
        handles: (!stale).then_some(kernel.handles),
        foreign: kernel.foreign,
        outcome: kernel.outcome,
        steps: kernel.steps,
        flipped: kernel.flipped,
        stages,
        stale,
        formula,
    }
}

/// The steps a pass would take, without taking any. Blocks for the files; asks the runtime for its stored specs.
///
/// # Errors
/// A sentence: what could not be read, or why there is no plan.
pub async fn preview(node: Arc<Node>, job: Job) -> Result<Vec<StepRecord>, String> {
    let specs = runtime_stage::stored_specs(&node, &job.live).await;
    let planned = tokio::task::spawn_blocking(move || {
        let handles = PodHandles::open(&node.hierarchy, &job.live).map_err(|error| error.to_string())?;
        let tree = handles.read().map_err(|error| error.to_string())?;
        let wanted = wanted(&node, &job);
        let plan =
            Plan::between(&PodState { tree, specs }, &wanted, &node.traits).map_err(|error| error.to_string())?;
        Executor {
            handles: &handles,
            units: node.units.as_deref(),
        }
        .check_all(&plan)?;
        Ok(plan.steps().iter().map(StepRecord::planned).collect())
    });
    planned.await.map_err(|panic| format!("internal error: {panic}"))?
}

/// What the pod's files and stored specs should hold.
fn wanted(node: &Node, job: &Job) -> PodState {
    let hierarchy = hierarchy(&job.pod, &job.targets, &node.traits);
    if job.lift_undeclared {
        hierarchy.created()
    } else {
        hierarchy.wanted()
    }
}

/// Everything up to the verified files.
fn kernel_pass(node: &Node, mut job: Job, mut foreign: ForeignWriters) -> Result<KernelPass, Box<JobDone>> {
    let mut stages = Stages {
        queued: job.asked.elapsed(),
        ..Stages::default()
    };
    let observing = Instant::now();
    let (handles, tree, reopened) = match observe(node, &mut job) {
        Ok(observed) => observed,
        Err(error) => {
            let stale = error.is_gone();
            let reason = error.to_string();
            let outcome = if stale {
                Outcome::Interrupted { reason }
            } else {
                Outcome::Refused { reason }
            };
            return Err(Box::new(JobDone {
                stale,
                outcome,
                ..JobDone::failed(String::new(), foreign)
            }));
        }
    };
    stages.observe = observing.elapsed();

    let incomplete = tree.containers.len() < job.live.containers.len();
    let planning = Instant::now();
    let mut wanted = wanted(node, &job);
    let flipped = if job.held_before && !reopened {
        flips(&tree, &mut wanted, &mut foreign)
    } else {
        Vec::new()
    };
    let planned = Plan::between(
        &PodState {
            tree,
            ..PodState::default()
        },
        &wanted,
        &node.traits,
    );
    stages.plan = planning.elapsed();
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => {
            let refused = Outcome::Refused {
                reason: error.to_string(),
            };
            let failed = JobDone::failed(String::new(), foreign);
            return Err(Box::new(JobDone {
                handles: Some(handles),
                outcome: refused,
                flipped,
                stages,
                ..failed
            }));
        }
    };

    let writing = Instant::now();
    let executed = Executor {
        handles: &handles,
        units: node.units.as_deref(),
    }
    .run(&plan);
    stages.write = if plan.is_empty() {
        Duration::ZERO
    } else {
        writing.elapsed()
    };
    stages.verified = job.asked.elapsed();
    let outcome = match executed.end {
        End::Done if plan.is_empty() => Outcome::Unchanged,
        End::Done => Outcome::Applied,
        End::Refused(reason) => Outcome::Refused { reason },
        End::Interrupted(reason) => Outcome::Interrupted { reason },
        End::RolledBack(reason) => Outcome::RolledBack { reason },
        End::Incomplete(reason) => Outcome::Incomplete { reason },
    };
    Ok(KernelPass {
        handles,
        wanted,
        plan,
        outcome,
        steps: executed.records,
        incomplete,
        flipped,
        foreign,
        stages,
    })
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

impl JobDone {
    fn failed(reason: String, foreign: ForeignWriters) -> Self {
        Self {
            handles: None,
            foreign,
            outcome: Outcome::Refused { reason },
            steps: Vec::new(),
            flipped: Vec::new(),
            stages: Stages::default(),
            stale: false,
            formula: None,
        }
    }
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
        Executor {
            handles: &self.handles,
            units: node.units.as_deref(),
        }
        .undo(&done, &mut self.steps)
    }
}
