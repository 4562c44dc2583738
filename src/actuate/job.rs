//! One pass over one pod: observe, plan, execute, verify; then tell the runtime.
//!
//! The kernel comes first, because containers feel the files and nothing else: they hold the new values within a
//! millisecond. The runtime is told next, so that its stored spec agrees and no later update by somebody else brings
//! the old values back. If the runtime cannot be reached, that is owed and nothing is undone; if it refuses, everything
//! is undone.

use std::sync::Arc;
use std::time::Instant;

use super::execute::Executor;
use super::foreign::{ForeignWriters, Verdict};
use super::handles::{LivePod, PodHandles};
use super::node::Node;
use super::observe::wanted;
use super::pass::{Errand, KernelPass, Pass, Progress};
use super::record::{Cause, Outcome, Stages, StepRecord};
use super::runtime_stage::{self, RuntimeEnd};
use super::shrink::{Grounds, Next, SeenBefore, ShrinkReport};
use crate::objects::Pod;
use crate::plan::shrink::Holds;
use crate::plan::{Plan, PodState, Target};
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
    /// Limits that are kept for now where lower ones are wanted.
    pub holds: Holds,
    /// What earlier tries to lower limits have seen.
    pub seen: SeenBefore,
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
    /// What was done about lower memory limits.
    pub shrink: ShrinkReport,
}

/// Does the pass. Never blocks the caller's thread for longer than it takes to hand work over.
///
/// A pass that lowers memory limits may take seconds, for most of which it waits: other pods have their turn meanwhile.
pub async fn reconcile(node: Arc<Node>, job: Job) -> JobDone {
    let (check_runtime, live) = (job.check_runtime, Arc::clone(&job.live));
    let mut kernel = match in_the_kernel(&node, job, Errand::Apply).await {
        Ok(kernel) => kernel,
        Err(done) => return *done,
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
    if !kernel.outcome.holds() {
        // What was written was undone, or is planned anew.
        kernel.shrink.lowered.clear();
        kernel.shrink.touched.clear();
    }
    kernel.stages = stages;
    JobDone {
        formula,
        ..kernel.into_done(stale)
    }
}

/// Makes room for the lower memory limits of a pass and writes none of them: whoever owns them (a kubelet that was asked
/// for a resize) finds less in use than they allow. The outcome is [`Outcome::Unchanged`] once there is room, and
/// [`Outcome::Refused`] with the numbers where there cannot be.
pub async fn make_room(node: Arc<Node>, job: Job) -> JobDone {
    match in_the_kernel(&node, job, Errand::MakeRoom).await {
        Ok(kernel) => {
            let stale = kernel.incomplete;
            kernel.into_done(stale)
        }
        Err(done) => *done,
    }
}

/// The first part of a pass, on threads that may block and a lane of the kernel's for as long as there is something to do.
async fn in_the_kernel(node: &Arc<Node>, job: Job, errand: Errand) -> Result<KernelPass, Box<JobDone>> {
    let first = Arc::clone(node);
    let mut progress = on_a_lane(node, move || {
        Pass::begin(&first, job, errand).and_then(|pass| pass.advance(&first))
    })
    .await?;
    loop {
        match progress {
            Progress::Ended(kernel) => return Ok(*kernel),
            Progress::Waits(pass, until) => {
                tokio::time::sleep_until(until.into()).await;
                let next = Arc::clone(node);
                progress = on_a_lane(node, move || pass.advance(&next)).await?;
            }
        }
    }
}

async fn on_a_lane(
    node: &Node,
    work: impl FnOnce() -> Result<Progress, Box<JobDone>> + Send + 'static,
) -> Result<Progress, Box<JobDone>> {
    let _lane = node.lanes.kernel().await;
    let span = tracing::Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(progress) => progress,
        Err(panic) => {
            let reason = format!("internal error: {panic}");
            Err(Box::new(JobDone::failed(reason, ForeignWriters::default())))
        }
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
        let wanted = wanted(&node, &job, &node.floors.of(&job.live.id.uid));
        let plan =
            Plan::between(&PodState { tree, specs }, &wanted, &node.traits).map_err(|error| error.to_string())?;
        Executor::new(&node, &handles)
            .check_all(&plan)
            .map_err(|error| error.to_string())?;
        refuse_at_once(&plan, &handles, &job.seen)?;
        Ok(plan.steps().iter().map(StepRecord::planned).collect())
    });
    planned.await.map_err(|panic| format!("internal error: {panic}"))?
}

/// Whether a pass would refuse to lower a limit before doing anything about it.
fn refuse_at_once(plan: &Plan, handles: &PodHandles, seen: &SeenBefore) -> Result<(), String> {
    let next = Grounds::of(plan, handles, seen).and_then(|mut grounds| grounds.look(handles));
    match next {
        Ok(Next::Refused(target, why)) => Err(format!("{target}: {why}")),
        Ok(Next::Ready | Next::Wait(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

impl JobDone {
    pub(super) fn failed(reason: String, foreign: ForeignWriters) -> Self {
        Self {
            handles: None,
            foreign,
            outcome: Outcome::Refused { reason },
            steps: Vec::new(),
            flipped: Vec::new(),
            stages: Stages::default(),
            stale: false,
            formula: None,
            shrink: ShrinkReport::default(),
        }
    }
}
