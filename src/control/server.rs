//! Serves the protocol on a [`ControlSocket`] until told to stop.
//!
//! Every call passes the gate first: the peer must have the right to it, not call too often, and there must be a place
//! for one more call. A read is dropped when its deadline passes or its caller leaves. A change runs in a task of its own to
//! its end, because half a change is worse than a late answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::access::Right;
use super::backend::{Backend, Caller, ControlError};
use super::connections::{Call, Connections, Peer, accept};
use super::convert::resize_values;
use super::proto::control_server::{Control, ControlServer};
use super::proto::{
    Change, DoctorReply, DoctorRequest, ExplainReply, ExplainRequest, GetReply, GetRequest, HistoryReply,
    HistoryRequest, OomListReply, OomListRequest, ReleaseReply, ReleaseRequest, ResizeReply, ResizeRequest,
    WatchRequest,
};
use super::rate::Rate;
use super::socket::ControlSocket;
use super::throttle::Throttle;
use super::watch::changes;

/// Largest request in bytes.
const LARGEST_REQUEST: usize = 64 << 10;
/// Largest answer in bytes.
const LARGEST_ANSWER: usize = 4 << 20;
/// Largest request headers in bytes.
const LARGEST_HEADERS: u32 = 16 << 10;
/// Calls that one connection may have at once.
const CALLS_PER_CONNECTION: u32 = 16;
/// What a connection may have sent in bytes before it is read: a full request and a little more.
const CONNECTION_WINDOW: u32 = 128 << 10;
/// How often a peer is asked whether it still lives, and how long it may take to answer.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How long a peer that waits for nothing may take to hear that the agent stops. One that is itself stopped never does.
const FAREWELL: Duration = Duration::from_secs(1);
/// A refused user is logged once in this time.
const LOG_REFUSALS_EVERY: Duration = Duration::from_secs(60);

/// What callers may use of the agent.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Calls in progress, over all connections.
    pub calls: usize,
    /// Watchers, over all connections.
    pub watchers: usize,
    /// Calls of one user in a second, on average over two.
    pub rate: u32,
    /// How long a read may take.
    pub read_deadline: Duration,
    /// How long a caller waits for a change; the change itself goes on.
    pub change_deadline: Duration,
    /// How long calls may go on after the agent was told to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            calls: 32,
            watchers: 16,
            rate: 500,
            read_deadline: Duration::from_secs(10),
            change_deadline: Duration::from_secs(60),
            grace: Duration::from_secs(10),
        }
    }
}

/// The server broke down.
#[derive(Debug, thiserror::Error)]
#[error("the control socket's server failed: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// Serves until `stop` is cancelled; then removes the socket, lets calls in progress end within [`Limits::grace`], and
/// returns.
///
/// # Errors
/// When the server breaks down, which no caller can bring about.
pub async fn serve<B: Backend>(
    socket: ControlSocket,
    backend: Arc<B>,
    limits: Limits,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let ControlSocket { listener, file, access } = socket;
    let connections = Connections::new(limits.connections, access);
    let changes = TaskTracker::new();
    let service = ControlServer::new(Service {
        backend,
        limits,
        gate: Gate::new(limits),
        changes: changes.clone(),
        stop: stop.clone(),
    })
    .max_decoding_message_size(LARGEST_REQUEST)
    .max_encoding_message_size(LARGEST_ANSWER);
    let serving = tonic::transport::Server::builder()
        // Bounds what the deadlines below do not see: a request that never arrives in full.
        .timeout(limits.change_deadline + limits.read_deadline)
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .http2_max_header_list_size(LARGEST_HEADERS)
        .initial_stream_window_size(CONNECTION_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(service)
        .serve_with_incoming_shutdown(
            accept(listener, Arc::clone(&connections)),
            stop.clone().cancelled_owned(),
        );
    tokio::pin!(serving);

    let served = tokio::select! {
        // Cancel-safe: waiting for a token holds nothing.
        () = stop.cancelled() => None,
        // Cancel-safe: the server is polled again below. It hears of the stop too, and with nobody connected it may have
        // ended by then: the changes are to be waited for all the same.
        result = &mut serving => Some(result),
    };
    drop(file);
    let idle = connections.close();
    changes.close();
    let end = tokio::time::Instant::now() + limits.grace;
    let served = match served {
        Some(served) => served,
        None => farewell(&connections, &idle, serving, limits.grace).await,
    };
    if tokio::time::timeout_at(end, changes.wait()).await.is_err() {
        tracing::warn!(grace = ?limits.grace, "stopping: changes asked for at the control socket are left unfinished");
    }
    Ok(served?)
}

/// Waits for the end of a server that was told to stop: for calls in progress as long as `grace` allows, and for peers that
/// were idle then no longer than a moment.
async fn farewell<T>(
    connections: &Connections,
    idle: &[u64],
    mut serving: Pin<&mut impl Future<Output = T>>,
    grace: Duration,
) -> T {
    let end = tokio::time::Instant::now() + grace;
    if let Ok(served) = tokio::time::timeout(grace.min(FAREWELL), &mut serving).await {
        return served;
    }
    connections.cut_idle(idle);
    if let Ok(served) = tokio::time::timeout_at(end, &mut serving).await {
        return served;
    }
    tracing::warn!(?grace, "stopping: callers at the control socket are cut off");
    connections.cut_all();
    serving.await
}

/// How many may call, and how often.
#[derive(Debug)]
struct Gate {
    calls: Arc<Semaphore>,
    watchers: Arc<Semaphore>,
    rate: Rate<u32>,
    refusals: Throttle<u32>,
}

/// The right to one call; held until it is over.
#[derive(Debug)]
pub(super) struct Admission {
    caller: Caller,
    _place: OwnedSemaphorePermit,
    _call: Call,
}

impl Gate {
    fn new(limits: Limits) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(limits.calls)),
            watchers: Arc::new(Semaphore::new(limits.watchers)),
            rate: Rate::new(limits.rate),
            refusals: Throttle::new(LOG_REFUSALS_EVERY),
        }
    }

    /// Lets in a peer that has the right to its call, if there is a place for it.
    fn admit(&self, peer: &Peer, places: &Arc<Semaphore>) -> Result<Admission, Status> {
        let caller = peer.caller;
        if !self.rate.allows(caller.uid, Instant::now()) {
            return Err(ControlError::Busy(format!("uid {} calls too often", caller.uid)).into());
        }
        let place = Arc::clone(places)
            .try_acquire_owned()
            .map_err(|_full| ControlError::Busy("as many calls as allowed are in progress".to_owned()))?;
        let call = peer
            .begin_call()
            .ok_or_else(|| Status::unavailable("this connection gave way to a newer one"))?;
        Ok(Admission {
            caller,
            _place: place,
            _call: call,
        })
    }
}

