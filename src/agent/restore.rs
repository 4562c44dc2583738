//! Puts every value that vscaled wrote back to the values that the kubelet granted, before vscaled leaves a node.
//!
//! No agent may run meanwhile, or it would put its own values back: `restore` locks the state directory first. It writes only
//! to pods that the state directory marks as written; an annotation, which any user may write, does not count. A pod goes
//! back to its spec without overrides and temporary limits, or to the grant before where the kubelet has not accepted the spec,
//! through the agent's own pass ([`reconcile`]): parents and children in their order, memory limits lowered as carefully as by an
//! agent, all of a pod or none of it, the runtime included. `restore` watches lowered limits afterwards, and raises them again
//! where they do harm.
//! It deletes the saved state of every restored pod, so that a new agent begins from nothing.
//!
//! A signal ends `restore` after the pass that runs: no later agent would thaw a cgroup that was frozen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::discovery::{Discovery, DiscoveryLinks};
use super::run::{DISK_GRACE, finish_audit, interruption};
use super::source_merge::SourceMerge;
use super::start::{connect, start_audit, start_sources};
use super::state_directory::{StateDirectory, on_disk};
use super::view;
use crate::actuate::shrink::{self, Freezer, Lowering, Verdict};
use crate::actuate::{Job, JobDone, Node, reconcile};
use crate::config::Config;
use crate::control::proto;
use crate::decide::PodDecision;
use crate::guard::MarkedLimits;
use crate::kubernetes::metrics::ApiMetrics;
use crate::kubernetes::{ApiClient, ApiResizer, Timing};
use crate::model::objects::{Pod, PodKey, PodUid};
use crate::model::{AskWhenFull, BoundPod, Cause, ChangeRecord, CpuBurst, LivePod, Outcome, ResourceList};
use crate::observe::audit::Audit;
use crate::observe::metrics::registry;
use crate::plan::shrink::Holds;
use crate::plan::{PodTargets, WriteScope};
use crate::reconcile::annotations::erase;
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::inventory::Inventory;
use crate::reconcile::pod::PodState;
use crate::reconcile::store::{SavedPod, SavedPods, StateFile};
use crate::runtime::RuntimeMetrics;
use crate::sources::NodeView;

/// The longest wait for the pods of the sources. The objects about them have the time of [`Timing::first_view`] after that.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why `restore` leaves a pod that differs from its spec. vscaled may have written to it all the same, so `restore` fails.
const UNMARKED: &str = "nothing in stateDir says that vscaled wrote to them";

/// Why `restore` leaves a pod after a signal.
const INTERRUPTED: &str = "restore was interrupted by a signal before its turn came";

/// The extent of `vscaled restore`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    Rehearse,
    Apply,
    /// Do the steps, and watch for a minute whether lower memory limits do harm.
    ApplyAndWatch,
}

/// The result of `vscaled restore`.
#[derive(Debug, serde::Serialize)]
pub struct Restoration {
    /// One for each pod on this node, including pods that are as their specs say.
    pub results: Vec<proto::PodResult>,
    /// One sentence for each pod or file that `restore` could not examine, or leaves as it is.
    pub remarks: Vec<String>,
}

