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
use super::handles::PodHandles;
use super::in_kernel;
use super::least_limits::lift;
use super::node::Node;
use super::pass::KernelPass;
use super::runtime_stage::{self, RuntimeEnd};
use super::shrink::{Grounds, Next, SeenBefore, ShrinkReport};
use super::through_api::{self, Answer, ApiReport, ResizeTerms};
use crate::model::{Cause, ControlFile, LivePod, Outcome, PodValues, Stages, StepRecord, Target, WeightFormula};
use crate::plan::{Plan, PodTargets, Quotas};

/// What to do in one pass.
#[derive(Debug)]
pub struct Job {
    pub targets: PodTargets,
    /// Its cgroups, if an earlier pass opened them.
    pub handles: Option<PodHandles>,
    /// Where the kubelet resizes in place: how the API server is asked.
    pub through: Option<ResizeTerms>,
    pub cause: Cause,
    /// When the decision was made.
    pub asked: Instant,
    /// Whether an earlier pass left every file as it should be: then a file that differs was changed by somebody else.
    pub held_before: bool,
    /// What is known about those who change values of this pod.
    pub foreign: ForeignWriters,
    /// Whether to compare the runtime's stored spec even if no file had to change.
    pub check_runtime: bool,
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
    pub outcome: Outcome,
    pub steps: Vec<StepRecord>,
    /// Values that somebody else had changed.
    pub flipped: Vec<(Target, ControlFile, Verdict)>,
    pub stages: Stages,
    /// A cgroup is gone: look at the node again.
    pub stale: bool,
    /// The runtime's formula turned out to be another one than assumed.
    pub formula: Option<WeightFormula>,
    /// Which quotas are enforced, as far as that was seen.
    pub quotas: Quotas,
    /// What was done about lower memory limits.
    pub shrink: ShrinkReport,
    /// What there is to know about the API server.
    pub api: ApiReport,
}

/// Does the pass. Never blocks the caller's thread for longer than it takes to hand work over.
///
/// A pass that lowers memory limits may take seconds, for most of which it waits: other pods have their turn meanwhile.
/// Every pod of a node may be waiting at once, so that what a pass carries along is boxed.
pub async fn reconcile(node: Arc<Node>, mut job: Box<Job>) -> JobDone {
    let (check_runtime, live) = (job.check_runtime, Arc::clone(job.targets.bound.live()));
    let mut answer = match Box::pin(through_api::patch_resize(&node, &mut job)).await {
        Ok(answer) => answer,
        Err(done) => return *done,
    };
    let undo = answer.undo.take();
    let written = match answer.prepared.take() {
        Some(pass) => in_kernel::write(&node, pass).await,
        None if answer.makes_room => in_kernel::apply_and_press(&node, job).await,
        None => in_kernel::apply(&node, job).await,
    };
    let done = match written {
        Ok(kernel) => sync_runtime(&node, &live, check_runtime, kernel).await,
        Err(done) => *done,
    };
    let mut done = done.with(answer);
    if let Some(undo) = undo {
        Box::pin(undo.unless_held(&node, &mut done)).await;
    }
    done
}

/// Tells the runtime what the kernel holds, if that is news.
async fn sync_runtime(node: &Arc<Node>, live: &LivePod, check_runtime: bool, mut kernel: Box<KernelPass>) -> JobDone {
    let mut stale = kernel.is_stale();
    let mut formula = None;
    if kernel.outcome.holds() && (check_runtime || !kernel.plan.is_empty()) {
        let start = Instant::now();
        let told = Box::pin(runtime_stage::sync(node, live, &mut kernel)).await;
        kernel.stages.runtime = start.elapsed();
        formula = told.formula;
        stale |= matches!(told.end, RuntimeEnd::Gone);
        kernel.outcome = told.end.into_outcome(kernel.outcome, !kernel.steps.is_empty());
    }
    if !kernel.outcome.holds() {
        // What was written was undone, or holds although the rest is planned anew.
        kernel.shrink.retain_written(&kernel.steps);
    }
    JobDone {
        formula,
        ..kernel.into_done(stale)
    }
}

/// The steps a pass would take, without taking any. Blocks for the files; asks the runtime for its stored specs.
///
/// Errors: a sentence: what could not be read, or why there is no plan.
pub async fn preview(node: Arc<Node>, mut job: Job) -> Result<Vec<StepRecord>, String> {
    let asking = through_api::preview(&node, &job)?;
    let specs = runtime_stage::stored_specs(&node, job.targets.bound.live()).await;
    let planned = tokio::task::spawn_blocking(move || {
        let handles = PodHandles::open(&node.hierarchy, job.targets.bound.live()).map_err(|error| error.to_string())?;
        let tree = handles.read().map_err(|error| error.to_string())?;
        let least_limits = node.least_limits.of(&job.targets.bound.live().id.uid);
        lift(&mut job.targets.containers, &least_limits);
        let wanted = job.targets.values(&tree, &node.traits);
        let plan =
            Plan::between(&PodValues { tree, specs }, &wanted, &node.traits).map_err(|error| error.to_string())?;
        Executor::new(&node, &handles)
            .check_all(&plan)
            .map_err(|error| error.to_string())?;
        refuse_at_once(&plan, &handles, &job.seen)?;
        let steps = plan.steps().iter().map(StepRecord::planned);
        Ok(asking.into_iter().chain(steps).collect())
    });
    planned.await.map_err(|panic| format!("internal error: {panic}"))?
}

/// Whether a pass would refuse to lower a limit before doing anything about it.
fn refuse_at_once(plan: &Plan, handles: &PodHandles, seen: &SeenBefore) -> Result<(), String> {
    let next = Grounds::of(plan, handles, seen).and_then(|mut grounds| grounds.check(handles));
    match next {
        Ok(Next::Refused(target, why)) => Err(format!("{target}: {why}")),
        Ok(Next::Ready | Next::Wait(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

impl JobDone {
    /// Nothing was written, and that is how it ended.
    pub(crate) fn ended(outcome: Outcome) -> Self {
        Self {
            handles: None,
            foreign: ForeignWriters::default(),
            outcome,
            steps: Vec::new(),
            flipped: Vec::new(),
            stages: Stages::default(),
            stale: false,
            formula: None,
            quotas: Quotas::default(),
            shrink: ShrinkReport::default(),
            api: ApiReport::default(),
        }
    }

    /// Nothing was written, for that reason.
    pub(super) fn failed(reason: String, foreign: ForeignWriters) -> Self {
        Self {
            foreign,
            ..Self::ended(Outcome::Refused { reason })
        }
    }

    /// With what asking the API server came to before.
    fn with(mut self, answer: Answer) -> Self {
        self.steps.splice(0..0, answer.steps);
        self.api = answer.report;
        self.stages.ask = answer.took;
        if let Some(why) = &self.api.denied {
            self.outcome.deny(why);
        }
        self.outcome = match (self.outcome, answer.withheld) {
            (Outcome::Applied | Outcome::Unchanged, Some(withheld)) => Outcome::Withheld(withheld),
            (Outcome::Unchanged, None) if self.api.asked.is_some() => Outcome::Applied,
            (outcome, _) => outcome,
        };
        self
    }
}
