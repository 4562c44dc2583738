//! What can go wrong between vscaled and a container runtime, with the call, the socket and the container named.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

/// A call to the runtime failed. The agent tried nothing else and used no partial answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{method}{} at {}: {problem}", container.as_ref().map(|id| format!(" of container {id}")).unwrap_or_default(), socket.display())]
pub struct RuntimeError {
    /// The method's name in CRI.
    pub method: &'static str,
    pub socket: Arc<Path>,
    /// The container's id, if the call is about one container.
    pub container: Option<String>,
    pub problem: Problem,
}

impl RuntimeError {
    /// Whether the same call may succeed later although nothing else changes: the runtime is away, slow or busy.
    ///
    /// False for `Refused` with [`Code::Unknown`] or [`Code::Internal`]: runtimes report a write that the kernel refused so.
    /// The caller then reads the container again and makes a new plan.
    pub const fn is_retryable(&self) -> bool {
        match &self.problem {
            Problem::NoSocket | Problem::Unavailable { .. } | Problem::Deadline { .. } => true,
            Problem::Refused { code, .. } => matches!(
                code,
                Code::Unavailable | Code::Aborted | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled
            ),
            _ => false,
        }
    }

    /// Whether the runtime says that the container does not exist, or no longer exists. This is common.
    pub const fn is_not_found(&self) -> bool {
        matches!(self.problem, Problem::NotFound)
    }
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the socket does not exist: is the runtime running, and is its socket's directory mounted here?")]
    NoSocket,
    /// No process answers at the socket, or the connection broke.
    #[error("the runtime is unavailable: {cause}; {next}")]
    Unavailable {
        /// The error of the kernel or of the transport.
        cause: String,
        /// What an operator should check.
        next: &'static str,
    },
    /// The runtime accepted the connection and did not answer in time. An update may or may not have happened.
    #[error("no answer within {limit:?}; the runtime hangs or the node is overloaded (is the kubelet stuck as well?)")]
    Deadline { limit: Duration },
    /// The runtime does not have this call.
    #[error("the runtime does not implement this call")]
    Unimplemented,
    /// The runtime does not know the container.
    #[error("the runtime knows no such container; it may have been removed meanwhile")]
    NotFound,
    /// The runtime answered with an error.
    #[error("the runtime refused ({code:?}): {message}")]
    Refused {
        /// gRPC's class of the error.
        code: Code,
        message: String,
    },
    /// The runtime's answer contradicts itself, the question or the protocol.
    #[error("the runtime's answer makes no sense: {what}")]
    Nonsense { what: String },
    /// The process at the socket is not a CRI v1 runtime.
    #[error("no CRI v1 runtime is behind this socket: {cause}; {next}")]
    NotCri {
        cause: String,
        /// What an operator should check.
        next: &'static str,
    },
    /// A CRI runtime whose cgroup names the agent does not know.
    #[error("{name:?} is not a supported runtime; supported are containerd, cri-o and docker (cri-dockerd)")]
    UnknownRuntime { name: String },
    /// The client refused the request and did not send it.
    #[error("{field} must be {allowed}, not {value}; nothing was sent")]
    Invalid {
        /// The field of the request.
        field: &'static str,
        value: i64,
        allowed: &'static str,
    },
}

impl Problem {
    pub(super) fn nonsense(what: impl Into<String>) -> Self {
        Self::Nonsense { what: what.into() }
    }
}

impl From<&Status> for Problem {
    /// A status without a source is the runtime's answer. A status with a source is an error of the transport.
    fn from(status: &Status) -> Self {
        let message = status.message().to_owned();
        if let Some(source) = status.source() {
            return of_transport(status.code(), source);
        }
        match status.code() {
            Code::Unimplemented => Self::Unimplemented,
            Code::NotFound => Self::NotFound,
            // prost's message, wrapped by tonic in this process: the bytes were no protocol buffer of the expected type.
            Code::Internal if message.starts_with("failed to decode Protobuf") => Self::nonsense(message),
            // cri-dockerd passes docker's message on, without a code of its own.
            Code::Unknown if message.contains("No such container: ") => Self::NotFound,
            code => Self::Refused { code, message },
        }
    }
}

fn of_transport(code: Code, source: &(dyn Error + 'static)) -> Problem {
    let mut cause = source.to_string();
    let mut next = Some(source);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                io::ErrorKind::NotFound => Problem::NoSocket,
                kind => Problem::Unavailable {
                    cause: error.to_string(),
                    next: advice(kind),
                },
            };
        }
        cause = error.to_string();
        next = error.source();
    }
    // tonic maps HTTP/2's protocol errors to Internal: what came back was not HTTP/2.
    if code == Code::Internal {
        return Problem::NotCri {
            cause,
            next: "give the socket of containerd, CRI-O or cri-dockerd",
        };
    }
    Problem::Unavailable {
        cause,
        next: advice(io::ErrorKind::ConnectionReset),
    }
}

const fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => "nobody listens at the socket: the runtime is stopped or still starting",
        io::ErrorKind::PermissionDenied => "connecting needs root",
        _ => "the connection broke: the runtime stopped or restarted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(problem: Problem) -> RuntimeError {
        RuntimeError {
            method: "UpdateContainerResources",
            socket: Path::new("/run/x.sock").into(),
            container: Some("abc".into()),
            problem,
        }
    }

    #[test]
    fn an_error_names_the_call_the_container_and_the_socket() {
        let error = error(Problem::from(&Status::unknown(
            "failed to write: device or resource busy",
        )));
        assert_eq!(
            error.to_string(),
            "UpdateContainerResources of container abc at /run/x.sock: the runtime refused (Unknown): failed to write: \
             device or resource busy"
        );
    }

    #[test]
    fn a_write_the_kernel_refused_is_not_simply_tried_again() {
        assert!(!error(Problem::from(&Status::unknown("EBUSY"))).is_retryable());
        assert!(error(Problem::from(&Status::unavailable("server is not initialized yet"))).is_retryable());
        assert!(error(Problem::Deadline { limit: Duration::ZERO }).is_retryable());
    }

    #[test]
    fn a_removed_container_is_told_apart() {
        assert!(error(Problem::from(&Status::not_found("no such container"))).is_not_found());
        let dockers = Status::unknown("Error response from daemon: No such container: 0123abcd");
        assert!(error(Problem::from(&dockers)).is_not_found());
        assert!(!error(Problem::Unimplemented).is_not_found());
    }
}