#[derive(Debug)]
struct Service<B> {
    backend: Arc<B>,
    limits: Limits,
    gate: Gate,
    changes: TaskTracker,
    stop: CancellationToken,
}

impl<B: Backend> Service<B> {
    /// Lets a caller through the gate, or turns it away, which the agent takes note of.
    fn admit<T>(
        &self,
        request: &Request<T>,
        name: &'static str,
        needs: Right,
        places: &Arc<Semaphore>,
    ) -> Result<Admission, Status> {
        let peer = request
            .extensions()
            .get::<Peer>()
            .ok_or_else(|| Status::internal("the connection does not say who called"))?;
        let Some(refusal) = peer.refusal(needs) else {
            return self.gate.admit(peer, places);
        };
        let Caller { uid, pid, .. } = peer.caller;
        self.backend.turned_away(peer.caller, name, &refusal);
        if self.gate.refusals.allows(uid, Instant::now()) {
            tracing::warn!(uid, pid, call = name, "refused a caller at the control socket");
        }
        Err(Status::permission_denied(refusal))
    }

    /// Admits a call that changes nothing and runs it until its deadline.
    async fn read<Q, A, F>(
        &self,
        name: &'static str,
        request: Request<Q>,
        call: impl FnOnce(Q) -> F + Send,
    ) -> Result<Response<A>, Status>
    where
        F: Future<Output = Result<A, ControlError>> + Send,
    {
        let _admission = self.admit(&request, name, Right::Read, &self.gate.calls)?;
        let deadline = self.limits.read_deadline;
        match tokio::time::timeout(deadline, call(request.into_inner())).await {
            Ok(answer) => Ok(Response::new(answer?)),
            Err(_elapsed) => Err(Status::deadline_exceeded(format!(
                "no answer within {deadline:?}: vscaled is busy, or the runtime hangs; its log says which"
            ))),
        }
    }

    /// Runs an admitted change to its end, and waits for it until the deadline.
    async fn change<A: Send + 'static>(
        &self,
        admission: Admission,
        call: impl Future<Output = Result<A, ControlError>> + Send + 'static,
    ) -> Result<Response<A>, Status> {
        let task = self.changes.spawn(async move {
            let answer = call.await;
            drop(admission);
            answer
        });
        let deadline = self.limits.change_deadline;
        match tokio::time::timeout(deadline, task).await {
            Ok(Ok(answer)) => Ok(Response::new(answer?)),
            Ok(Err(panicked)) => Err(Status::internal(format!("the change broke off: {panicked}"))),
            Err(_elapsed) => Err(Status::deadline_exceeded(format!(
                "not done after {deadline:?}: it goes on, and `vscalectl history` will show how it ends"
            ))),
        }
    }
}

#[tonic::async_trait]
impl<B: Backend> Control for Service<B> {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetReply>, Status> {
        self.read("get", request, |request| self.backend.get(request)).await
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainReply>, Status> {
        self.read("explain", request, |request| self.backend.explain(request))
            .await
    }

    async fn history(&self, request: Request<HistoryRequest>) -> Result<Response<HistoryReply>, Status> {
        self.read("history", request, |request| self.backend.history(request))
            .await
    }

    async fn doctor(&self, request: Request<DoctorRequest>) -> Result<Response<DoctorReply>, Status> {
        self.read("doctor", request, |_| self.backend.doctor()).await
    }

    async fn oom_list(&self, request: Request<OomListRequest>) -> Result<Response<OomListReply>, Status> {
        self.read("oom list", request, |request| self.backend.oom_list(request))
            .await
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Result<Response<ResizeReply>, Status> {
        // A rehearsal changes nothing.
        let needs = if request.get_ref().dry_run {
            Right::Read
        } else {
            Right::Change
        };
        let admission = self.admit(&request, "resize", needs, &self.gate.calls)?;
        let (caller, request, backend) = (admission.caller, request.into_inner(), Arc::clone(&self.backend));
        resize_values(&request)?;
        self.change(admission, async move { backend.resize(caller, request).await })
            .await
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        let admission = self.admit(&request, "release", Right::Change, &self.gate.calls)?;
        let (caller, request, backend) = (admission.caller, request.into_inner(), Arc::clone(&self.backend));
        super::convert::one_or_selected(&request.pod, &request.selector, &request.namespace, &request.reason)?;
        self.change(admission, async move { backend.release(caller, request).await })
            .await
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<Change, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let admission = self.admit(&request, "watch", Right::Read, &self.gate.watchers)?;
        let stream = changes(self.backend.watch(), self.stop.clone(), admission);
        Ok(Response::new(Box::pin(stream)))
    }
}
