//! What goes into a pod's state, and what comes out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Located;
use crate::actuate::shrink::{Lowering, Verdict};
use crate::actuate::{Grown, HookRun, Job, JobDone, PodHandles};
use crate::decide::PodDecision;
use crate::guard::Report;
use crate::model::objects::{Pod, PodId, PodUid};
use crate::model::{BoundPod, Bytes, Cause, ChangeRecord, ContainerName, ControlError, HookEnd, Outcome, Target};
use crate::plan::LowPodLevel;
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::savings::Avoided;
use crate::reconcile::shrink::ShrinkEnd;
use crate::reconcile::store::SavedPod;
use crate::reconcile::work::{OperatorRequest, RequestId};
use crate::resize::Act;

/// Something that happened to a pod.
#[derive(Debug)]
pub(crate) enum PodInput {
    /// The source has a new object of the pod.
    Described(Arc<Pod>),
    /// No source describes the pod any more. This is the last input.
    Removed,
    /// `decide` has a new decision.
    Decided {
        decision: Box<PodDecision>,
        took: Duration,
    },
    /// Bring the decision into force.
    Followed {
        /// Why the node has no room for it.
        refused: Option<String>,
        cause: Option<Cause>,
        delay: Duration,
    },
    /// The node still has no room for the recommendation.
    StillNoRoom(Option<Cause>),
    /// Discovery found the pod's cgroups, or found that they are gone.
    Located(Box<Located>),
    /// Discovery compared the memory limits of the pod and its containers. With `repair`, the agent raises a pod's
    /// cgroup that is too low.
    PodLevelRead {
        low: Option<LowPodLevel>,
        repair: bool,
    },
    /// The agent tried to raise the memory limit of the cgroup of the pod with this UID.
    PodLevelRaised {
        uid: PodUid,
        raised: Box<Grown>,
    },
    TimePassed,
    /// The pod's values may differ from the desired ones.
    Check(Check),
    Requested {
        id: RequestId,
        request: OperatorRequest,
    },
    Admitted {
        id: RequestId,
        request: OperatorRequest,
        capacity: Box<NodeCapacity>,
    },
    /// The agent carries out no request that waits, for this reason.
    RequestsRefused(ControlError),
    OnNode(NodeEvent),
    /// The wall clock was set forward by so much; negative where it was set back.
    ClockSet(SignedDuration),
}

/// Why the pod's values may differ from the desired ones.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Check {
    /// A process wrote the pod's files, or may have done so before the agent began to watch them.
    FilesWritten,
    Swept,
    /// The container runtime answers again.
    RuntimeReturned,
    /// The node's traits changed: every value is planned anew.
    NodeChanged,
    /// The node may have more room.
    RoomFreed,
    /// It is time to try the API server's `resize` subresource again.
    ResizeRetried,
    /// The API server answers again.
    ApiServerReturned,
}

/// What passes, hooks, the guard and the kernel have done to the pod, or are about to do.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    /// The guard grew a limit, refused to, or saw a container become quiet.
    Guard(Box<Report>),
    /// A pass is due. With `true`, the pod's hooks may run.
    PassDue(bool),
    HookEnded {
        run: Box<HookRun>,
        end: HookEnd,
    },
    PassBegan {
        number: u64,
        resize: Box<Act>,
    },
    PassEnded {
        /// The number of the pass.
        pass: u64,
        done: Box<JobDone>,
        /// Temporary memory limits that the API server denied end after this time.
        quiet: SignedDuration,
    },
    /// The agent no longer watches the limits that the pass of this number lowered.
    ShrinkWatchEnded {
        number: u64,
        verdict: Verdict,
    },
    /// The kernel killed a process in this cgroup; `lowered` if a pass had lowered the limit that was hit.
    Killed {
        target: Target,
        at: Timestamp,
        lowered: bool,
    },
    /// It is the pod's turn to lower memory limits.
    TurnGiven,
}

/// A consequence of a change of a pod's state. [`crate::reconcile::controller`] carries every effect out in one place.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Save these pods in this form, or no more. What sources say can wait, but not a spec or a resize.
    Save {
        pods: BTreeMap<PodId, Option<SavedPod>>,
        can_wait: bool,
    },
    /// The limits that the guard watches, or may grow, have changed.
    WatchGuard,
    /// Replace the least memory limits of the pods with these UIDs, by container name.
    SetLeastLimits(BTreeMap<PodUid, BTreeMap<ContainerName, Bytes>>),
    RunPass {
        /// The number of the pass, which counts up over all pods.
        pass: u64,
        job: Box<Job>,
    },
    RunHook(Box<HookRun>),
    /// Raise the memory limit of a pod's cgroup that is below its containers.
    RaisePodLevel {
        bound: BoundPod,
        low: LowPodLevel,
    },
    /// Watch these cgroup files from now on; `None` stops watching.
    WatchFiles(Option<PodHandles>),
    /// Watch these lower limits of the pass with this number from now on, and no earlier ones; `None` stops watching.
    WatchShrink(Option<(u64, Vec<Lowering>)>),
    /// Answer the request with this record, and keep the record in the history if it is news.
    Record {
        record: Box<ChangeRecord>,
        is_news: bool,
        answers: Option<RequestId>,
    },
    /// Spec, status and kernel of the pod with this UID agree on its latest resize.
    Settled(PodUid),
    Refuse {
        request: RequestId,
        error: ControlError,
    },
    /// Check the next operator's request against the node's capacity.
    AdmitRequest {
        id: RequestId,
        request: OperatorRequest,
    },
    /// Decide again: the amounts that a recommendation is compared with have changed, or the trouble or time has come that it waits for.
    Decide,
    /// The agent has avoided a kill, an eviction or throttling.
    Avoided(Avoided),
    /// Lower limits were kept, or undone.
    ShrinkEnded(ShrinkEnd),
    Log(LogLine),
}

/// A line about the pod in the agent's log.
#[derive(Debug)]
pub(crate) enum LogLine {
    /// The reason.
    ChangeLost(String),
    /// The peak use while the hook runs.
    EvidenceLeft(Bytes),
    /// The API server denies this temporary limit.
    Denied(TemporaryLimit),
    /// The recommendation has reached this temporary limit.
    LimitRecommended(TemporaryLimit),
    /// The node has no room for the recommendation with this cause.
    NoRoom {
        cause: Cause,
        why: String,
    },
    PassFailed {
        outcome: Outcome,
        retry_in: Duration,
    },
    Removed,
    SpecChanged,
}
