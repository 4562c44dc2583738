//! Why the agent says no to a caller.

use tonic::Status;

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
