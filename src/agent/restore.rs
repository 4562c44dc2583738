//! Puts every value that vscaled wrote back to what the kubelet granted, for whoever takes vscaled off a node.
//!
//! No agent may run meanwhile, or it would put its own values back: the state directory is locked first. Only pods that are
//! marked there as written to are written; an annotation, which anybody may write, is no reason to. A pod goes back to its
//! spec, or to what the kubelet granted before where it has not accepted the spec, through the same pass as ever
//! ([`reconcile`]): parents and children in their order, memory limits lowered as carefully as by an agent, all of a pod or
//! none of it, the runtime told. What was lowered is watched afterwards, and raised again where it does harm. What stood for
//! a pod that is restored is forgotten, so that an agent which is started again begins from nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::join_all;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::discovery::{Discovery, DiscoveryLinks, UnsavedLimits};
use super::run::start_audit;
use super::run::{StateDirectory, connect, start_sources};
use super::view;
use crate::actuate::shrink::{self, Freezer, Lowering, Verdict};
use crate::actuate::{Concurrency, Job, JobDone, Node, preview, reconcile};
use crate::config::Config;
use crate::control::proto;
use crate::kubernetes::ApiClient;
use crate::kubernetes::metrics::ApiMetrics;
use crate::model::{BoundPod, Cause, ChangeRecord, LivePod, Outcome};
use crate::observe::audit::Audit;
use crate::observe::metrics::registry;
use crate::plan::resize::{self, Phase};
use crate::plan::shrink::Holds;
use crate::plan::{PodTargets, WriteScope};
use crate::reconcile::annotations::erase;
use crate::reconcile::controller::Event;
use crate::reconcile::inventory::Inventory;
use crate::reconcile::store::SavedPod;
use crate::runtime::RuntimeMetrics;
use crate::sources::NodeView;

/// How long the sources may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How far `vscaled restore` goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// Only say which steps it would take.
    Rehearse,
    Apply,
    /// Do it, and stay for a minute to see whether lower memory limits do harm.
    ApplyAndWatch,
}

/// What became of every pod, or would.
#[derive(Debug, serde::Serialize)]
pub struct Restoration {
    /// One for each pod that lives here, those that are as their spec says included.
    pub results: Vec<proto::PodResult>,
    /// What could not be looked at, and what is left as it is, one sentence each.
    pub remarks: Vec<String>,
}

/// Restores every pod, or only says which steps that would take.
///
/// Errors: an agent runs, or the node or its sources do not say what the pods should have; nothing was written then.
pub async fn restore(config: &Config, how: Restore) -> Result<Restoration> {
    let state = StateDirectory::open(&config.state_dir, "restore", Duration::ZERO).await?;
    let mut remarks: Vec<String> = state.restored.problem.into_iter().collect();
    let api = connect(config, ApiMetrics::register(&mut registry())).await?;
    let view = read_sources(config, api.clone(), &mut remarks).await?;
    let (node, inventory) = discover(config, state.freezer, &view, &mut remarks).await?;
    let saved = state.restored.pods;
    let living = view.pods.iter();
    let living = living.filter_map(|pod| BoundPod::new(pod, inventory.find(pod)?));
    let (pods, others): (Vec<_>, Vec<_>) = living.partition(|pod| state.left.contains_key(&pod.live().id.uid));
    let mut results = Vec::with_capacity(pods.len());
    if how == Restore::Rehearse {
        for pod in pods {
            results.push(rehearsed(&node, job_for(&pod, &saved)).await);
        }
        remarks.extend(left_alone(&saved, &view));
        see_others(&node, &others, &mut results, &mut remarks).await;
        return Ok(Restoration { results, remarks });
    }

    let (audit, writer) = start_audit(config).unzip();
    let mut restorer = Restorer {
        node,
        audit: audit.unwrap_or_default(),
        stood: saved,
        restored: BTreeSet::new(),
    };
    let mut lowered = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        let (result, lower) = restorer.put_back(pod).await;
        results.push(result);
        lowered.extend((!lower.is_empty()).then_some((index, lower)));
    }
    // What was done counts from now on, also if nobody waits for the rest.
    remarks.extend(left_alone(&restorer.standing(), &view));
    state.file.save(restorer.standing())?;
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
        state.file.save(restorer.standing())?;
    }
    let is_restored = |uid: &str| restorer.restored.contains(uid);
    state.limit_files.forget_all_but(|uid| !is_restored(uid));
    if let Some(api) = api.filter(|_| config.applied_annotation) {
        let restored = pods.iter().filter(|pod| is_restored(&pod.live().id.uid));
        remarks.extend(erase(&api, restored.map(|pod| &**pod.object())).await);
    }
    see_others(&restorer.node, &others, &mut results, &mut remarks).await;
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
    /// The UIDs of those that are restored.
    restored: BTreeSet<String>,
}

