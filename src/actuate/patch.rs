//! The stage of a pass that patches the pod's spec, where the kubelet resizes in place.
//!
//! The patch has only the amounts that change, and the version of the pod that a watch has shown, so it overwrites no amount that
//! another client has set meanwhile. If the API server has a later version, the pass reads the pod, and patches that version. Where
//! an earlier request has no answer, the pass reads the pod first: an error then says nothing about the earlier one.
//!
//! The pass patches only what it could write: before the patch it checks the room on the node, and makes room under lower memory
//! limits, as for its own writes. When the node has room, the pass writes the patched values at once, before the kubelet (the fast
//! path). The kubelet then finds the values that it would write, so its own write, which checks less, cannot kill. Where the
//! cgroups cannot hold the values after all, the pass takes the patch back, because the kubelet would write the lower limit a
//! moment later. [`PodResizer`] is the only way to the API server.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, Shared};

use super::pass::Pass;
use crate::failpoint::failpoint;
use crate::model::objects::Pod;
use crate::model::{Step, StepRecord};
use crate::resize::{Patch, Request, ResizeError};

/// Calls the `resize` subresource.
#[tonic::async_trait]
pub trait PodResizer: Debug + Send + Sync {
    /// Makes these changes to the spec of this pod, if it still has its resource version; returns the changed pod. A pod
    /// without a version is changed in any version.
    ///
    /// Errors: [`ResizeError`]; each variant has its own consequence.
    async fn resize(&self, pod: &Pod, changes: &[Step]) -> Result<Pod, ResizeError>;

    /// Reads the pod from the API server, with its resource version.
    ///
    /// Errors: [`ResizeError`].
    async fn read(&self, pod: &Pod) -> Result<Pod, ResizeError>;

    /// The pod as a watch has last shown it, with its resource version; `None` if that is not known. The API server may have a
    /// later version.
    fn known(&self, _pod: &Pod) -> Option<Pod> {
        None
    }

    /// Why callers should not wait for the API server now, in a sentence; `None` while it answers.
    fn away(&self) -> Option<String>;

    /// The rights that the agent's calls lack, a sentence each, as far as none of `told` has it.
    fn missing_rights(&self, _told: &[String]) -> Vec<String> {
        Vec::new()
    }

    /// The resizer for requests that an operator waits for, where it is another one.
    fn for_operators(&self) -> Option<Arc<dyn PodResizer>> {
        None
    }
}

/// Completes when the state from which a pass was begun is on the disk, or cannot be saved, for this reason.
pub type Saved = Shared<BoxFuture<'static, Result<(), String>>>;

/// So long a pass waits for an object that it could do without: undone shrinks and operators wait behind it.
const SOON: Duration = Duration::from_secs(2);

/// How often a pass computes a request again that met another write of the pod, such as of its status.
const MOST_CONFLICTS: usize = 8;

impl Pass {
    /// Patches the spec, after the prepared resize is saved. Returns the pod after the patch.
    pub(super) async fn patch(&mut self, patch: &Patch) -> Result<Pod, ResizeError> {
        if let Some(saved) = self.job.saved.take().filter(|_| self.job.resizer.is_some()) {
            // An agent that is killed after the call recognises its own request in the spec by what is saved. A recommendation does not
            // wait for a disk with room, of which the agent has a problem.
            let problem = saved.await.err();
            tracing::debug!(problem, "waited for the disk");
            failpoint("patch.saved");
        }
        let resizer = self.resizer()?;
        // A read that is not answered changes nothing, so it comes first where the API server may be away.
        let is_patched_first = !patch.changes.is_empty() && !patch.reads_first && resizer.away().is_none();
        let object = Some(self.job.targets.bound.object()).filter(|_| is_patched_first);
        let mut known = object
            .and_then(|object| resizer.known(object))
            .filter(|known| known.requirements().same(&patch.from));
        for _ in 0..MOST_CONFLICTS {
            let read = self.pod_to_patch(known.take(), patch).await?;
            let pod = if patch.changes.is_empty() {
                read
            } else {
                let sent = self.call_resize(&read, &patch.changes).await;
                if let Err(ResizeError::Stale) = sent {
                    continue;
                }
                if let Err(error) = &sent {
                    // Before it ends the stage: the request may be carried out all the same.
                    self.done.api.answer = Some(Err(error.clone()));
                }
                sent?
            };
            failpoint("pass.patched");
            return Ok(pod);
        }
        Err(ResizeError::Stale)
    }

