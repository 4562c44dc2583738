//! What the API server makes of a pass's request. Pure.

use std::time::Duration;

use super::Accepted;
use crate::model::PodAmounts;

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
    #[error(
        "another client changes the pod at the same time; the amounts are requested once the agent knows the change"
    )]
    Stale,
    /// The API server refuses for now.
    #[error("{reason}")]
    Refused {
        reason: String,
        /// How long the API server asks to wait (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

/// What became of the request that a pass prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Answer {
    /// The pass prepared no request.
    #[default]
    NotAsked,
    /// The API server has not carried it out, and will not.
    NotCarriedOut,
    /// The API server may have carried it out although no answer says so.
    Unanswered,
    /// The API server has accepted it, or the request that took it back.
    Accepted(Accepted),
    /// The API server has accepted it. The request that takes it back, to these amounts, has no answer.
    TakingBack(PodAmounts),
}

impl Answer {
    /// What became of a request that ended with this error.
    pub const fn of_error(error: &ResizeError) -> Self {
        match error {
            ResizeError::Unsupported { .. } | ResizeError::Gone(_) | ResizeError::Denied(_) | ResizeError::Stale => {
                Self::NotCarriedOut
            }
            ResizeError::Altered(_) | ResizeError::Away(_) | ResizeError::Refused { .. } => Self::Unanswered,
        }
    }

    /// The request that the API server has accepted last.
    pub const fn accepted(&self) -> Option<&Accepted> {
        match self {
            Self::Accepted(accepted) => Some(accepted),
            Self::NotAsked | Self::NotCarriedOut | Self::Unanswered | Self::TakingBack(_) => None,
        }
    }
}

/// How the API server answered a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub answer: Answer,
    /// Why a rule denies the request. The pass writes the values that were granted before.
    pub denied: Option<String>,
    /// The API server did not show the spec before the pass wrote amounts of the pod's object, which may be older.
    pub unread: bool,
    /// The API server cannot resize any pod in place.
    pub unsupported: bool,
    /// The pass sent no request: the node has no room for the targets.
    pub no_room: bool,
    /// How long to wait before the next request.
    pub retry_after: Option<Duration>,
}