impl Restorer {
    /// What stands for those that are not restored.
    fn standing(&self) -> BTreeMap<String, SavedPod> {
        let mut standing = self.stood.clone();
        standing.retain(|uid, _| !self.restored.contains(uid));
        standing
    }

    /// One pass towards the spec; also which memory limits it lowered.
    async fn put_back(&mut self, pod: &BoundPod) -> (proto::PodResult, Vec<Lowering>) {
        let (record, lowered) = self.pass(job_for(pod, &self.stood)).await;
        if matches!(record.outcome, Outcome::Applied | Outcome::Unchanged) {
            self.restored.insert(pod.live().id.uid.clone());
        }
        (result(pod.live(), Ok(view::change(&record))), lowered)
    }

    /// Lower limits did harm: they are what they were before, and so is what stands for the pod.
    async fn raise_again(&mut self, pod: &BoundPod, lowered: &[Lowering], why: String) -> proto::PodResult {
        let before = lowered.iter().map(|lowering| (lowering.target.clone(), lowering.from));
        let mut job = job_for(pod, &self.stood);
        job.cause = Cause::Regret { why: why.clone() };
        job.targets.holds = before.collect();
        job.targets.lift_undeclared = false;
        let (record, _) = self.pass(job).await;
        let live = pod.live();
        self.restored.remove(&live.id.uid);
        let outcome = record.outcome.word();
        result(
            live,
            Err(format!(
                "its spec's memory limits did harm ({why}); the limits from before: {outcome}"
            )),
        )
    }

    async fn pass(&self, job: Job) -> (Arc<ChangeRecord>, Vec<Lowering>) {
        let JobDone { mut record, shrink, .. } = reconcile(Arc::clone(&self.node), Box::new(job)).await;
        record.at = Timestamp::now();
        let record = Arc::new(record);
        self.audit.change(&record);
        (record, shrink.lowered)
    }
}

/// What the sources that are configured say, once all of them have spoken.
async fn read_sources(config: &Config, api: Option<ApiClient>, remarks: &mut Vec<String>) -> Result<NodeView> {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let source_merge = start_sources(config, api, &stop);
    let (views, _viewed) = watch::channel(Arc::new(NodeView::default()));
    let (events, mut spoken) = mpsc::channel(8);
    tokio::spawn(source_merge.run(views, events));
    let mut problems = Vec::new();
    let until = tokio::time::Instant::now() + PATIENCE;
    while let Ok(Some(event)) = tokio::time::timeout_at(until, spoken.recv()).await {
        match event {
            Event::View(view, found) => {
                remarks.extend(found);
                return Ok(NodeView::clone(&view));
            }
            Event::SourceProblems(found) => problems = found,
            _ => {}
        }
    }
    bail!(
        "the sources do not say what the pods' specs are: {}",
        problems.join("; ")
    )
}

