//! Serves the protocol on a [`ControlSocket`] until told to stop.
//!
//! Every call is admitted first: the peer must have the right to the call and not call too often, and the number of calls is
//! bounded. A read is dropped when its deadline passes or its caller leaves. A change runs in a task of its own to its end,
//! because half a change is worse than a late answer.

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
use super::connections::{Peer, serve_connections};
use super::convert::resize_values;
use super::proto::control_server::{Control, ControlServer};
use super::proto::{
    Change, DoctorReply, DoctorRequest, ExplainReply, ExplainRequest, GetReply, GetRequest, HistoryReply,
    HistoryRequest, OomListReply, OomListRequest, ReleaseReply, ReleaseRequest, ResizeReply, ResizeRequest,
    WatchRequest,
};
use super::socket::ControlSocket;
use super::watch::changes;
use crate::rate_limiter::{KeyedRateLimiter, Rate};

/// Largest request in bytes.
const LARGEST_REQUEST: usize = 64 << 10;
/// Largest answer in bytes.
const LARGEST_ANSWER: usize = 4 << 20;
/// How often a refused user is logged.
const LOGGED_REFUSALS: Rate = Rate {
    burst: 1,
    every: Duration::from_secs(60),
};

/// What callers may use of the agent.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// Calls in progress, over all connections.
    pub calls: usize,
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

/// Serves until `stop` is cancelled; then removes the socket, lets calls in progress
/// end within [`Limits::grace`], and returns.
pub async fn serve<B: Backend>(socket: ControlSocket, backend: Arc<B>, limits: Limits, stop: CancellationToken) {
    let changes = TaskTracker::new();
    let service = ControlServer::new(Service {
        backend,
        limits,
        calls: Arc::new(Semaphore::new(limits.calls)),
        watchers: Arc::new(Semaphore::new(limits.watchers)),
        rate: KeyedRateLimiter::new(Rate {
            burst: limits.rate.saturating_mul(2),
            every: Duration::from_secs(1) / limits.rate.max(1),
        }),
        logged_refusals: KeyedRateLimiter::new(LOGGED_REFUSALS),
        changes: changes.clone(),
        stop: stop.clone(),
    })
    .max_decoding_message_size(LARGEST_REQUEST)
    .max_encoding_message_size(LARGEST_ANSWER);
    let stopped = async {
        stop.cancelled().await;
        Instant::now()
    };
    let ((), stopped) = tokio::join!(serve_connections(socket, limits, service, &stop), stopped);
    changes.close();
    let end = stopped + limits.grace;
    if tokio::time::timeout_at(end.into(), changes.wait()).await.is_err() {
        tracing::warn!(grace = ?limits.grace, "stopping: changes asked for at the control socket are left unfinished");
    }
}

#[derive(Debug)]
struct Service<B> {
    backend: Arc<B>,
    limits: Limits,
    calls: Arc<Semaphore>,
    watchers: Arc<Semaphore>,
    rate: KeyedRateLimiter<u32>,
    logged_refusals: KeyedRateLimiter<u32>,
    changes: TaskTracker,
    stop: CancellationToken,
}

/// The right to one call; held until the call is over.
#[derive(Debug)]
struct Admission {
    caller: Caller,
    _permit: OwnedSemaphorePermit,
    _call: Arc<()>,
}

impl<B: Backend> Service<B> {
    /// Admits a caller who has the right to a call, does not call too often, and for whom `permits` has one left.
    fn admit<T>(
        &self,
        request: &Request<T>,
        name: &'static str,
        needs: Right,
        permits: &Arc<Semaphore>,
    ) -> Result<Admission, Status> {
        let peer = request
            .extensions()
            .get::<Peer>()
            .ok_or_else(|| Status::internal("the connection does not say who called"))?;
        let caller @ Caller { uid, pid, .. } = peer.caller;
        if let Some(refusal) = peer.refusal(needs) {
            self.backend.record_refusal(caller, name, &refusal);
            if self.logged_refusals.try_use(uid, Instant::now()) {
                tracing::warn!(uid, pid, call = name, "refused a caller at the control socket");
            }
            return Err(Status::permission_denied(refusal));
        }
        if !self.rate.try_use(uid, Instant::now()) {
            return Err(ControlError::Busy(format!("uid {uid} calls too often")).into());
        }
        let permit = Arc::clone(permits)
            .try_acquire_owned()
            .map_err(|_full| ControlError::Busy("as many calls as allowed are in progress".to_owned()))?;
        let call = peer
            .begin_call()
            .ok_or_else(|| Status::unavailable("this connection gave way to a newer one"))?;
        Ok(Admission {
            caller,
            _permit: permit,
            _call: call,
        })
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
        let _admission = self.admit(&request, name, Right::Read, &self.calls)?;
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
        let admission = self.admit(&request, "resize", needs, &self.calls)?;
        let (caller, request, backend) = (admission.caller, request.into_inner(), Arc::clone(&self.backend));
        resize_values(&request)?;
        self.change(admission, async move { backend.resize(caller, request).await })
            .await
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        let admission = self.admit(&request, "release", Right::Change, &self.calls)?;
        let (caller, request, backend) = (admission.caller, request.into_inner(), Arc::clone(&self.backend));
        super::convert::check_change(&request.pod, &request.selector, &request.namespace, &request.reason)?;
        self.change(admission, async move { backend.release(caller, request).await })
            .await
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<Change, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let admission = self.admit(&request, "watch", Right::Read, &self.watchers)?;
        let stream = changes(self.backend.watch(), self.stop.clone(), admission);
        Ok(Response::new(Box::pin(stream)))
    }
}
