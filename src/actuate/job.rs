//! What a pass is to do, and what became of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::execute::Executor;
use super::foreign::{ForeignWriters, Verdict};
use super::handles::PodHandles;
use super::node::Node;
use super::patch::{ApiReport, PodResizer, Saved};
use super::runtime_stage;
use super::shrink::{Next, SeenBefore, ShrinkChecks, ShrinkReport};
use crate::cgroup::Identity;
use crate::model::{Cause, ChangeRecord, ControlFile, PodValues, StepRecord, Target, WeightFormula};
use crate::plan::resize::ResizeDecision;
use crate::plan::{Plan, PodTargets, Quotas};

/// What to do in one pass.
#[derive(Debug)]
pub struct Job {
    pub targets: PodTargets,
    /// Which cgroups an earlier pass found.
    pub cgroups: Option<Vec<Identity>>,
    /// Where the kubelet resizes in place: what is done about that.
    pub resize: ResizeDecision,
    /// How the API server is called, where the spec is patched.
    pub resizer: Option<Arc<dyn PodResizer>>,
    /// Nothing is patched before this; none where nothing is prepared.
    pub saved: Option<Saved>,
    pub cause: Cause,
    /// When the decision was made.
    pub asked: Instant,
    /// How long the decision took that led to it.
    pub decided_in: Duration,
    /// Whether an earlier pass left every file as it should be: then a file that differs was changed by somebody else.
    pub held_before: bool,
    /// What is known about those who change values of this pod.
    pub foreign: ForeignWriters,
    /// Whether to compare the runtime's stored spec even if no file had to change.
    pub check_runtime: bool,
    /// What earlier tries to lower limits have seen.
    pub seen: SeenBefore,
}

impl Job {
    /// A pass that writes without the API server, from now on, and knows of no earlier one.
    pub fn new(targets: PodTargets, cause: Cause) -> Self {
        Self {
            targets,
            cgroups: None,
            resize: ResizeDecision::Direct,
            resizer: None,
            saved: None,
            cause,
            asked: Instant::now(),
            decided_in: Duration::ZERO,
            held_before: false,
            foreign: ForeignWriters::default(),
            check_runtime: true,
            seen: SeenBefore::default(),
        }
    }
}

/// What became of a pass.
#[derive(Debug)]
pub struct JobDone {
    /// The pod's open cgroups, unless one of them is gone.
    pub handles: Option<PodHandles>,
    /// What is known about foreign writers now.
    pub foreign: ForeignWriters,
    pub record: ChangeRecord,
    /// Values that somebody else had changed.
    pub flipped: Vec<(Target, ControlFile, Verdict)>,
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

/// The steps a pass would take, without taking any. Blocks for the files; asks the runtime for its stored specs.
///
/// Errors: a sentence: what could not be read, or why there is no plan.
pub async fn preview(node: Arc<Node>, mut job: Job) -> Result<Vec<StepRecord>, String> {
    let changes = match job.resize {
        ResizeDecision::Refuse { why, .. } => return Err(why),
        ResizeDecision::Patch(patch) => patch.changes,
        ResizeDecision::Direct | ResizeDecision::Wait { .. } | ResizeDecision::Write(_) => Vec::new(),
    };
    let specs = runtime_stage::stored_specs(&node, job.targets.bound.live()).await;
    let planned = tokio::task::spawn_blocking(move || {
        let live = job.targets.bound.live();
        let handles = PodHandles::open(&node.hierarchy, live).map_err(|error| error.to_string())?;
        let tree = handles.read().map_err(|error| error.to_string())?;
        node.least_limits.lift(&live.id.uid, &mut job.targets.containers);
        let wanted = job.targets.values(&tree, &node.traits);
        let plan =
            Plan::between(&PodValues { tree, specs }, &wanted, &node.traits).map_err(|error| error.to_string())?;
        let checked = Executor::new(&node, &handles).check_all(&plan);
        checked.map_err(|outcome| outcome.reason().unwrap_or_default().to_owned())?;
        refuse_at_once(&plan, &handles, &job.seen)?;
        let steps = changes.iter().chain(plan.steps());
        Ok(steps.map(StepRecord::planned).collect())
    });
    planned.await.map_err(|panic| format!("internal error: {panic}"))?
}

/// Whether a pass would refuse to lower a limit before doing anything about it.
fn refuse_at_once(plan: &Plan, handles: &PodHandles, seen: &SeenBefore) -> Result<(), String> {
    let next = ShrinkChecks::of(plan, handles, seen).and_then(|mut checks| checks.check(handles));
    match next {
        Ok(Next::Refused(target, why)) => Err(format!("{target}: {why}")),
        Ok(Next::Ready | Next::Wait(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

impl JobDone {
    /// Nothing is known yet but what goes on record.
    pub(crate) fn new(record: ChangeRecord) -> Self {
        Self {
            handles: None,
            foreign: ForeignWriters::default(),
            record,
            flipped: Vec::new(),
            stale: false,
            formula: None,
            quotas: Quotas::default(),
            shrink: ShrinkReport::default(),
            api: ApiReport::default(),
        }
    }
}