/// Looks at the node as an agent would.
async fn discover(
    config: &Config,
    freezer: Arc<Freezer>,
    view: &NodeView,
    remarks: &mut Vec<String>,
) -> Result<(Arc<Node>, Inventory)> {
    let (_views, viewed) = watch::channel(Arc::new(view.clone()));
    let (_formula, seen) = watch::channel(None);
    let mut discovery = Discovery::new(DiscoveryLinks {
        config: config.clone(),
        concurrency: Arc::new(Concurrency::new(config.workers)),
        freezer,
        least_limits: Arc::default(),
        runtime_metrics: RuntimeMetrics::register(&mut registry()),
        view: viewed,
        residents: watch::channel(Arc::default()).0,
        seen,
        unsaved: UnsavedLimits::default(),
    });
    let found = discovery.discover().await;
    let unknown = || format!("the node cannot be looked at: {}", found.problems.join("; "));
    let node = found.node.with_context(unknown)?;
    remarks.extend(found.problems);
    Ok((node, found.inventory))
}

/// A pass towards what the kubelet has granted: the spec, unless it has not accepted that.
fn job_for(pod: &BoundPod, saved: &BTreeMap<String, SavedPod>) -> Job {
    let (object, saved) = (pod.object(), saved.get(&pod.live().id.uid));
    let resize = saved.map(|saved| &saved.state.resize);
    let prepared = resize.and_then(|resize| resize.prepared.as_ref().map(|prepared| &prepared.held));
    let accepted = resize.and_then(|resize| resize.accepted.as_ref().map(|accepted| &accepted.held));
    let held = prepared.or(accepted);
    let targets = PodTargets {
        bound: pod.clone(),
        containers: resize::granted(object, &Phase::of(object), held.map(Vec::as_slice)),
        lift_undeclared: true,
        kubelet_unasked: true,
        scope: saved
            .map(|saved| &saved.state.desired)
            .filter(|desired| !desired.is_empty())
            .map_or_else(WriteScope::all, |desired| desired.scope.clone()),
        holds: Holds::default(),
    };
    let cause = Cause::Operator {
        uid: nix::unistd::getuid().as_raw(),
        pid: nix::unistd::getpid().as_raw(),
        reason: "vscaled restore".to_owned(),
    };
    Job::new(targets, cause)
}

/// Says of pods that vscaled never wrote to, as far as the state directory knows, whether they are as their specs say.
async fn see_others(
    node: &Arc<Node>,
    others: &[BoundPod],
    results: &mut Vec<proto::PodResult>,
    remarks: &mut Vec<String>,
) {
    let mut differ = Vec::new();
    for pod in others {
        let mut job = job_for(pod, &BTreeMap::new());
        job.targets.lift_undeclared = false;
        let seen = rehearsed(node, job).await;
        if seen.change.as_ref().is_some_and(|change| change.steps.is_empty()) {
            results.push(seen);
        } else {
            differ.push(pod.live().id.to_string());
        }
    }
    if !differ.is_empty() {
        remarks.push(format!(
            "left as they are, because nothing in stateDir says that vscaled wrote to them: {}",
            differ.join(", ")
        ));
    }
}

async fn rehearsed(node: &Arc<Node>, job: Job) -> proto::PodResult {
    let (cause, live) = (job.cause.clone(), Arc::clone(job.targets.bound.live()));
    let steps = preview(Arc::clone(node), job).await;
    result(&live, steps.map(|steps| view::planned(live.id.clone(), &cause, &steps)))
}

fn result(live: &LivePod, ended: Result<proto::Change, String>) -> proto::PodResult {
    view::result(&live.id, live.containers.keys().cloned().collect(), ended)
}

/// Pods that something stood for and that no manifest describes: what their specs say, nobody knows here.
fn left_alone(saved: &BTreeMap<String, SavedPod>, view: &NodeView) -> Vec<String> {
    let described = |saved: &SavedPod| view.pods.iter().any(|pod| pod.full_name() == saved.pod.to_string());
    let unknown = saved.values().filter(|saved| !described(saved));
    unknown
        .map(|saved| format!("{} is left as it is: no source describes it any more", saved.pod))
        .collect()
}
