//! The client at the socket, by which `vscalectl` calls the agent.
//!
//! A client connects, calls and leaves; it retries nothing. It tolerates agents of other versions: it ignores unknown
//! fields, and reports a call that the agent does not know.

use std::error::Error;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};

use super::proto::control_client::ControlClient;
use super::proto::{
    Change, ChangeReply, DoctorReply, DoctorRequest, ExplainReply, ExplainRequest, GetReply, GetRequest, HistoryReply,
    HistoryRequest, OomListReply, OomListRequest, ReleaseRequest, ReportReply, ReportRequest, ResizeRequest,
    WatchRequest,
};
use crate::model::micros;

/// The longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest wait for the answer to a read: a little longer than the deadline of the agent.
const READ: Duration = Duration::from_secs(15);
/// The longest wait for a change.
const CHANGE: Duration = Duration::from_secs(65);

/// The reason why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens at the socket, the connection ended before the answer, or the answer is late.
    #[error("{0}")]
    NoAgent(String),
    /// This user may not use the socket.
    #[error("{0}")]
    Denied(String),
    #[error("{0:?} is not a usable socket path")]
    Path(PathBuf),
    /// The agent is of another version.
    #[error("the running vscaled does not know this command: it is of another version than this vscalectl ({})", env!("CARGO_PKG_VERSION"))]
    Unknown,
    #[error("{}", .0.message())]
    Answer(Status),
}

/// The error of a connection that ended before the answer, for this reason.
fn lost(socket: &Path, reason: &str) -> ClientError {
    ClientError::NoAgent(format!(
        "{} closed the connection ({reason}): vscaled may be stopping or overloaded; `vscalectl history` shows what was done",
        socket.display()
    ))
}

/// A connection to the agent.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    inner: ControlClient<Channel>,
}

impl Client {
    /// Connects to the agent at `socket`.
    ///
    /// Errors: [`ClientError::NoAgent`], [`ClientError::Denied`] or [`ClientError::Path`].
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let unusable = || ClientError::Path(socket.to_owned());
        let path = socket.to_str().filter(|path| !path.is_empty()).ok_or_else(unusable)?;
        let channel = Endpoint::from_shared(format!("unix:{path}"))
            .map_err(|_invalid| unusable())?
            .connect_timeout(CONNECT)
            .connect()
            .await
            .map_err(|error| no_connection(socket, &error))?;
        Ok(Self {
            socket: socket.to_owned(),
            inner: ControlClient::new(channel),
        })
    }

    /// Every pod that the agent knows.
    pub async fn get(&mut self) -> Result<GetReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.get(GetRequest { usage: false })).await
    }

    /// Every pod that the agent knows, with its use and its recommendation.
    pub async fn get_with_usage(&mut self) -> Result<GetReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.get(GetRequest { usage: true })).await
    }

    /// One pod's recommendation, decision, values and latest changes.
    pub async fn explain(&mut self, pod: String) -> Result<ExplainReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.explain(ExplainRequest { pod })).await
    }

    /// Sets requests and limits by hand, or returns the steps of that.
    pub async fn resize(&mut self, request: ResizeRequest) -> Result<ChangeReply, ClientError> {
        answer_within(CHANGE, &self.socket, self.inner.resize(request)).await
    }

    /// Ends an override, or several.
    pub async fn release(&mut self, request: ReleaseRequest) -> Result<ChangeReply, ClientError> {
        answer_within(CHANGE, &self.socket, self.inner.release(request)).await
    }

    /// The agent's checks of itself and of the node.
    pub async fn doctor(&mut self) -> Result<DoctorReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.doctor(DoctorRequest {})).await
    }

    /// The latest changes of one pod, or of all pods if `pod` is empty; newest last.
    pub async fn history(&mut self, pod: String) -> Result<HistoryReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.history(HistoryRequest { pod })).await
    }

    /// The requests of workloads before and now, and the kills, evictions and restarts that the agent avoided, `since` so
    /// long ago or since the agent's start.
    pub async fn report(&mut self, since: Option<Duration>) -> Result<ReportReply, ClientError> {
        let request = ReportRequest {
            since_us: since.map(micros),
        };
        answer_within(READ, &self.socket, self.inner.report(request)).await
    }

    /// The latest kills in one pod, or on the node if `pod` is empty; newest last.
    pub async fn oom_list(&mut self, pod: String) -> Result<OomListReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.oom_list(OomListRequest { pod })).await
    }

    /// The changes and kills from now on.
    pub async fn watch(&mut self) -> Result<Watch, ClientError> {
        let answer = self.inner.watch(WatchRequest {});
        let changes = answer_within(READ, &self.socket, answer).await?;
        Ok(Watch {
            socket: self.socket.clone(),
            changes,
        })
    }
}

