//! Puts every value back to what the pods' specs say, for whoever takes vscaled off a node.
//!
//! No agent may run meanwhile, or it would put its own values back: the right to be the agent is taken first. Each pod
//! goes through the same pass as ever ([`reconcile`]): parents and children in their order, never below what is in use,
//! all of a pod or none of it, the runtime told. What stood for a pod that is restored is forgotten, so that an agent
//! which is started again begins from nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::coordinator::Refreshed;
use super::inventory::Inventory;
use super::run::{allow_open_files, load, localised, start_audit, survey_options};
use super::standing::spec_of;
use super::state::{SavedPod, StateError, StateFile};
use super::survey::Survey;
use super::view;
use crate::actuate::{Cause, ChangeRecord, ForeignWriters, Job, Lanes, LivePod, Node, Outcome, preview, reconcile};
use crate::config::Config;
use crate::control::{AgentLock, BindError, proto};
use crate::objects::Pod;
use crate::runtime::Observer;
use crate::sources::NodeView;
use crate::sources::directory::DirectorySource;

/// Nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// An agent runs.
    #[error("{0}; restoring needs it stopped, or it would put its own values back: `systemctl stop vscaled`")]
    Running(#[from] BindError),
    /// The state directory.
    #[error("stateDir: {0}")]
    State(#[from] StateError),
    /// The node is not known well enough to write anything.
    #[error("the node cannot be looked at: {}", .0.join("; "))]
    Node(Vec<String>),
    /// The manifests were not read.
    #[error("the manifests were not read: {0}")]
    Source(watch::error::RecvError),
}

/// What became of every pod, or would.
#[derive(Debug)]
pub struct Restoration {
    /// One for each pod that lives here, those that are as their spec says included.
    pub results: Vec<proto::PodResult>,
    /// What could not be looked at, and what is left as it is, one sentence each.
    pub remarks: Vec<String>,
}

/// Restores every pod; with `apply` unset only says which steps that would take.
///
/// # Errors
/// [`RestoreError`]; nothing was written then.
pub async fn restore(config: &Config, apply: bool) -> Result<Restoration, RestoreError> {
    allow_open_files();
    let _lock = AgentLock::take(&config.socket).await?;
    let state = StateFile::in_directory(&config.state_dir)?;
    let restored = load(&state)?;
    let mut saved = restored.pods;
    let mut remarks: Vec<String> = restored.problem.into_iter().collect();
    let view = read_manifests(config, &mut remarks).await?;
    let (node, inventory) = look(config, &view, &mut remarks).await?;

    let (audit, writer) = start_audit(config).filter(|_| apply).unzip();
    let mut results = Vec::new();
    for pod in &view.pods {
        let Some(live) = inventory.find(pod) else { continue };
        let ours = saved.contains_key(&live.id.uid);
        let job = job_for(pod, live, ours);
        if !apply {
            results.push(rehearsed(&node, live, job).await);
            continue;
        }
        let record = carried_out(&node, live, job).await;
        if let Some(audit) = &audit {
            audit.change(&record);
        }
        if matches!(record.outcome, Outcome::Applied | Outcome::Unchanged) {
            saved.remove(&live.id.uid);
        }
        results.push(result(live, Ok(view::change(&record))));
    }
    remarks.extend(left_alone(&saved, &view));
    if apply {
        state.save(saved)?;
    }
    drop(audit);
    if let Some(Err(error)) = match writer {
        Some(writer) => Some(writer.await),
        None => None,
    } {
        remarks.push(format!("the audit log may not be complete: {error}"));
    }
    Ok(Restoration { results, remarks })
}

async fn read_manifests(config: &Config, remarks: &mut Vec<String>) -> Result<NodeView, RestoreError> {
    let (source, mut states) = DirectorySource::new(config.manifests.clone());
    let stop = CancellationToken::new();
    let reading = tokio::spawn(source.run(stop.clone()));
    let state = states.wait_for(|state| state.generation > 0).await;
    let state = Arc::clone(&*state.map_err(RestoreError::Source)?);
    stop.cancel();
    drop(reading);
    remarks.extend(state.problems.iter().map(ToString::to_string));
    Ok(localised(&state.view, &config.node_name))
}

/// Looks at the node as an agent would.
async fn look(
    config: &Config,
    view: &NodeView,
    remarks: &mut Vec<String>,
) -> Result<(Arc<Node>, Inventory), RestoreError> {
    let (_views, viewed) = watch::channel(Arc::new(view.clone()));
    let (_formula, seen) = watch::channel(None);
    let lanes = Arc::new(Lanes::new(config.workers));
    let observer = Observer::new(|_, _, _| {});
    let mut survey = Survey::new(survey_options(config), lanes, observer, viewed, seen);
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
fn job_for(pod: &Arc<Pod>, live: &Arc<LivePod>, ours: bool) -> Job {
    Job {
        pod: Arc::clone(pod),
        live: Arc::clone(live),
        handles: None,
        targets: spec_of(pod),
        lift_undeclared: ours,
        cause: Cause::Operator {
            uid: nix::unistd::getuid().as_raw(),
            pid: nix::unistd::getpid().as_raw(),
            reason: "vscaled restore".to_owned(),
        },
        asked: Instant::now(),
        held_before: false,
        foreign: ForeignWriters::default(),
        check_runtime: true,
    }
}

async fn rehearsed(node: &Arc<Node>, live: &LivePod, job: Job) -> proto::PodResult {
    let cause = job.cause.clone();
    let steps = preview(Arc::clone(node), job).await;
    result(live, steps.map(|steps| view::planned(live.id.clone(), &cause, &steps)))
}

async fn carried_out(node: &Arc<Node>, live: &LivePod, job: Job) -> Arc<ChangeRecord> {
    let cause = job.cause.clone();
    let done = reconcile(Arc::clone(node), job).await;
    Arc::new(ChangeRecord {
        sequence: 0,
        at: Timestamp::now(),
        pod: live.id.clone(),
        cause,
        outcome: done.outcome,
        steps: done.steps,
        stages: done.stages,
    })
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
        .map(|saved| format!("{} is left as it is: no manifest describes it any more", saved.pod))
        .collect()
}
