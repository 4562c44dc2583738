//! What the agent offers to callers at the socket, and how it says no.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::broadcast;
use tonic::Status;

use super::proto::{
    Change, DoctorReply, ExplainReply, ExplainRequest, GetReply, GetRequest, HistoryReply, HistoryRequest,
    OomListReply, OomListRequest, ReleaseReply, ReleaseRequest, ResizeReply, ResizeRequest,
};

/// Who calls: what the kernel recorded about the peer when it connected (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Process, 0 if it lives in a pid namespace that is not visible from here.
    pub pid: i32,
}

/// The agent, as the socket sees it.
///
/// Reads are dropped at any `await` when the caller leaves or the deadline passes. `resize` and `release` run to their
/// end whatever the caller does. A refusal is an error; a change that was tried and did not end well is a
/// [`Change`] with an outcome that says so.
pub trait Backend: Send + Sync + 'static {
    /// Every pod the agent knows.
    fn get(&self, request: GetRequest) -> impl Future<Output = Result<GetReply, ControlError>> + Send;

    fn explain(&self, request: ExplainRequest) -> impl Future<Output = Result<ExplainReply, ControlError>> + Send;

    /// Sets requests and limits by hand, or says which steps that would take.
    ///
    /// The request has passed [`resize_values`](super::resize_values).
    fn resize(
        &self,
        caller: Caller,
        request: ResizeRequest,
    ) -> impl Future<Output = Result<ResizeReply, ControlError>> + Send;

    fn release(
        &self,
        caller: Caller,
        request: ReleaseRequest,
    ) -> impl Future<Output = Result<ReleaseReply, ControlError>> + Send;

    /// What was done lately, newest last.
    fn history(&self, request: HistoryRequest) -> impl Future<Output = Result<HistoryReply, ControlError>> + Send;

    /// What the kernel killed lately, newest last.
    fn oom_list(&self, request: OomListRequest) -> impl Future<Output = Result<OomListReply, ControlError>> + Send;

    /// What is done, and what the kernel kills, from now on. The channel's capacity bounds how far
    /// a watcher may fall behind.
    fn watch(&self) -> broadcast::Receiver<Arc<Change>>;

    /// What the agent finds when it looks at itself and the node.
    fn doctor(&self) -> impl Future<Output = Result<DoctorReply, ControlError>> + Send;

    /// Records that a caller was refused a call that it has no right to. Must not wait.
    fn record_refusal(&self, caller: Caller, call: &'static str, reason: &str);
}

/// Why a request was not carried out; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error(
        "no pod on this node is called {pod:?}{}: `vscalectl get` lists them",
        did_you_mean(nearest)
    )]
    NotFound {
        pod: String,
        /// The names most like it, best first; may be empty.
        nearest: Vec<String>,
    },
    #[error("{pod:?} fits {}: name one of them", candidates.join(" and "))]
    Ambiguous {
        pod: String,
        /// What it may mean, in a notation that is unambiguous.
        candidates: Vec<String>,
    },
    /// The request itself cannot be used.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, as in `containers[0].limits.memory`.
        field: String,
        /// What is wrong with it, and what is allowed.
        message: String,
    },
    /// Understood, and not done; with the numbers that speak against it.
    #[error("{0}")]
    Refused(String),
    /// Not now; trying again later helps.
    #[error("busy: {0}; try again in a moment")]
    Busy(String),
    #[error("{0}")]
    Internal(String),
}

fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => format!(" (did you mean {}?)", names.join(" or ")),
    }
}

impl From<ControlError> for Status {
    fn from(error: ControlError) -> Self {
        let message = error.to_string();
        match error {
            ControlError::NotFound { .. } => Self::not_found(message),
            ControlError::Ambiguous { .. } | ControlError::Invalid { .. } => Self::invalid_argument(message),
            ControlError::Refused(_) => Self::failed_precondition(message),
            ControlError::Busy(_) => Self::resource_exhausted(message),
            ControlError::Internal(_) => Self::internal(message),
        }
    }
}