    /// The pod in the version that the patch names: the `known` one, or else as the API server has it.
    ///
    /// Errors: [`ResizeError::Stale`] if that has another spec than the patch was computed for; as of a read.
    async fn pod_to_patch(&mut self, known: Option<Pod>, patch: &Patch) -> Result<Pod, ResizeError> {
        let pod = match known {
            Some(known) => known,
            None => match self.read().await {
                // A rule that denies the present amounts, such as a LimitRange that came later, may admit the wanted ones. The
                // pod of the job has no version.
                Err(ResizeError::Denied(_)) if !patch.changes.is_empty() => Pod::clone(self.job.targets.bound.object()),
                read => read?,
            },
        };
        // What was read has what the API server would fill in.
        if !pod.metadata.resource_version.is_empty() && !patch.from.are_in(&pod.requirements()) {
            return Err(ResizeError::Stale);
        }
        Ok(pod)
    }

    /// Takes a patch back as far as the spec still has it, so that the spec has the values that the kubelet had granted before.
    pub(super) async fn undo_patch(&mut self, mut patched: Pod, patch: &Patch) {
        let mut held = patch.request.held.clone();
        // Keeps the limits that the guard has raised meanwhile.
        self.node.least_limits.lift(self.uid(), &mut held);
        let back = patch.taken_back(held);
        let mut undone = Err(ResizeError::Stale);
        for _ in 0..MOST_CONFLICTS {
            let changes = match patch.undo(&patched, &back) {
                Ok(changes) if changes.is_empty() => return,
                Ok(changes) => changes,
                Err(invalid) => {
                    let why = format!("cannot withdraw the request: {invalid}");
                    return self.done.record.outcome.add(&why);
                }
            };
            undone = self.call_resize(&patched, &changes).await;
            if !matches!(undone, Err(ResizeError::Stale)) {
                break;
            }
            match self.read().await {
                Ok(read) => patched = read,
                Err(error) => {
                    undone = Err(error);
                    break;
                }
            }
        }
        match undone {
            Ok(pod) => {
                let generation = pod.metadata.generation;
                self.done.api.answer = Some(Ok(Request { generation, ..back }));
            }
            Err(error) => {
                let why = format!("cannot withdraw the request: {error}");
                self.done.record.outcome.add(&why);
                self.done.api.answer = Some(Err(ResizeError::NotTakenBack(back.targets)));
            }
        }
    }

    /// Reads the pod from the API server, unless that does not answer anyway, or not soon.
    pub(super) async fn read_soon(&mut self) -> Result<Pod, ResizeError> {
        if let Some(why) = self.resizer()?.away() {
            return Err(ResizeError::Away(why));
        }
        let read = tokio::time::timeout(SOON, self.read()).await;
        read.unwrap_or_else(|_| {
            let why = format!("the API server did not show the pod within {} s", SOON.as_secs());
            Err(ResizeError::Away(why))
        })
    }

    /// Reads the pod from the API server.
    async fn read(&mut self) -> Result<Pod, ResizeError> {
        let start = Instant::now();
        let read = self.resizer()?.read(self.job.targets.bound.object()).await;
        self.done.record.stages.ask += start.elapsed();
        if let Ok(pod) = &read {
            self.done.api.forgotten |= self.job.accepted_generation > Some(pod.metadata.generation);
        }
        read
    }

    /// Calls the API server, and records the steps, unless it cannot be reached, cannot resize, or has another version.
    async fn call_resize(&mut self, pod: &Pod, changes: &[Step]) -> Result<Pod, ResizeError> {
        let start = Instant::now();
        let result = self.resizer()?.resize(pod, changes).await;
        let took = start.elapsed();
        self.done.record.stages.ask += took;
        tracing::debug!(
            ?took,
            error = result.as_ref().err().map(tracing::field::display),
            "pods/resize was called"
        );
        if !matches!(
            result,
            Err(ResizeError::Unsupported { .. } | ResizeError::Away(_) | ResizeError::Stale)
        ) {
            let record = |step| StepRecord::carried_out(step, took, &result);
            self.done.record.steps.extend(changes.iter().map(record));
        }
        result
    }

    fn resizer(&self) -> Result<&dyn PodResizer, ResizeError> {
        self.job.resizer.as_deref().ok_or_else(|| ResizeError::Unsupported {
            why: "no API server".to_owned(),
            everywhere: true,
        })
    }
}

#[cfg(test)]
mod tests;
