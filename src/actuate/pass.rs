//! One pass over one pod, stage by stage: observe, make room, patch, write, sync the runtime, verify, undo.
//!
//! The pass writes the kernel's files first, because only they bound the containers: they hold the new values within a
//! millisecond. Where the kubelet does not resize, it updates the runtime next, so that no later update of the stored spec brings
//! the old values back. If the runtime does not answer, the update stays pending and nothing is undone; if the runtime refuses, the pass undoes everything.
//!
//! The state of the pass has what each stage leaves to the next: what it writes towards (`aim`), what it has [`Observed`] for that, and
//! what would have to be undone (`end`).

mod aim;
mod end;
mod kernel;
mod observed;

use std::sync::Arc;
use std::time::Instant;

use super::handles::PodHandles;
use super::job::{Job, JobDone};
use super::least_limits::OfPod;
use super::node::Node;
use super::runtime_stage;
use super::shrink::StepError;
use crate::cgroup::CgroupError;
use crate::failpoint::failpoint;
use crate::model::objects::{Pod, PodUid};
use crate::model::{Cause, ChangeRecord, LivePod, Outcome, Step};
use crate::plan::{PlanError, PodTargets};
use crate::resize::{Act, Grant, Patch, ResizeError};
use crate::slots::Class;

pub(super) use observed::Observed;

/// The state of a running pass.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) node: Arc<Node>,
    pub(super) job: Box<Job>,
    pub(super) done: JobDone,
    /// What the pass writes towards now; the job has what it was begun with.
    pub(super) targets: PodTargets,
    /// As in the job, for these targets.
    held_before: bool,
    /// The pod's cgroups; none before the first observation.
    pub(super) handles: PodHandles,
    /// What the pass has observed for these targets, if it has.
    observed: Option<Box<Observed>>,
    /// The steps on files and units, to undo if the pass fails.
    written: Vec<Step>,
    /// The least limits that the files were written with.
    least_limits: OfPod,
    /// The pod after the patch of this pass.
    patched: Option<(Box<Pod>, Box<Patch>)>,
    /// The grant that the pass writes, where the kubelet resizes the pod. Then the runtime's stored specs are the kubelet's to write: an
    /// update of ours would race the kubelet's own, which may still carry the values from before.
    grant: Option<Grant>,
}

/// The end of a stage: the pass continues with the value, or is over.
type Staged<T> = Result<T, Box<Pass>>;

/// Runs one pass.
///
/// A pass that lowers memory limits may take seconds and waits for most of them, while passes of other pods run. Every pod of
/// a node may have a waiting pass, so the state of a pass is boxed.
pub async fn reconcile(node: Arc<Node>, job: Box<Job>) -> JobDone {
    let (Ok(pass) | Err(pass)) = Box::pin(stages(Pass::new(node, job))).await;
    Box::pin(pass.end()).await
}

async fn stages(pass: Box<Pass>) -> Staged<Box<Pass>> {
    let pass = pass.save_override().await?;
    let pass = pass.find_aim().await?;
    // The files before the runtime: only they bound the containers, and a runtime that hangs must not delay them.
    let pass = pass.run_kernel_stages(Pass::write).await?;
    failpoint("pass.written");
    let pass = pass.sync_runtime().await?;
    let outcome = match pass.done.record.steps.as_slice() {
        [] => Outcome::Unchanged,
        _ => Outcome::Applied,
    };
    Ok(pass.stop(outcome))
}

impl Pass {
    pub(super) fn new(node: Arc<Node>, mut job: Box<Job>) -> Box<Self> {
        let pod = job.targets.bound.live().id.clone();
        let mut record = ChangeRecord::new(pod, job.cause.clone(), Outcome::Unchanged);
        record.stages.decide = job.decided_in;
        let done = JobDone {
            foreign: std::mem::take(&mut job.foreign),
            ..JobDone::new(record)
        };
        Box::new(Self {
            node,
            done,
            targets: job.targets.clone(),
            held_before: job.held_before,
            job,
            handles: PodHandles::default(),
            observed: None,
            written: Vec::new(),
            least_limits: OfPod::default(),
            patched: None,
            grant: None,
        })
    }

