//! The first part of a pass where the kubelet resizes in place: the pod's spec is made to have what is wanted, and what
//! the kubelet says decides what the kernel may hold.
//!
//! Nothing is asked for that could not be done: room on the node is looked at before, and room under lower memory limits
//! is made before, as for a write of our own. The cgroups are given what was asked for at once when the node is known to
//! have room (the fast path), before the kubelet gets there: what it finds is what it would write, so that its own write,
//! which does not look twice, cannot kill. Where they cannot hold it after all, the request is taken back. They are given what the kubelet granted before when it says no. The API server is called in one
//! place, behind [`PodResizer`].

mod ask;
mod undo;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use serde::{Deserialize, Serialize};

use super::job::Job;
use super::least_limits::lift;
use super::node::Node;
use super::pass::Pass;
use crate::model::objects::{Pod, PodId};
use crate::model::{KubeletVersion, NamedRequirements, Step, StepRecord, Withheld};
use crate::plan::Room;
use crate::plan::resize::{self, Phase, Unaskable};

pub(super) use ask::{patch_resize, preview};
use undo::Undo;

/// The way to the `resize` subresource.
#[tonic::async_trait]
pub trait PodResizer: Debug + Send + Sync {
    /// Makes these changes to the spec of the pod with this UID; returns the pod as it is then.
    ///
    /// Errors: [`ResizeError`], which says what to do about it.
    async fn resize(&self, pod: &PodId, changes: &[Step]) -> Result<Pod, ResizeError>;

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
    /// It says no for now, or nothing.
    #[error("{reason}")]
    Refused {
        reason: String,
        /// How long it wants to be left alone, if it says so.
        retry_after: Option<Duration>,
    },
}

/// What was asked of the API server last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcceptedResize {
    /// What the spec was given.
    pub targets: Vec<NamedRequirements>,
    /// The spec's generation with it.
    pub generation: i64,
    /// What the kubelet had granted before.
    pub held: Vec<NamedRequirements>,
}

/// What the API server is about to be asked for. Saved before it is: an agent that is killed in between knows its own
/// request when it sees it in the spec, and does not take it for somebody else's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedResize {
    /// What the spec is to be given.
    pub targets: Vec<NamedRequirements>,
    /// What the kubelet has granted so far: what the spec gets back if the cgroups cannot hold the targets.
    pub held: Vec<NamedRequirements>,
}

impl PreparedResize {
    /// What was asked for, if a pod's spec says that it was. `known` is the last request whose answer was seen.
    #[must_use]
    pub fn carried_out(&self, pod: &Pod, known: Option<&AcceptedResize>) -> Option<AcceptedResize> {
        let spec = pod.requirements();
        let newer = |known: &AcceptedResize| known.generation < pod.metadata.generation;
        let taken_back = known.is_some_and(newer) && resize::same(&self.held, &spec);
        let targets = if known.is_none_or(newer) && resize::same(&self.targets, &spec) {
            &self.targets
        } else if taken_back {
            &self.held
        } else {
            return None;
        };
        Some(AcceptedResize {
            targets: targets.clone(),
            generation: pod.metadata.generation,
            held: self.held.clone(),
        })
    }
}

/// Done when an intention is on the disk, or cannot be brought there.
pub type Saved = Shared<BoxFuture<'static, ()>>;

/// What a pass will ask for, unless there turns out to be no room for it.
#[must_use]
pub fn planned_resize(node: &Node, job: &Job) -> Option<PreparedResize> {
    let asks = |through: &&ResizeTerms| through.urgent.is_none() && through.unreported.is_none();
    let through = job.through.as_ref().filter(asks)?;
    let mut targets = job.targets.containers.clone();
    lift(&mut targets, &node.least_limits.of(&job.targets.bound.live().id.uid));
    let changes = through.changes(job.targets.bound.object(), &targets).ok()?;
    (!changes.is_empty()).then(|| PreparedResize {
        targets,
        held: resize::granted(
            job.targets.bound.object(),
            &Phase::of(job.targets.bound.object()),
            through.held(),
        ),
    })
}

/// How a pass goes through the API server.
#[derive(Debug, Clone)]
pub struct ResizeTerms {
    pub resizer: Arc<dyn PodResizer>,
    /// What was asked for last.
    pub asked: Option<AcceptedResize>,
    /// The node's room, if it is known.
    pub room: Option<Room>,
    /// The kubelet has tried to write what is wanted, and failed, with these words.
    pub failed: Option<String>,
    /// This is an emergency: nothing is asked for until this much later. Nobody has to wait for an answer, and the kubelet
    /// cannot write what it was asked for a moment ago over what was given since.
    pub urgent: Option<Duration>,
    /// The kubelet has not reported the pod's resources yet: nothing is asked for before it has.
    pub unreported: Option<Unreported>,
    /// Nothing is asked for before this; none where nothing is intended.
    pub saved: Option<Saved>,
}

/// The pod's status does not show yet that its kubelet resizes in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreported {
    /// What is waited for, as a sentence.
    pub why: String,
    /// How long at most; unbounded where the kubelet certainly resizes.
    pub wait: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) steps: Vec<StepRecord>,
    pub(super) report: ApiReport,
    /// Why the kernel is given what was granted instead of what is wanted.
    pub(super) withheld: Option<Withheld>,
    /// The pass that made room for what was asked for, and may write it now.
    pub(super) prepared: Option<Box<Pass>>,
    /// The kubelet waits for less to be in use than a memory limit that the cgroups have already.
    pub(super) makes_room: bool,
    /// What to do if what was prepared comes to nothing.
    pub(super) undo: Option<Undo>,
    pub(super) took: Duration,
}

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

impl ResizeTerms {
    /// What was asked for last, if the pod was read before that.
    fn unseen(&self, pod: &Pod) -> Option<&AcceptedResize> {
        self.asked
            .as_ref()
            .filter(|asked| pod.metadata.generation < asked.generation)
    }

    /// What is to be changed in the spec.
    fn changes(&self, pod: &Pod, targets: &[NamedRequirements]) -> Result<Vec<Step>, Unaskable> {
        match self.unseen(pod) {
            Some(asked) if resize::same(&asked.targets, targets) => Ok(Vec::new()),
            _ => resize::changes(pod, targets),
        }
    }

    /// What the kubelet had granted when it was asked last.
    fn held(&self) -> Option<&[NamedRequirements]> {
        self.asked.as_ref().map(|asked| asked.held.as_slice())
    }

    /// Whether the node has room for a pod with these amounts.
    fn fits(&self, pod: &Pod, targets: &[NamedRequirements], kubelet: KubeletVersion) -> Result<(), String> {
        match &self.room {
            Some(room) => resize::check_room(room, pod, targets, kubelet).map_err(|full| full.to_string()),
            None if !resize::grows(pod, targets, kubelet) => Ok(()),
            None => Err("the kubelet has not answered, and how much room the node has is not known".to_owned()),
        }
    }
}
