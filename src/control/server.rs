//! Serves the protocol on a [`ControlSocket`] until the agent stops.
//!
//! The [`CallGate`] admits a call if the peer has the right to it and does not call too often, and if not too many calls are
//! in progress: callers share them fairly, and a quarter is kept for those who may change pods. It drops a read when the deadline passes or the caller leaves. It runs a change in a task of its own to the
//! end, because half a change is worse than a late answer.
//!
//! The changes for watchers wait in a [`ChangeFeed`](super::ChangeFeed). The agent never waits for a watcher.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::{BoxStream, once, unfold};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::ControlError;
use super::access::Right;
use super::connections::{Admission, Caller, Peer, serve_connections};
use super::proto::control_server::{Control, ControlServer};
use super::proto::{Change, WatchRequest};
use super::socket::ControlSocket;
use crate::feed::FeedListener;
use crate::rate_limiter::{KeyedRateLimiter, REPEATED_LINES, Rate};
use crate::slots::{Class, Slots};

/// The largest request that is read, in bytes.
const LARGEST_REQUEST: usize = 64 << 10;
/// The largest answer that is sent, in bytes.
pub const LARGEST_ANSWER: usize = 4 << 20;

/// The limits on the use of the agent by callers.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// Calls in progress, over all connections. A quarter of them and of the watchers is kept for callers who may change pods.
    pub calls: u64,
    pub watchers: u64,
    /// Calls of one user in a second, on average over two.
    pub rate: u32,
    /// The longest time of a read, and of a caller to take any answer.
    pub read_deadline: Duration,
    /// The longest wait of a caller for a change. The change continues afterwards.
    pub change_deadline: Duration,
    /// The longest time that calls may go on after the agent began to stop.
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

/// Serves until the gate's `stop` is cancelled. Then removes the socket, waits at most [`Limits::grace`] for calls in
/// progress, and returns. Every call of `agent` goes through the gate.
pub async fn serve(socket: ControlSocket, agent: impl Control, gate: &CallGate) {
    let CallGate {
        limits, stop, changes, ..
    } = gate;
    let service = ControlServer::new(agent)
        .max_decoding_message_size(LARGEST_REQUEST)
        .max_encoding_message_size(LARGEST_ANSWER);
    let stopped = async {
        stop.cancelled().await;
        Instant::now()
    };
    let ((), stopped) = tokio::join!(serve_connections(socket, *limits, service, stop), stopped);
    changes.close();
    let end = stopped + limits.grace;
    if tokio::time::timeout_at(end.into(), changes.wait()).await.is_err() {
        tracing::warn!(grace = ?limits.grace, "stopping: changes asked for at the control socket are left unfinished");
    }
}