/// Restores every pod, or returns the steps of that.
///
/// Errors: an agent runs, or the node or its sources do not show the values that the pods should have.
/// `restore` has written nothing then. Or the disk does not take the state of what is not restored; the pods are restored then.
pub async fn restore(config: &Config, how: Restore) -> Result<Restoration> {
    let directory = config.state_dir.clone();
    let state = on_disk(move || StateDirectory::open(&directory, "restore", Duration::ZERO)).await?;
    let mut remarks: Vec<String> = state.restored.problem.into_iter().collect();
    let api = connect(config, ApiMetrics::register(&mut registry())).await?;
    let view = read_sources(config, api.clone(), &mut remarks).await?;
    let (node, inventory) = discover(config, state.freezer, &view, &mut remarks).await?;
    let found = view.pods();
    let found = found.filter_map(|pod| BoundPod::new(pod, inventory.find(pod)?));
    // vscaled never wrote to the others. They are only compared with their specs.
    let (pods, others): (Vec<_>, Vec<_>) = found.partition(|pod| state.earlier_limits.contains_key(&pod.live().id.uid));
    let applies = how != Restore::Rehearse;
    let (audit, writer) = applies.then(|| start_audit(config)).flatten().unzip();
    let mut restorer = Restorer {
        capacity: capacity(&view, &node),
        node,
        audit: audit.unwrap_or_default(),
        saved: state.restored.pods,
        restored: BTreeSet::new(),
        results: Vec::with_capacity(pods.len()),
        interrupted: if applies { interruption()?.0 } else { <_>::default() },
    };
    let lowered = restorer.put_back(&pods, api.as_ref(), applies).await;
    let saved = restorer.unrestored();
    remarks.extend(left_alone(&saved, &state.earlier_limits, &inventory, &view));
    if applies {
        // Final, also if the process is killed amid the watch.
        let mut saved = restorer.save(&state.file).await;
        if how == Restore::ApplyAndWatch {
            // Also where the disk is full: lower limits may do harm all the same.
            restorer.watch(lowered).await;
            saved = restorer.save(&state.file).await;
        }
        saved.context("pods are restored, but a new agent would put the earlier values back")?;
    }
    let is_restored = |uid: &str| restorer.restored.contains(uid);
    if applies
        && let Some(removed) = state.limit_files.forget_all_but(|uid| !is_restored(uid))
        && timeout(DISK_GRACE, removed).await.is_err()
    {
        remarks.push("stateDir is too slow: the next agent may compare the restored pods with their specs".to_owned());
    }
    if let Some(api) = api.filter(|_| config.applied_annotation && applies) {
        let restored = pods.iter().filter(|pod| is_restored(&pod.live().id.uid));
        remarks.extend(erase(&api, restored.map(|pod| &**pod.object())).await);
    }
    remarks.extend(restorer.compare(&others).await);
    // The audit log ends with its last sender.
    let Restorer { audit, results, .. } = restorer;
    drop(audit);
    remarks.extend(finish_audit(writer, DISK_GRACE).await);
    Ok(Restoration { results, remarks })
}

/// Puts pods back, one after another.
struct Restorer {
    node: Arc<Node>,
    capacity: NodeCapacity,
    audit: Audit,
    /// The saved state of each pod, by UID.
    saved: SavedPods,
    restored: BTreeSet<PodUid>,
    results: Vec<proto::PodResult>,
    /// Cancelled by a signal.
    interrupted: CancellationToken,
}

/// Memory limits of a pod that came down, with the place of its result.
type Lowered<'a> = (usize, &'a BoundPod, Vec<Lowering>);