/// The stream of changes that [`Client::watch`] opens.
#[derive(Debug)]
pub struct Watch {
    socket: PathBuf,
    changes: Streaming<Change>,
}

impl Watch {
    /// Waits for the next change.
    ///
    /// Errors: [`ClientError::NoAgent`] when the agent stops, or another [`ClientError`].
    pub async fn next(&mut self) -> Result<Change, ClientError> {
        match self.changes.message().await {
            Ok(Some(change)) => Ok(change),
            Ok(None) => Err(lost(&self.socket, "no more changes")),
            Err(status) => Err(no_answer(&self.socket, status)),
        }
    }
}

fn no_connection(socket: &Path, error: &tonic::transport::Error) -> ClientError {
    let shown = socket.display();
    let mut causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source());
    let cause = causes.find_map(|error| error.downcast_ref::<io::Error>());
    let reason = match cause.map(io::Error::kind) {
        Some(io::ErrorKind::PermissionDenied) => {
            let who = entitled(socket);
            return ClientError::Denied(format!("{shown} may be used by {who} only: try sudo"));
        }
        Some(io::ErrorKind::InvalidInput) => return ClientError::Path(socket.to_owned()),
        // EAGAIN: more callers wait than the kernel keeps.
        Some(io::ErrorKind::WouldBlock) => return lost(socket, "too many callers"),
        Some(io::ErrorKind::NotFound) => "there is no such socket".to_owned(),
        Some(io::ErrorKind::ConnectionRefused) => "no process listens there".to_owned(),
        _ => cause.map_or_else(|| error.to_string(), ToString::to_string),
    };
    ClientError::NoAgent(format!(
        "no vscaled answers at {shown}: {reason}; start it with `vscaled run`, or name its socket with --socket or VSCALED_SOCKET"
    ))
}

/// The users whom the socket's file lets connect.
fn entitled(socket: &Path) -> String {
    let file = socket.metadata().ok().filter(|file| file.mode() & 0o060 != 0);
    let group = file.and_then(|file| nix::unistd::Group::from_gid(file.gid().into()).ok().flatten());
    match group {
        Some(group) => format!("root and members of the group {}", group.name),
        None => "root".to_owned(),
    }
}

async fn answer_within<T>(
    deadline: Duration,
    socket: &Path,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, ClientError> {
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(no_answer(socket, status)),
        Err(_elapsed) => Err(ClientError::NoAgent(format!(
            "{} did not answer within {deadline:?}: vscaled hangs or is stopped; its log may say why",
            socket.display()
        ))),
    }
}

fn no_answer(socket: &Path, status: Status) -> ClientError {
    // A status from the agent has no source. tonic makes a status with a source out of a broken connection.
    let broken = status.source().is_some();
    match status.code() {
        Code::Unimplemented => ClientError::Unknown,
        code if broken || code == Code::Unavailable => lost(socket, status.message()),
        _ => ClientError::Answer(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_of_another_version_is_named_as_such() {
        let error = no_answer(Path::new("/s"), Status::unimplemented("no such call"));
        assert!(matches!(error, ClientError::Unknown), "{error:?}");
        assert!(error.to_string().contains("of another version"));
    }

    #[test]
    fn what_the_agent_says_is_told_from_what_broke() {
        let said = no_answer(Path::new("/s"), Status::unknown("the agent's words"));
        assert_eq!(said.to_string(), "the agent's words");
        let broke = Status::from_error(Box::new(io::Error::from(io::ErrorKind::ConnectionReset)));
        let broke = no_answer(Path::new("/s"), broke);
        assert!(matches!(broke, ClientError::NoAgent(_)) && broke.to_string().starts_with("/s closed the connection"));
    }
}