/// Records the caller, the call and the reason of a refusal.
type RecordRefusal = dyn Fn(Caller, &'static str, &str) + Send + Sync;

/// Admits every call at the socket: by [`read`](Self::read), [`change`](Self::change) or [`watch`](Self::watch).
#[derive(derive_more::Debug)]
pub struct CallGate {
    limits: Limits,
    calls: Slots<u32>,
    watchers: Slots<u32>,
    rate: KeyedRateLimiter<u32>,
    logged_refusals: KeyedRateLimiter<u32>,
    changes: TaskTracker,
    stop: CancellationToken,
    #[debug(skip)]
    record_refusal: Box<RecordRefusal>,
}

impl CallGate {
    /// `record_refusal` records the refusal of a caller without the right to a call. It must not wait.
    pub fn new(
        limits: Limits,
        stop: CancellationToken,
        record_refusal: impl Fn(Caller, &'static str, &str) + Send + Sync + 'static,
    ) -> Self {
        let slots = |total: u64| Slots::new(total, total / 4);
        let every = Duration::from_secs(1) / limits.rate.max(1);
        Self {
            limits,
            calls: slots(limits.calls),
            watchers: slots(limits.watchers),
            rate: KeyedRateLimiter::new(Rate::new(limits.rate.saturating_mul(2), every)),
            logged_refusals: KeyedRateLimiter::new(REPEATED_LINES),
            changes: TaskTracker::new(),
            stop,
            record_refusal: Box::new(record_refusal),
        }
    }

    /// Admits a caller who has the right to the call and does not call too often, if `slots` has one left for it.
    fn admit<T>(
        &self,
        request: &Request<T>,
        name: &'static str,
        needs: Right,
        slots: &Slots<u32>,
    ) -> Result<(Caller, Admission), Status> {
        let unknown = || Status::internal("the connection does not say who called");
        let peer = request.extensions().get::<Peer>().ok_or_else(unknown)?;
        let Caller { uid, pid, .. } = peer.caller;
        if peer.right < Some(needs) {
            let refusal = peer.access.refusal(peer.caller, peer.right, needs);
            (self.record_refusal)(peer.caller, name, &refusal);
            if self.logged_refusals.try_use(uid, Instant::now()) {
                let pid = Some(pid).filter(|pid| *pid > 0);
                tracing::warn!(uid, pid, call = name, "refused a caller at the control socket");
            }
            return Err(Status::permission_denied(refusal));
        }
        if !self.rate.try_use(uid, Instant::now()) {
            return Err(ControlError::Busy(format!("uid {uid} calls too often")).into());
        }
        let full = |left_out| ControlError::Busy(format!("too many calls are in progress: {left_out}"));
        let class = match peer.right {
            Some(Right::Change) => Class::Privileged,
            Some(Right::Read) | None => Class::Ordinary,
        };
        let slot = slots.take(&uid, class).map_err(full)?;
        let closed = || Status::unavailable("this connection gave way to a newer one");
        Ok((peer.caller, Arc::new((slot, peer.calls.upgrade().ok_or_else(closed)?))))
    }

    /// Admits a call that changes nothing, and runs it until its deadline, or until the caller leaves.
    ///
    /// Errors: the error of the call, the refusal, or the missed deadline.
    pub async fn read<Q, A, F>(
        &self,
        name: &'static str,
        request: Request<Q>,
        call: impl FnOnce(Q) -> F + Send,
    ) -> Result<Response<A>, Status>
    where
        F: Future<Output = Result<A, ControlError>> + Send,
    {
        let (_, admission) = self.admit(&request, name, Right::Read, &self.calls)?;
        let deadline = self.limits.read_deadline;
        match tokio::time::timeout(deadline, call(request.into_inner())).await {
            Ok(answer) => Ok(admitted(answer?, admission)),
            Err(_elapsed) => Err(Status::deadline_exceeded(format!(
                "no answer within {deadline:?}: vscaled is busy, or the runtime hangs; its log says which"
            ))),
        }
    }

    /// Admits a call, runs it to its end, also after the caller leaves, and waits for it until the deadline.
    ///
    /// Errors: the error of the call, the refusal, or the missed deadline. A change that the agent tried in vain is
    /// an answer, not an error.
    pub async fn change<Q, A, F>(
        &self,
        name: &'static str,
        needs: Right,
        request: Request<Q>,
        call: impl FnOnce(Caller, Q) -> F + Send,
    ) -> Result<Response<A>, Status>
    where
        A: Send + 'static,
        F: Future<Output = Result<A, ControlError>> + Send + 'static,
    {
        let (caller, admission) = self.admit(&request, name, needs, &self.calls)?;
        let call = call(caller, request.into_inner());
        let task = self.changes.spawn(async move { (call.await, admission) });
        let deadline = self.limits.change_deadline;
        match tokio::time::timeout(deadline, task).await {
            Ok(Ok((answer, admission))) => Ok(admitted(answer?, admission)),
            Ok(Err(panicked)) => Err(Status::internal(format!(
                "internal error: the change was not finished: {panicked}"
            ))),
            Err(_elapsed) => Err(Status::deadline_exceeded(format!(
                "not done after {deadline:?}: it goes on, and `vscalectl history` will show how it ends"
            ))),
        }
    }

    /// Admits a watcher.
    ///
    /// Errors: the refusal.
    pub fn watch(
        &self,
        request: &Request<WatchRequest>,
        news: FeedListener<Change>,
    ) -> Result<Response<Changes>, Status> {
        let (_, admission) = self.admit(request, "watch", Right::Read, &self.watchers)?;
        Ok(Response::new(changes(news, self.stop.clone(), admission)))
    }
}

/// An answer that counts as a call in progress until it is sent.
fn admitted<A>(answer: A, admission: Admission) -> Response<A> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(admission);
    response
}

/// The stream of changes for one watcher.
pub type Changes = BoxStream<'static, Result<Change, Status>>;

/// The changes from now on. The stream ends with `UNAVAILABLE` when the agent stops, and then drops `guard`.
fn changes<G: Send + 'static>(news: FeedListener<Change>, stop: CancellationToken, guard: G) -> Changes {
    let changes = unfold((news, guard), |(mut news, guard)| async move {
        let (change, missed) = news.next().await?;
        Some((Ok(Change { missed, ..change }), (news, guard)))
    });
    let end = once(ready(Err(Status::unavailable("vscaled is stopping"))));
    Box::pin(changes.take_until(stop.cancelled_owned()).chain(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::feed::ChangeFeed;
    use crate::feed::MOST_VALUES;
    use crate::observe::log::LogFormat;
    use crate::observe::log::tests::logged;
    use futures::StreamExt;

    fn request_of<T>(uid: u32, right: Right, connection: &Arc<()>, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(Peer::of(uid, right, connection));
        request
    }

    #[tokio::test]
    async fn hung_readers_leave_operators_their_calls() {
        let gate = CallGate::new(Limits::default(), CancellationToken::new(), |_, _, _| ());
        let (connection, feed) = (Arc::new(()), ChangeFeed::default());
        let read = |uid, right| {
            gate.read("get", request_of(uid, right, &connection, ()), |()| {
                std::future::pending::<Result<(), _>>()
            })
        };
        let mut hanging = Vec::new();
        for _ in 0..32 {
            let mut call = Box::pin(read(1000, Right::Read));
            if futures::poll!(&mut call).is_pending() {
                hanging.push(call);
            }
        }
        assert_eq!(hanging.len(), 21);
        for uid in 2000..2032 {
            let mut call = Box::pin(read(uid, Right::Read));
            if futures::poll!(&mut call).is_pending() {
                hanging.push(call);
            }
        }
        assert_eq!(hanging.len(), 24, "some were left for other readers");
        let answered = async { Ok(7) };
        let answer = gate
            .read("get", request_of(0, Right::Change, &connection, ()), |()| answered)
            .await;
        assert_eq!(answer.unwrap().into_inner(), 7);

        let watch = |uid, right| gate.watch(&request_of(uid, right, &connection, WatchRequest {}), feed.watch());
        let watching: Vec<_> = (0..32).filter_map(|_| watch(1000, Right::Read).ok()).collect();
        assert_eq!(watching.len(), 10);
        assert!(watch(1001, Right::Read).is_ok() && watch(0, Right::Change).is_ok());
    }

    #[test]
    fn a_refused_caller_may_have_no_pid() {
        let lines = logged(LogFormat::Text, "warn", |_| {
            let gate = CallGate::new(Limits::default(), CancellationToken::new(), |_, _, _| ());
            let connection = Arc::new(());
            for (uid, pid) in [(1000, 0), (1001, 7)] {
                let mut request = request_of(uid, Right::Read, &connection, ());
                request.extensions_mut().get_mut::<Peer>().unwrap().caller.pid = pid;
                assert!(gate.admit(&request, "release", Right::Change, &gate.calls).is_err());
            }
        });
        assert!(
            lines.contains("uid=1000 call=") && lines.contains("uid=1001 pid=7 call="),
            "{lines}"
        );
    }

    #[tokio::test]
    async fn an_unread_answer_counts_as_a_call() {
        let gate = CallGate::new(Limits::default(), CancellationToken::new(), |_, _, _| ());
        let connection = Arc::new(());
        let request = || request_of(1000, Right::Read, &connection, ());
        let mut unread = Vec::new();
        for _ in 0..100 {
            // The connection keeps it until the answer is sent.
            unread.extend(gate.read("get", request(), |()| ready(Ok(()))).await);
        }
        assert_eq!(unread.len(), 21);
        unread.clear();
        assert!(gate.read("get", request(), |()| ready(Ok(()))).await.is_ok());
    }

    #[tokio::test]
    async fn a_slow_watcher_is_told_how_much_it_missed() {
        let feed = ChangeFeed::default();
        let mut stream = changes(feed.watch(), CancellationToken::new(), ());
        for sequence in 0..u64::try_from(MOST_VALUES).unwrap() + 6 {
            feed.send(|| Change {
                sequence,
                ..Change::default()
            });
        }
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!((first.sequence, first.missed), (6, 6));
        let second = stream.next().await.unwrap().unwrap();
        assert_eq!((second.sequence, second.missed), (7, 0));
    }

    #[tokio::test]
    async fn stopping_ends_a_stream_with_a_reason() {
        let feed = ChangeFeed::default();
        let (stop, guard) = (CancellationToken::new(), Arc::new(()));
        let mut stream = changes(feed.watch(), stop.clone(), Arc::clone(&guard));
        stop.cancel();
        let last = stream.next().await.unwrap().unwrap_err();
        assert_eq!(last.code(), tonic::Code::Unavailable);
        assert!(stream.next().await.is_none());
        assert_eq!(Arc::strong_count(&guard), 1);
    }
}