impl Restorer {
    /// Puts pods back to their specs, or rehearses that. Returns the memory limits that came down.
    async fn put_back<'a>(&mut self, pods: &'a [BoundPod], api: Option<&ApiClient>, applies: bool) -> Vec<Lowered<'a>> {
        let mut lowered = Vec::new();
        for pod in pods {
            let job = self.job_back(pod, api);
            let ended = if self.interrupted.is_cancelled() {
                Err(INTERRUPTED.to_owned())
            } else if applies {
                let (record, lower) = self.run_pass(job).await;
                if matches!(record.outcome, Outcome::Applied | Outcome::Unchanged) {
                    self.restored.insert(pod.live().id.uid.clone());
                }
                lowered.extend((!lower.is_empty()).then_some((self.results.len(), pod, lower)));
                Ok(view::change(&record))
            } else {
                view::planned(Arc::clone(&self.node), job).await
            };
            self.results.push(result(pod.live(), ended));
        }
        lowered
    }

    /// Removes the saved state of the restored pods.
    ///
    /// Errors: the disk does not take the state.
    async fn save(&self, file: &StateFile) -> Result<()> {
        let (file, saved) = (file.clone(), self.unrestored());
        on_disk(move || file.save(saved)).await
    }

    /// Watches lowered memory limits until a signal, and raises those again that do harm, each at once.
    async fn watch(&mut self, lowered: Vec<Lowered<'_>>) {
        let (mut watched, interrupted) = (verdicts(&self.node, lowered), self.interrupted.clone());
        while let Some(Some(ended)) = interrupted.run_until_cancelled(watched.next()).await {
            let ((index, pod, lowered), verdict) = ended;
            if let Verdict::Trouble(target, trouble) = verdict {
                let why = format!("{target}: {trouble}");
                self.results[index] = self.raise_again(pod, &lowered, why).await;
            }
        }
    }

    /// Compares pods that are left as they are with their specs. Returns a sentence about those that differ.
    async fn compare(&mut self, others: &[BoundPod]) -> Option<String> {
        let mut differ = Vec::new();
        for pod in others {
            let mut job = job_for(pod, None);
            (job.targets.lift_undeclared, job.targets.burst) = (false, None);
            let planned = view::planned(Arc::clone(&self.node), job).await;
            let as_specified = planned.ok().filter(|planned| planned.steps.is_empty());
            if as_specified.is_none() {
                differ.push(pod.live().id.to_string());
            }
            let ended = as_specified.ok_or_else(|| UNMARKED.to_owned());
            self.results.push(result(pod.live(), ended));
        }
        (!differ.is_empty()).then(|| format!("left as they are, because {UNMARKED}: {}", differ.join(", ")))
    }

    /// The saved state of the pods that are not restored.
    fn unrestored(&self) -> SavedPods {
        let mut saved = self.saved.clone();
        saved.retain(|uid, _| !self.restored.contains(uid));
        saved
    }

    /// A pass that also takes back what the spec has of overrides, temporary limits and requests that the kubelet has not allocated.
    fn job_back(&mut self, pod: &BoundPod, api: Option<&ApiClient>) -> Job {
        let saved = self.saved.get(&pod.live().id.uid).map(|saved| &**saved);
        let (mut job, object) = (job_for(pod, saved), pod.object());
        let own = saved.and_then(|saved| saved.without_own_requests(object, Timestamp::now()));
        if let (Some(api), Some(saved), Some(own)) = (api, saved, own) {
            let facts = self.capacity.reserve(&state_of(object), &own);
            job.resize = saved.state.resize.next(object, &own, &job.cause, &facts);
            job.resizer = Some(Arc::new(ApiResizer::new(api.clone(), None)));
            (job.targets.amounts, job.targets.kubelet_unasked) = (own, false);
        }
        job
    }

    /// Sets the limits from before after lower ones did harm, and keeps the saved state of the pod.
    async fn raise_again(&mut self, pod: &BoundPod, lowered: &[Lowering], why: String) -> proto::PodResult {
        let before = lowered.iter().map(|lowering| (lowering.target.clone(), lowering.from));
        let mut job = job_for(pod, self.saved.get(&pod.live().id.uid).map(|saved| &**saved));
        job.cause = Cause::FailedShrink { why: why.clone() };
        job.targets.holds = before.collect();
        job.targets.lift_undeclared = false;
        let (record, _) = self.run_pass(job).await;
        self.restored.remove(&pod.live().id.uid);
        let outcome = record.outcome.word();
        let error =
            format!("the memory limits of its spec caused trouble ({why}); restoring the earlier ones: {outcome}");
        result(pod.live(), Err(error))
    }

    /// Runs one pass towards the spec; also returns the memory limits that the pass lowered.
    async fn run_pass(&self, job: Job) -> (Arc<ChangeRecord>, Vec<Lowering>) {
        let JobDone { mut record, shrink, .. } = reconcile(Arc::clone(&self.node), Box::new(job)).await;
        record.at = Timestamp::now();
        let record = Arc::new(record);
        self.audit.change(&record);
        (record, shrink.lowered)
    }
}

