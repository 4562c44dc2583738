//! The stage of a pass that patches the pod's spec, where the kubelet resizes in place.
//!
//! The pass patches only what it could write: before the patch it checks the room on the node, and makes room under lower
//! memory limits, as for its own writes. When the node has room, the pass writes the patched values at once, before the kubelet
//! (the fast path). The kubelet then finds the values that it would write, so its own write, which checks less, cannot kill.
//! Where the cgroups cannot hold the values after all, the pass takes the patch back, because the kubelet would write the lower
//! limit a moment later. [`PodResizer`] is the only way to the API server.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, Shared};

use super::pass::Pass;
use crate::failpoint::failpoint;
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, Step, StepRecord};
use crate::plan::resize::{self, AcceptedResize, ResizePatch};

/// Calls the `resize` subresource.
#[tonic::async_trait]
pub trait PodResizer: Debug + Send + Sync {
    /// Makes these changes to the spec of this pod, but not of another pod with its name; returns the changed pod. With a
    /// resource `version`, only if the pod still has that version.
    ///
    /// Errors: [`ResizeError`]; each variant has its own consequence.
    async fn resize(&self, pod: &Pod, version: &str, changes: &[Step]) -> Result<Pod, ResizeError>;

    /// Reads the pod from the API server, with its resource version.
    ///
    /// Errors: [`ResizeError`].
    async fn read(&self, pod: &Pod) -> Result<Pod, ResizeError>;

    /// Why callers should not wait for the API server now, in a sentence; `None` while it answers.
    fn away(&self) -> Option<String>;

    /// The resizer for requests that an operator waits for, where it is another one.
    fn for_operators(&self) -> Option<Arc<dyn PodResizer>> {
        None
    }
}

/// The API server did not make the requested change.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// The API server cannot resize in place, `everywhere` or because of the pod's kubelet.
    #[error("no resizing in place here: {why}")]
    Unsupported { why: String, everywhere: bool },
    /// The pod no longer exists.
    #[error("{0}")]
    Gone(String),
    /// Admission made another change. The text names both.
    #[error("admission made something else of what was asked for: {0}")]
    Altered(String),
    /// A quota, a LimitRange, admission or validation denies the request, and will until a rule changes.
    #[error("{0}")]
    Denied(String),
    /// The API server does not answer.
    #[error("{0}")]
    Away(String),
    /// The pod has changed since the agent read it, and must be read again.
    #[error("the pod was changed while the API server was away, and has still to be read")]
    Stale,
    /// The API server refuses for now.
    #[error("{reason}")]
    Refused {
        reason: String,
        /// How long the API server asks to wait (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

/// Completes when a prepared resize is on the disk, or cannot be written.
pub type Saved = Shared<BoxFuture<'static, ()>>;

/// How the API server answered a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiReport {
    /// The request that the API server has accepted.
    pub asked: Option<AcceptedResize>,
    /// The amounts of a request that takes an accepted one back, and has no answer. Then `asked` is `None`.
    pub taking_back: Option<Vec<NamedRequirements>>,
    /// The API server cannot resize any pod in place.
    pub unsupported: bool,
    /// How long to wait before the next request.
    pub retry_after: Option<Duration>,
    /// The pass sent no request: the node has no room for the targets.
    pub no_room: bool,
    /// Why a rule denies the request. The pass writes the values that were granted before.
    pub denied: Option<String>,
    /// Whether the API server may have carried out the prepared patch although no answer says so; `None` where the pass
    /// prepared none.
    pub unanswered: Option<bool>,
}

impl Pass {
    /// Patches the spec, after the prepared resize is saved. Returns the pod after the patch.
    pub(super) async fn patch(&mut self, patch: &ResizePatch) -> Result<Pod, ResizeError> {
        if let Some(saved) = self.job.saved.take().filter(|_| self.job.resizer.is_some()) {
            saved.await;
            failpoint("patch.saved");
        }
        let known = Arc::clone(self.job.targets.bound.object());
        let mut read = None;
        if patch.reads_first {
            let pod = read.insert(self.resizer()?.read(&known).await?);
            let (has, had) = (pod.requirements(), known.requirements());
            if pod.metadata.generation != known.metadata.generation || !resize::same(&has, &had) {
                return Err(ResizeError::Stale);
            }
        }
        let pod = match read {
            Some(read) if patch.changes.is_empty() => read,
            read => {
                let version = read.map(|read| read.metadata.resource_version).unwrap_or_default();
                let sent = self.call_resize(&known, &version, &patch.changes).await;
                self.done.api.unanswered = Some(!matches!(sent, Err(ResizeError::Denied(_) | ResizeError::Stale)));
                sent?
            }
        };
        self.done.api.asked = Some(patch.accepted(pod.metadata.generation));
        Ok(pod)
    }

    /// Takes a patch back, so that the spec has the values that the kubelet had granted before.
    pub(super) async fn undo_patch(&mut self, patched: &Pod, mut held: Vec<NamedRequirements>) {
        // Keeps the limits that the guard has raised meanwhile.
        self.node.least_limits.lift(&patched.metadata.uid, &mut held);
        let undone = match resize::changes(patched, &held) {
            Ok(changes) if changes.is_empty() => return,
            Ok(changes) => self.call_resize(patched, "", &changes).await,
            Err(invalid) => return self.done.record.outcome.add(&format!("the request stands: {invalid}")),
        };
        match undone {
            Ok(pod) => {
                self.done.api.asked = Some(AcceptedResize {
                    targets: held.clone(),
                    generation: pod.metadata.generation,
                    held,
                });
            }
            Err(error) => {
                let why = format!("the API server did not take the request back: {error}");
                self.done.record.outcome.add(&why);
                (self.done.api.asked, self.done.api.taking_back) = (None, Some(held));
            }
        }
    }

    /// Calls the API server, and records the steps, unless it cannot be reached or cannot resize.
    async fn call_resize(&mut self, pod: &Pod, version: &str, changes: &[Step]) -> Result<Pod, ResizeError> {
        let start = Instant::now();
        let result = self.resizer()?.resize(pod, version, changes).await;
        let took = start.elapsed();
        self.done.record.stages.ask += took;
        if !matches!(result, Err(ResizeError::Unsupported { .. } | ResizeError::Away(_))) {
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
