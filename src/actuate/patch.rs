//! The stage of a pass that patches the pod's spec, where the kubelet resizes in place.
//!
//! Nothing is patched that could not be done: room on the node is checked before, and room under lower memory limits is
//! made before, as for a write of our own. The cgroups are given what was patched at once when the node is known to have
//! room (the fast path), before the kubelet gets there: what it finds is what it would write, so that its own write, which
//! does not look twice, cannot kill. Where they cannot hold it after all, the patch is taken back: the kubelet would write
//! the lower limit a moment later. The API server is called in one place, behind [`PodResizer`].

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, Shared};

use super::job::JobDone;
use super::node::Node;
use super::pass::Pass;
use crate::failpoint::failpoint;
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, Step, StepRecord};
use crate::plan::resize::{self, AcceptedResize, ResizePatch};

/// The way to the `resize` subresource.
#[tonic::async_trait]
pub trait PodResizer: Debug + Send + Sync {
    /// Makes these changes to the spec of this pod and no other of its name; returns the pod as it is then. With a resource `version`,
    /// only if the pod still has that one.
    ///
    /// Errors: [`ResizeError`], which says what to do about it.
    async fn resize(&self, pod: &Pod, version: &str, changes: &[Step]) -> Result<Pod, ResizeError>;

    /// The pod as the API server has it now, with its resource version.
    ///
    /// Errors: [`ResizeError`].
    async fn read(&self, pod: &Pod) -> Result<Pod, ResizeError>;

    /// Why nobody should wait for the API server now, in a sentence; none while it answers.
    fn away(&self) -> Option<String>;

    /// The same way for what an operator waits for, where that is another one.
    fn for_operators(&self) -> Option<Arc<dyn PodResizer>> {
        None
    }
}

/// The API server did not make the change that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// It, or the pod's kubelet, cannot resize in place at all.
    #[error("no resizing in place here: {0}")]
    Unsupported(String),
    /// There is no such pod any more.
    #[error("{0}")]
    Gone(String),
    /// It made another change: what was wanted, and what it accepted instead.
    #[error("admission made something else of what was asked for: {0}")]
    Altered(String),
    /// A rule says no: a quota, a LimitRange, admission, validation. The same request is refused until a rule changes.
    #[error("{0}")]
    Denied(String),
    /// It does not answer.
    #[error("{0}")]
    Away(String),
    /// The pod is another one than was read, and has to be read before.
    #[error("the pod was changed while the API server was away, and has still to be read")]
    Stale,
    /// It says no for now.
    #[error("{reason}")]
    Refused {
        reason: String,
        /// How long it wants to be left alone, if it says so.
        retry_after: Option<Duration>,
    },
}

/// Done when a prepared resize is on the disk, or cannot be brought there.
pub type Saved = Shared<BoxFuture<'static, ()>>;

/// What a pass leaves to be known about the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiReport {
    /// What it was asked for, and has accepted.
    pub asked: Option<AcceptedResize>,
    /// It knows no resizing in place.
    pub unsupported: bool,
    /// How long it wants to be left alone, if it says so, or is not to be asked.
    pub retry_after: Option<Duration>,
    /// It was not asked: the node has no room for what is wanted.
    pub no_room: bool,
    /// A rule denies what it was asked for, in these words. The kernel is given what was granted before.
    pub denied: Option<String>,
}

/// A spec that was patched, and how to take that back.
#[derive(Debug)]
pub(super) struct PatchedSpec {
    resizer: Arc<dyn PodResizer>,
    /// The pod as it was once it had accepted the patch.
    pub(super) pod: Pod,
    /// What the kubelet had granted before.
    held: Vec<NamedRequirements>,
}

impl Pass {
    /// Patches the spec, once that is saved.
    pub(super) async fn patch(&mut self, patch: &ResizePatch) -> Result<PatchedSpec, ResizeError> {
        let Some(resizer) = self.job.resizer.clone() else {
            return Err(ResizeError::Unsupported("no API server".to_owned()));
        };
        if let Some(saved) = self.job.saved.take() {
            saved.await;
            failpoint("patch.saved");
        }
        let known = Arc::clone(self.job.targets.bound.object());
        let pod = if patch.ahead {
            let pod = resizer.read(&known).await?;
            let same = pod.metadata.generation == known.metadata.generation
                && resize::same(&pod.requirements(), &known.requirements());
            let version = pod.metadata.resource_version.clone();
            match (same, patch.changes.as_slice()) {
                (false, _) => return Err(ResizeError::Stale),
                (true, []) => pod,
                (true, changes) => call(resizer.as_ref(), &known, &version, changes, &mut self.done).await?,
            }
        } else {
            call(resizer.as_ref(), &known, "", &patch.changes, &mut self.done).await?
        };
        self.done.api.asked = Some(patch.accepted(pod.metadata.generation));
        Ok(PatchedSpec {
            resizer,
            pod,
            held: patch.held.clone(),
        })
    }
}

impl PatchedSpec {
    /// Takes the patch back; the pass tells of it.
    pub(super) async fn undo(mut self, node: &Node, done: &mut JobDone) {
        // What was given in an emergency meanwhile is not taken away either.
        node.least_limits.lift(&self.pod.metadata.uid, &mut self.held);
        let changes = match resize::changes(&self.pod, &self.held) {
            Ok(changes) if changes.is_empty() => return,
            Ok(changes) => changes,
            Err(invalid) => return done.record.outcome.add(&format!("the request stands: {invalid}")),
        };
        match call(self.resizer.as_ref(), &self.pod, "", &changes, done).await {
            Ok(pod) => {
                done.api.asked = Some(AcceptedResize {
                    targets: self.held.clone(),
                    generation: pod.metadata.generation,
                    held: self.held,
                });
            }
            Err(error) => done
                .record
                .outcome
                .add(&format!("the API server did not take the request back: {error}")),
        }
    }
}

/// Calls the API server; the pass tells of it, unless there is no such way.
async fn call(
    resizer: &dyn PodResizer,
    pod: &Pod,
    version: &str,
    changes: &[Step],
    done: &mut JobDone,
) -> Result<Pod, ResizeError> {
    let start = Instant::now();
    let result = resizer.resize(pod, version, changes).await;
    let took = start.elapsed();
    done.record.stages.ask += took;
    if !matches!(result, Err(ResizeError::Unsupported(_) | ResizeError::Away(_))) {
        let record = |step| StepRecord::carried_out(step, took, &result);
        done.record.steps.extend(changes.iter().map(record));
    }
    result
}