/// Watches lowered memory limits. The verdicts come as the watches end.
fn verdicts<'a>(
    node: &Arc<Node>,
    lowered: Vec<Lowered<'a>>,
) -> FuturesUnordered<impl Future<Output = (Lowered<'a>, Verdict)> + use<'a>> {
    let watched = lowered.into_iter().map(|of_pod| {
        let (_, pod, lowered) = &of_pod;
        let watch = shrink::watch(Arc::clone(node), Arc::clone(pod.live()), lowered.clone());
        async move { (of_pod, watch.await) }
    });
    watched.collect()
}

/// One sentence for each pod that cannot be restored, because its spec is not known: of the `saved` pods, and of the `marked` ones that
/// have a cgroup.
fn left_alone(
    saved: &SavedPods,
    marked: &BTreeMap<PodUid, MarkedLimits>,
    inventory: &Inventory,
    view: &NodeView,
) -> Vec<String> {
    let described: BTreeSet<PodKey> = view.pods().map(|pod| pod.key()).collect();
    let unknown = saved.values().map(|saved| &saved.pod);
    let unknown = unknown.filter(|pod| !described.contains(&pod.key()));
    let mut left: BTreeMap<&PodUid, String> = unknown.map(|pod| (&pod.uid, pod.key().to_string())).collect();
    let found = view.pods().filter_map(|pod| Some(&inventory.find(pod)?.id.uid));
    let found: BTreeSet<&PodUid> = found.collect();
    for uid in marked.keys() {
        if inventory.has_cgroup(uid) && !found.contains(uid) {
            let name = inventory.live(uid).map_or_else(
                || format!("the pod with the UID {uid}"),
                |live| live.id.key().to_string(),
            );
            left.entry(uid).or_insert(name);
        }
    }
    let sentence = |pod: String| format!("{pod} is left as it is: no source describes it any more");
    left.into_values().map(sentence).collect()
}

/// The first view of the configured sources.
async fn read_sources(config: &Config, api: Option<ApiClient>, remarks: &mut Vec<String>) -> Result<NodeView> {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let (sources, _) = start_sources(config, api, &stop);
    let (view, mut problems) = first_view(sources, PATIENCE, Timing::default()).await;
    let unknown = || format!("the specs of the pods are not known: {}", problems.join("; "));
    let view = view.with_context(unknown)?;
    remarks.append(&mut problems);
    Ok(view)
}

/// The first view of these sources, and their problems. The API server's comes `timing.first_view` after its pods at the latest.
async fn first_view(mut sources: SourceMerge, for_pods: Duration, timing: Timing) -> (Option<NodeView>, Vec<String>) {
    let until = Instant::now() + for_pods + timing.first_view;
    loop {
        let (view, problems) = sources.merged_view();
        if view.is_some() || !timeout_at(until, sources.changed()).await.unwrap_or(false) {
            return (view, problems);
        }
    }
}

/// Discovers the node as an agent does.
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
        freezer,
        least_limits: Arc::default(),
        runtime_metrics: RuntimeMetrics::register(&mut registry()),
        view: viewed,
        node_pods: watch::channel(Arc::default()).0,
        seen,
        unsaved: BTreeMap::new(),
    });
    let found = discovery.discover().await;
    let unknown = || format!("the node cannot be examined: {}", found.problems.join("; "));
    let node = found.node.with_context(unknown)?;
    remarks.extend(found.problems);
    Ok((node, found.inventory))
}

/// The node's capacity, and what its pods request. On a full node the kubelet is asked all the same: the requests are the pod's own.
fn capacity(view: &NodeView, node: &Node) -> NodeCapacity {
    let pods: Vec<_> = view.pods().map(state_of).collect();
    let machine = ResourceList::default();
    let mut capacity = NodeCapacity::of(pods.iter(), view, machine, node.traits.kubelet, true);
    capacity.ask_when_full = AskWhenFull::Always;
    capacity
}

/// The state of a pod of which only the object is known.
fn state_of(pod: &Arc<Pod>) -> PodState {
    PodState::new(Arc::clone(pod), PodDecision::undecided(pod))
}

/// A pass towards the kubelet's grant: the spec, unless the kubelet has not accepted it.
fn job_for(pod: &BoundPod, saved: Option<&SavedPod>) -> Job {
    let object = pod.object();
    let resize = saved.map(|saved| saved.state.resize.clone()).unwrap_or_default();
    let targets = PodTargets {
        bound: pod.clone(),
        amounts: resize.granted(object),
        lift_undeclared: true,
        kubelet_unasked: true,
        // Without a saved state, a burst may be the agent's.
        burst: saved.map_or(Some(CpuBurst::ZERO), |saved| {
            saved.state.desired.burst.map(|_| CpuBurst::ZERO)
        }),
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
    Job {
        aligns_scopes: true,
        ..Job::new(targets, cause)
    }
}

fn result(live: &LivePod, ended: Result<proto::Change, String>) -> proto::PodResult {
    view::result(
        &live.id,
        live.containers.keys().map(ToString::to_string).collect(),
        ended,
    )
}

#[cfg(test)]
mod tests;
