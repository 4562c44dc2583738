//! The other end of the socket: what `vscalectl` calls the agent with.
//!
//! A client connects, calls and leaves; nothing is retried. Agents of other versions are tolerated: unknown fields are
//! ignored, and a call that the agent does not know is an error that says so.

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

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long to wait for the answer to a read; a little longer than the agent takes to say that it is late.
const READ: Duration = Duration::from_secs(15);
/// How long to wait for a change.
const CHANGE: Duration = Duration::from_secs(65);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket, nobody listens at it, the connection ended before the answer, or there is none for too long.
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

/// The connection ended before the answer; `reason` is what was seen of it.
fn lost(socket: &Path, reason: &str) -> ClientError {
    ClientError::NoAgent(format!(
        "{} broke the connection off ({reason}): vscaled may be stopping or overloaded; `vscalectl history` shows what was done",
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

    /// Every pod the agent knows.
    pub async fn get(&mut self) -> Result<GetReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.get(GetRequest { usage: false })).await
    }

    /// The same, with what each pod uses now and what is recommended for it.
    pub async fn get_with_usage(&mut self) -> Result<GetReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.get(GetRequest { usage: true })).await
    }

    /// One pod's recommendation, decision, values and latest changes.
    pub async fn explain(&mut self, pod: String) -> Result<ExplainReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.explain(ExplainRequest { pod })).await
    }

    /// Sets requests and limits by hand, or shows which steps that would take.
    pub async fn resize(&mut self, request: ResizeRequest) -> Result<ChangeReply, ClientError> {
        answer_within(CHANGE, &self.socket, self.inner.resize(request)).await
    }

    /// Ends an override, or several.
    pub async fn release(&mut self, request: ReleaseRequest) -> Result<ChangeReply, ClientError> {
        answer_within(CHANGE, &self.socket, self.inner.release(request)).await
    }

    /// What the agent finds when it looks at itself and the node.
    pub async fn doctor(&mut self) -> Result<DoctorReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.doctor(DoctorRequest {})).await
    }

    /// What was done lately, to one pod or to all if `pod` is empty; newest last.
    pub async fn history(&mut self, pod: String) -> Result<HistoryReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.history(HistoryRequest { pod })).await
    }

    /// What workloads requested before and now, and what did not happen to them.
    /// That in so much time, if a time is given.
    pub async fn report(&mut self, since: Option<Duration>) -> Result<ReportReply, ClientError> {
        let request = ReportRequest {
            since_us: since.map(micros),
        };
        answer_within(READ, &self.socket, self.inner.report(request)).await
    }

    /// What the kernel killed lately, in one pod or on the node if `pod` is empty; newest last.
    pub async fn oom_list(&mut self, pod: String) -> Result<OomListReply, ClientError> {
        answer_within(READ, &self.socket, self.inner.oom_list(OomListRequest { pod })).await
    }

    /// What is done, and what the kernel kills, from now on.
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
        Some(io::ErrorKind::ConnectionRefused) => "nobody listens there".to_owned(),
        _ => cause.map_or_else(|| error.to_string(), ToString::to_string),
    };
    ClientError::NoAgent(format!(
        "no vscaled answers at {shown}: {reason}; start it with `vscaled run`, or name its socket with --socket or VSCALED_SOCKET"
    ))
}

/// Who the socket's file lets connect.
fn entitled(socket: &Path) -> String {
    let group = socket
        .metadata()
        .ok()
        .filter(|file| file.mode() & 0o060 != 0)
        .and_then(|file| nix::unistd::Group::from_gid(file.gid().into()).ok().flatten());
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
    // A status the agent sent has no source; one made here out of a broken connection names what broke.
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
        assert!(
            matches!(broke, ClientError::NoAgent(_)) && broke.to_string().starts_with("/s broke the connection off")
        );
    }
}
