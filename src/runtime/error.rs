//! The errors of calls to a container runtime, with the call, the socket and the container named.

use std::error::Error;
use std::fmt::Display;
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
            Problem::NoSocket | Problem::Unavailable(_) | Problem::Deadline { .. } => true,
            Problem::Refused { code, .. } => matches!(
                code,
                Code::Unavailable | Code::Aborted | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled
            ),
            _ => false,
        }
    }

    /// Whether the runtime cannot be reached at all.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self.problem, Problem::NoSocket | Problem::Unavailable(_))
    }

    /// Whether the runtime did not answer in time.
    pub const fn is_late(&self) -> bool {
        matches!(self.problem, Problem::Deadline { .. })
    }

    /// Whether the runtime says that the container does not exist, or no longer exists. This is common.
    pub const fn is_not_found(&self) -> bool {
        matches!(self.problem, Problem::NotFound)
    }
}

/// Parts of messages about a container that has ended: docker's, and CRI-O's before and after it removes one
/// (`container_update_resources.go`).
const HAS_ENDED: [&str; 4] = [
    "No such container: ",
    "container is marked for removal",
    "is not running or created state: stopped",
    " not found: ID does not exist",
];

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the socket does not exist: is the runtime running, and is its socket's directory mounted here?")]
    NoSocket,
    /// No process answers at the socket, or the connection broke: the error of the kernel or of the transport, and the
    /// next step of an operator.
    #[error("the runtime is unavailable: {0}")]
    Unavailable(String),
    /// The runtime accepted the connection and did not answer in time. An update may or may not have happened.
    #[error("no answer within {limit:?}; the runtime hangs or the node is overloaded (is the kubelet stuck as well?)")]
    Deadline { limit: Duration },
    #[error("the runtime does not implement this call")]
    Unimplemented,
    #[error("the runtime knows no such container; it may have been removed meanwhile")]
    NotFound,
    #[error("the runtime refused ({code:?}): {message}")]
    Refused {
        /// gRPC's class of the error.
        code: Code,
        message: String,
    },
    /// The runtime's answer makes no sense, the process at the socket is not a CRI v1 runtime that the agent supports, or the
    /// request cannot be sent.
    #[error("{0}")]
    Unusable(String),
}

impl Problem {
    /// The runtime's answer contradicts itself, the question or the protocol.
    pub(super) fn nonsense(what: impl Display) -> Self {
        Self::Unusable(format!("the runtime's answer makes no sense: {what}"))
    }

    /// The process at the socket is not a CRI v1 runtime; `next` is the next step of an operator.
    pub(super) fn not_cri(cause: impl Display, next: &str) -> Self {
        Self::Unusable(format!("no CRI v1 runtime is behind this socket: {cause}; {next}"))
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
            // cri-dockerd and CRI-O's updates have messages without a code of their own.
            Code::Unknown if HAS_ENDED.iter().any(|text| message.contains(text)) => Self::NotFound,
            code => Self::Refused { code, message },
        }
    }
}

fn of_transport(code: Code, source: &(dyn Error + 'static)) -> Problem {
    let causes = || anyhow::Chain::new(source);
    let unavailable = |cause: String, kind| Problem::Unavailable(format!("{cause}; {}", advice(kind)));
    match causes().find_map(|error| error.downcast_ref::<io::Error>()) {
        Some(error) if error.kind() == io::ErrorKind::NotFound => return Problem::NoSocket,
        Some(error) => return unavailable(error.to_string(), error.kind()),
        None => {}
    }
    let innermost = causes().next_back().map(ToString::to_string).unwrap_or_default();
    // tonic maps HTTP/2's protocol errors to Internal: what came back was not HTTP/2.
    if code == Code::Internal {
        return Problem::not_cri(innermost, "give the socket of containerd, CRI-O or cri-dockerd");
    }
    unavailable(innermost, io::ErrorKind::ConnectionReset)
}

const fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => "nothing listens at the socket: the runtime is stopped or still starting",
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
    fn an_error_names_call_container_and_socket() {
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
    fn a_refused_write_is_not_simply_repeated() {
        assert!(!error(Problem::from(&Status::unknown("EBUSY"))).is_retryable());
        assert!(error(Problem::from(&Status::unavailable("server is not initialized yet"))).is_retryable());
        assert!(error(Problem::Deadline { limit: Duration::ZERO }).is_retryable());
    }

    #[test]
    fn each_problem_tells_what_may_follow() {
        let refused = |code| Problem::Refused {
            code,
            message: String::new(),
        };
        let why = String::new;
        for (problem, is_retryable, is_unreachable, is_late) in [
            (Problem::NoSocket, true, true, false),
            (Problem::Unavailable(why()), true, true, false),
            (Problem::Deadline { limit: Duration::ZERO }, true, false, true),
            (refused(Code::Unavailable), true, false, false),
            (refused(Code::Aborted), true, false, false),
            (refused(Code::ResourceExhausted), true, false, false),
            (refused(Code::DeadlineExceeded), true, false, false),
            (refused(Code::Cancelled), true, false, false),
            (refused(Code::InvalidArgument), false, false, false),
            (refused(Code::PermissionDenied), false, false, false),
            (refused(Code::Internal), false, false, false),
            (Problem::NotFound, false, false, false),
            (Problem::Unimplemented, false, false, false),
            (Problem::Unusable(why()), false, false, false),
        ] {
            let error = error(problem);
            let told = (error.is_retryable(), error.is_unreachable(), error.is_late());
            assert_eq!(told, (is_retryable, is_unreachable, is_late), "{error}");
        }
    }

    #[test]
    fn a_broken_connection_comes_with_advice() {
        for (kind, advice) in [
            (
                io::ErrorKind::NotFound,
                "the socket does not exist: is the runtime running",
            ),
            (io::ErrorKind::ConnectionRefused, "nothing listens at the socket"),
            (io::ErrorKind::PermissionDenied, "connecting needs root"),
            (io::ErrorKind::BrokenPipe, "the connection broke"),
        ] {
            let status = Status::from_error(Box::new(io::Error::from(kind)));
            let error = error(Problem::from(&status));
            assert!(error.is_unreachable() && error.to_string().contains(advice), "{error}");
        }
    }

    #[test]
    fn an_undecodable_answer_makes_no_sense() {
        let undecodable = Status::internal("failed to decode Protobuf message: invalid tag");
        let problem = Problem::from(&undecodable).to_string();
        assert!(
            problem.starts_with("the runtime's answer makes no sense: "),
            "{problem}"
        );
        let other = Problem::from(&Status::internal("panic"));
        assert!(
            matches!(
                other,
                Problem::Refused {
                    code: Code::Internal,
                    ..
                }
            ),
            "{other}"
        );
    }

    #[test]
    fn a_removed_container_is_told_apart() {
        assert!(error(Problem::from(&Status::not_found("no such container"))).is_not_found());
        for message in [
            "Error response from daemon: No such container: 0123abcd",
            "Cannot update container 0123abcd: container is marked for removal and cannot be \"update\"",
            "container 0123abcd is not running or created state: stopped",
            "container with ID starting with 0123abcd not found: ID does not exist",
        ] {
            assert!(
                error(Problem::from(&Status::unknown(message))).is_not_found(),
                "{message}"
            );
        }
        let paused = Status::unknown("container 0123abcd is not running or created state: paused");
        assert!(!error(Problem::from(&paused)).is_not_found());
        assert!(!error(Problem::Unimplemented).is_not_found());
    }
}