    /// Waits until an operator's override is saved, and ends the pass if it cannot be: an agent that is killed after the first write leaves
    /// no value of an operator that its successor does not know.
    async fn save_override(mut self: Box<Self>) -> Staged<Box<Self>> {
        let Some(saved) = self.job.saved.clone().filter(|_| self.job.is_saved_first) else {
            return Ok(self);
        };
        let Err(problem) = saved.await else {
            return Ok(self);
        };
        if matches!(&self.job.resize, Act::Patch(patch) if !patch.changes.is_empty()) {
            self.done.api.answer = Some(Err(ResizeError::NotSent));
        }
        let why = format!("the request cannot be saved, and would not survive a restart of the agent: {problem}");
        Err(self.stop(Outcome::Refused(why)))
    }

    /// Makes the runtime's stored specs agree with the files, if files were to change or the job asks for it.
    async fn sync_runtime(mut self: Box<Self>) -> Staged<Box<Self>> {
        let observed = self.observed.take().filter(|_| self.grant.is_none());
        let is_due = |observed: &Observed| self.job.check_runtime || !observed.plan.steps.is_empty();
        let Some(observed) = observed.filter(|observed| is_due(observed)) else {
            return Ok(self);
        };
        let start = Instant::now();
        let synced = Box::pin(runtime_stage::sync(&mut self, &observed)).await;
        self.done.record.stages.runtime = start.elapsed();
        match synced {
            Ok(()) => Ok(self),
            Err(outcome) => Err(self.stop(outcome)),
        }
    }

    /// Whose slots the pass uses.
    pub(super) fn user(&self) -> (String, Class) {
        let namespace = self.live().id.namespace.clone();
        let cause = &self.job.cause;
        let by_operator = matches!(cause, Cause::Operator { .. } | Cause::Released { .. });
        let is_urgent = by_operator || cause.is_emergency();
        (namespace, if is_urgent { Class::Privileged } else { Class::Ordinary })
    }

    pub(super) fn live(&self) -> &Arc<LivePod> {
        self.targets.bound.live()
    }

    pub(super) fn uid(&self) -> &PodUid {
        &self.live().id.uid
    }

    /// Ends the pass with this outcome.
    fn stop(mut self: Box<Self>, outcome: Outcome) -> Box<Self> {
        self.done.record.outcome = outcome;
        self
    }
}

fn overtaken() -> Outcome {
    Outcome::Interrupted("the guard raised a limit meanwhile".to_owned())
}

/// The end of a pass over a pod whose files cannot be read.
impl From<CgroupError> for Outcome {
    fn from(error: CgroupError) -> Self {
        StepError::from(error).ends(Self::Refused)
    }
}

/// The end of a pass for which no valid order of steps exists.
impl From<PlanError> for Outcome {
    fn from(error: PlanError) -> Self {
        Self::Refused(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::model::BoundPod;
    use crate::plan::WriteScope;
    use crate::plan::shrink::Holds;

    impl Pass {
        /// A pass that gives the container `app` of a pod on plain files, which hold 60 MiB, a limit of 160 MiB.
        pub(in crate::actuate) fn on_plain_files(root: &Path, node: Node) -> Box<Self> {
            for directory in ["pod", "pod/app"] {
                let directory = root.join(directory);
                fs::create_dir_all(&directory).unwrap();
                fs::write(directory.join("memory.current"), format!("{}\n", 60 << 20)).unwrap();
            }
            let limits = json!({"cpu": "1", "memory": "160Mi"});
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
                "spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]},
            }))
            .unwrap();
            let targets = PodTargets {
                amounts: pod.requirements(),
                bound: BoundPod::new(&Arc::new(pod), &Arc::new(LivePod::on_files(["app"]))).unwrap(),
                lift_undeclared: false,
                kubelet_unasked: false,
                scope: WriteScope::all(),
                burst: None,
                holds: Holds::default(),
            };
            Self::new(Arc::new(node), Box::new(Job::new(targets, Cause::PodLevel)))
        }
    }

    #[test]
    fn urgent_passes_use_slots_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
        let (uid, pid, why) = (0, 1, String::new);
        for (cause, class) in [
            (Cause::Sweep, Class::Ordinary),
            (Cause::OverrideEnded, Class::Ordinary),
            (Cause::FailedShrink { why: why() }, Class::Privileged),
            (
                Cause::Operator {
                    uid,
                    pid,
                    reason: why(),
                },
                Class::Privileged,
            ),
            (
                Cause::Released {
                    uid,
                    pid,
                    reason: why(),
                },
                Class::Privileged,
            ),
        ] {
            pass.job.cause = cause;
            assert_eq!(pass.user(), ("shop".to_owned(), class), "{}", pass.job.cause);
        }
    }
}
