//! Puts every value back to what the pods' specs say, for whoever takes vscaled off a node.
//!
//! No agent may run meanwhile, or it would put its own values back: the right to be the agent is taken first. Each pod
//! goes through the same pass as ever ([`reconcile`]): parents and children in their order, memory limits lowered as
//! carefully as by an agent, all of a pod or none of it, the runtime told. What was lowered is watched afterwards, and
//! raised again where it does harm. What stood for a pod that is restored is forgotten, so that an agent which is started
//! again begins from nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::applied::erase;
use super::coordinator::{Event, Refreshed};
use super::inventory::Inventory;
use super::options::{start_audit, survey_options};
use super::run::{RunError, allow_open_files, connect, load, start_sources, thaw};
use super::state::{SavedPod, StateError, StateFile};
use super::survey::Survey;
use super::view;
use crate::actuate::shrink::{self, Freezer, Lowering, SeenBefore, Verdict};
use crate::actuate::{
    BoundPod, Cause, ChangeRecord, ForeignWriters, Job, JobDone, Lanes, LivePod, Node, Outcome, preview, reconcile,
};
use crate::config::Config;
use crate::control::{AgentLock, BindError, proto};
use crate::kubernetes::ApiClient;
use crate::kubernetes::metrics::ApiMetrics;
use crate::observe::audit::Audit;
use crate::observe::metrics::registry;
use crate::plan::shrink::Holds;
use crate::runtime::Observer;
use crate::sources::NodeView;

/// How long the sources may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// Only say which steps it would take.
    Rehearse,
    /// Do it, and leave.
    Apply,
    /// Do it, and stay for a minute to see whether lower memory limits do harm.
    ApplyAndWatch,
}

/// Nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// An agent runs.
    #[error("{0}; restoring needs it stopped, or it would put its own values back: `systemctl stop vscaled`")]
    Running(#[from] BindError),
    /// The state directory.
    #[error("stateDir: {0}")]
    State(#[from] StateError),
    /// What an agent needs as well.
    #[error(transparent)]
    Agent(#[from] RunError),
    /// The node is not known well enough to write anything.
    #[error("the node cannot be looked at: {}", .0.join("; "))]
    Node(Vec<String>),
    /// What the specs say is not known.
    #[error("the sources do not say what the pods' specs are: {}", .0.join("; "))]
    Sources(Vec<String>),
}

/// What became of every pod, or would.
#[derive(Debug)]
pub struct Restoration {
    /// One for each pod that lives here, those that are as their spec says included.
    pub results: Vec<proto::PodResult>,
    /// What could not be looked at, and what is left as it is, one sentence each.
    pub remarks: Vec<String>,
}

/// Restores every pod, or only says which steps that would take.
///
/// # Errors
/// [`RestoreError`]; nothing was written then.
pub async fn restore(config: &Config, how: Restore) -> Result<Restoration, RestoreError> {
    allow_open_files();
    let _lock = AgentLock::take(&config.socket).await?;
    let state = StateFile::in_directory(&config.state_dir)?;
    let restored = load(&state)?;
    let freezer = thaw(&config.state_dir)?;
    let mut remarks: Vec<String> = restored.problem.into_iter().collect();
    let api = connect(config, ApiMetrics::register(&mut registry())).await;
    let api = api.map_err(RunError::from)?;
    let view = read_sources(config, api.clone(), &mut remarks).await?;
    let (node, inventory) = look(config, freezer, &view, &mut remarks).await?;
    let pods: Vec<_> = view
        .pods
        .iter()
        .filter_map(|pod| BoundPod::new(pod, inventory.find(pod)?))
        .collect();
    if how == Restore::Rehearse {
        let saved = restored.pods;
        let mut results = Vec::with_capacity(pods.len());
        for pod in pods {
            let ours = saved.contains_key(&pod.live().id.uid);
            results.push(rehearsed(&node, job_for(&pod, ours)).await);
        }
        remarks.extend(left_alone(&saved, &view));
        return Ok(Restoration { results, remarks });
    }

    let (audit, writer) = start_audit(config).unzip();
    let mut restorer = Restorer {
        node,
        audit: audit.unwrap_or_default(),
        stood: restored.pods.clone(),
        saved: restored.pods,
    };
    let mut results = Vec::with_capacity(pods.len());
    let mut lowered = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        let (result, lower) = restorer.put_back(pod).await;
        results.push(result);
        lowered.extend((!lower.is_empty()).then_some((index, lower)));
    }
    // What was done counts from now on, also if nobody waits for the rest.
    remarks.extend(left_alone(&restorer.saved, &view));
    state.save(restorer.saved.clone())?;
    if how == Restore::ApplyAndWatch {
        let watched = lowered.into_iter().map(async |(index, lowered)| {
            let live = Arc::clone(pods[index].live());
            let verdict = shrink::watch(Arc::clone(&restorer.node), live, lowered.clone()).await;
            (index, lowered, verdict)
        });
        let watched = join_all(watched).await;
        for (index, lowered, verdict) in watched {
            if let Verdict::Trouble(target, trouble) = verdict {
                let why = format!("{target}: {trouble}");
                results[index] = restorer.raise_again(&pods[index], &lowered, why).await;
            }
        }
        state.save(restorer.saved.clone())?;
    }
    if let Some(api) = api.filter(|_| config.applied_annotation) {
        let restored = pods
            .iter()
            .filter(|pod| !restorer.saved.contains_key(&pod.live().id.uid));
        remarks.extend(erase(&api, restored.map(|pod| &**pod.object())).await);
    }
    drop(restorer);
    if let Some(writer) = writer
        && let Err(error) = writer.await
    {
        remarks.push(format!("the audit log may not be complete: {error}"));
    }
    Ok(Restoration { results, remarks })
}

/// Puts pods back, one after another.
struct Restorer {
    node: Arc<Node>,
    audit: Audit,
    /// What stood for pods before.
    stood: BTreeMap<String, SavedPod>,
    /// What stands for those that are not restored.
    saved: BTreeMap<String, SavedPod>,
}

impl Restorer {
    /// One pass towards the spec; also which memory limits it lowered.
    async fn put_back(&mut self, pod: &BoundPod) -> (proto::PodResult, Vec<Lowering>) {
        let uid = &pod.live().id.uid;
        let (record, lowered) = self.pass(job_for(pod, self.saved.contains_key(uid))).await;
        if matches!(record.outcome, Outcome::Applied | Outcome::Unchanged) {
            self.saved.remove(uid);
        }
        (result(pod.live(), Ok(view::change(&record))), lowered)
    }

    /// Lower limits did harm: they are what they were before, and so is what stands for the pod.
    async fn raise_again(&mut self, pod: &BoundPod, lowered: &[Lowering], why: String) -> proto::PodResult {
        let before = lowered.iter().map(|lowering| (lowering.target.clone(), lowering.from));
        let job = Job {
            holds: before.collect(),
            cause: Cause::Regret { why: why.clone() },
            ..job_for(pod, false)
        };
        let (record, _) = self.pass(job).await;
        let live = pod.live();
        let stood = self.stood.get(&live.id.uid).cloned();
        self.saved.extend(stood.map(|stood| (live.id.uid.clone(), stood)));
        let outcome = record.outcome.word();
        result(
            live,
            Err(format!(
                "its spec's memory limits did harm ({why}); the limits from before: {outcome}"
            )),
        )
    }

    async fn pass(&self, job: Job) -> (Arc<ChangeRecord>, Vec<Lowering>) {
        let (cause, pod) = (job.cause.clone(), job.bound.live().id.clone());
        let JobDone {
            outcome,
            steps,
            stages,
            shrink,
            ..
        } = reconcile(Arc::clone(&self.node), Box::new(job)).await;
        let record = Arc::new(ChangeRecord {
            sequence: 0,
            at: Timestamp::now(),
            pod,
            cause,
            outcome,
            steps,
            stages,
        });
        self.audit.change(&record);
        (record, shrink.lowered)
    }
}

/// What the sources that are configured say, once all of them have spoken.
async fn read_sources(
    config: &Config,
    api: Option<ApiClient>,
    remarks: &mut Vec<String>,
) -> Result<NodeView, RestoreError> {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let feeding = start_sources(config, api, &stop);
    let (views, _viewed) = watch::channel(Arc::new(NodeView::default()));
    let (events, mut spoken) = mpsc::channel(8);
    tokio::spawn(feeding.run(views, events));
    let mut problems = Vec::new();
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    loop {
        // Cancel-safe: what was received is taken at once.
        tokio::select! {
            event = spoken.recv() => match event {
                Some(Event::View(view, found)) => {
                    remarks.extend(found);
                    return Ok(NodeView::clone(&view));
                }
                Some(Event::SourceProblems(found)) => problems = found,
                Some(_) => {}
                None => return Err(RestoreError::Sources(problems)),
            },
            () = &mut patience => return Err(RestoreError::Sources(problems)),
        }
    }
}

/// Looks at the node as an agent would.
async fn look(
    config: &Config,
    freezer: Arc<Freezer>,
    view: &NodeView,
    remarks: &mut Vec<String>,
) -> Result<(Arc<Node>, Inventory), RestoreError> {
    let (_views, viewed) = watch::channel(Arc::new(view.clone()));
    let (_formula, seen) = watch::channel(None);
    let lanes = Arc::new(Lanes::new(config.workers));
    let observer = Observer::new(|_, _, _| {});
    let (residents, _) = watch::channel(Arc::default());
    let mut survey = Survey::new(
        survey_options(config),
        lanes,
        freezer,
        observer,
        viewed,
        residents,
        seen,
    );
    let (
        Refreshed {
            node,
            inventory,
            problems,
            ..
        },
        _,
    ) = survey.look().await;
    let node = node.ok_or_else(|| RestoreError::Node(problems.clone()))?;
    remarks.extend(problems);
    Ok((node, inventory))
}

/// A pass towards the spec. Limits that the spec does not declare are lifted only where they may be ours.
fn job_for(pod: &BoundPod, ours: bool) -> Job {
    Job {
        bound: pod.clone(),
        handles: None,
        targets: pod.object().requirements(),
        lift_undeclared: ours,
        through: None,
        kubelet_unasked: true,
        cause: Cause::Operator {
            uid: nix::unistd::getuid().as_raw(),
            pid: nix::unistd::getpid().as_raw(),
            reason: "vscaled restore".to_owned(),
        },
        asked: Instant::now(),
        held_before: false,
        foreign: ForeignWriters::default(),
        check_runtime: true,
        holds: Holds::default(),
        seen: SeenBefore::default(),
    }
}

async fn rehearsed(node: &Arc<Node>, job: Job) -> proto::PodResult {
    let (cause, live) = (job.cause.clone(), Arc::clone(job.bound.live()));
    let steps = preview(Arc::clone(node), job).await;
    result(&live, steps.map(|steps| view::planned(live.id.clone(), &cause, &steps)))
}

fn result(live: &LivePod, ended: Result<proto::Change, String>) -> proto::PodResult {
    let (change, error) = match ended {
        Ok(change) => (Some(change), String::new()),
        Err(error) => (None, error),
    };
    proto::PodResult {
        namespace: live.id.namespace.clone(),
        name: live.id.name.clone(),
        uid: live.id.uid.clone(),
        containers: live.containers.keys().cloned().collect(),
        change,
        error,
    }
}

/// Pods that something stood for and that no manifest describes: what their specs say, nobody knows here.
fn left_alone(saved: &BTreeMap<String, SavedPod>, view: &NodeView) -> Vec<String> {
    let described = |saved: &SavedPod| view.pods.iter().any(|pod| pod.full_name() == saved.pod.to_string());
    let unknown = saved.values().filter(|saved| !described(saved));
    unknown
        .map(|saved| format!("{} is left as it is: no source describes it any more", saved.pod))
        .collect()
}
