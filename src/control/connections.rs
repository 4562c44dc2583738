//! Accepts connections, identifies the callers, and closes a connection when there are too many.
//!
//! A task of its own serves HTTP/2 on each connection. At the limit, the server closes the oldest connection without a call
//! in progress of the caller with most connections, so that silent callers cannot keep others out. A connection with a call stays: calls end by
//! their deadlines, and so does the connection of a caller who does not read an answer. Callers without any right have a few connections of their own, where every call gets a refusal.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use tokio::net::UnixStream;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use super::access::{Access, Right};
use super::answer::{Pieces, time_limit};
use super::proto::control_server::{Control, ControlServer};
use super::server::Limits;
use super::socket::ControlSocket;
use crate::slots::Slot;

/// The pause after a failed accept(2), which mostly lacked file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest request headers in bytes.
const LARGEST_HEADERS: u32 = 16 << 10;
/// The calls in progress of one connection, at most.
const CALLS_PER_CONNECTION: u32 = 16;
/// The bytes that a peer may send before the server reads them: a full request and a little more.
const CONNECTION_WINDOW: u32 = 128 << 10;
/// The interval of HTTP/2 pings, and the longest wait for the answer.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// The longest wait for a peer without a call to close its connection when the agent stops. A stopped process never does.
const GOODBYE: Duration = Duration::from_secs(1);

/// The permission for one call. An answer has it in its extensions, and the connection keeps it until the answer is sent.
pub(super) type Admission = Arc<(Slot<u32>, Arc<()>)>;

/// The caller of a request, in the request's extensions.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) caller: Caller,
    pub(super) right: Option<Right>,
    pub(super) access: Arc<Access>,
    /// A reference to this keeps the connection open. There is none after the server has closed the connection.
    pub(super) calls: Weak<()>,
}

#[cfg(test)]
impl Peer {
    pub(super) fn of(uid: u32, right: Right, calls: &Arc<()>) -> Self {
        Self {
            caller: Caller { uid, gid: uid, pid: 1 },
            right: Some(right),
            access: Arc::default(),
            calls: Arc::downgrade(calls),
        }
    }
}

/// Connections with their callers, the oldest first. Each call in progress shares the `Arc` beside its connection.
type Pool = Vec<(u32, AbortHandle, Arc<()>)>;

/// Closes a connection without a call if there are `limit` connections: the oldest one of the caller who has most. False if
/// every connection has a call.
///
/// A call that begins at this very moment loses its connection; a change still runs to its end.
fn make_room(open: &mut Pool, limit: usize) -> bool {
    open.retain(|(_, task, _)| !task.is_finished());
    if open.len() < limit.max(1) {
        return true;
    }
    let of_caller = |uid: u32| open.iter().filter(|(caller, ..)| *caller == uid).count();
    let idle = (0..open.len()).rev().filter(|at| Arc::strong_count(&open[*at].2) == 1);
    let closed = idle.max_by_key(|at| of_caller(open[*at].0));
    closed.map(|at| open.remove(at).1.abort()).is_some()
}

/// Accepts connections until `stop`, removes the socket's file, and returns when every connection has ended.
pub(super) async fn serve_connections<S: Control>(
    ControlSocket { listener, file, access }: ControlSocket,
    limits: Limits,
    service: ControlServer<S>,
    stop: &CancellationToken,
) {
    let (access, own_uid) = (Arc::new(access), nix::unistd::geteuid().as_raw());
    let (mut entitled, mut strangers) = (Pool::new(), Pool::new());
    let tasks = TaskTracker::new();
    // Cancel-safe: a connection leaves the listener only when it is returned.
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let identified = accepted.and_then(|(stream, _)| identify(&stream).map(|who| (stream, who)));
        let (stream, (caller, groups)) = match identified {
            Ok(identified) => identified,
            Err(error) => {
                tracing::debug!(%error, "a caller was not let in");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let right = access.right(own_uid, caller, &groups);
        let (pool, limit) = match right {
            Some(_) => (&mut entitled, limits.connections),
            None => (&mut strangers, limits.connections / 4),
        };
        if make_room(pool, limit) {
            let calls = Arc::new(());
            let peer = Peer {
                caller,
                right,
                access: Arc::clone(&access),
                calls: Arc::downgrade(&calls),
            };
            let connection = serve_connection(stream, peer, service.clone(), limits, stop.clone());
            pool.push((caller.uid, tasks.spawn(connection).abort_handle(), calls));
        }
    }
    drop((file, listener));
    tasks.close();
    tasks.wait().await;
}

/// Serves one connection until the peer closes it, or does not read an answer. After `stop`, calls in progress may go on for
/// [`Limits::grace`].
async fn serve_connection<S: Control>(
    stream: UnixStream,
    peer: Peer,
    service: ControlServer<S>,
    limits: Limits,
    stop: CancellationToken,
) {
    let (calls, late) = (Weak::clone(&peer.calls), CancellationToken::new());
    let is_late = late.clone();
    let respond = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let (mut service, late) = (service.clone(), late.clone());
        async move {
            let mut answer = service.call(request).await?;
            let admission = answer.extensions_mut().remove::<Admission>();
            let guard = admission.map(|admission| (admission, time_limit(limits.read_deadline, late)));
            Ok::<_, Infallible>(answer.map(|body| Pieces::new(body, guard)))
        }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .max_header_list_size(LARGEST_HEADERS)
        .initial_stream_window_size(CONNECTION_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .serve_connection(TokioIo::new(stream), respond);
    let mut connection = pin!(connection);
    // Cancel-safe: the code below polls the connection again.
    tokio::select! {
        _ended = &mut connection => return,
        () = is_late.cancelled() => return,
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let has_calls = calls.strong_count() > 1;
    let longest = if has_calls { limits.grace } else { GOODBYE };
    let patience = limits.grace.min(longest);
    if tokio::time::timeout(patience, connection).await.is_err() && has_calls {
        tracing::warn!(grace = ?limits.grace, "stopping: a caller at the control socket is cut off");
    }
}

/// The caller as the kernel recorded it when it connected (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The process id, 0 if the process is in a pid namespace that the agent does not see.
    pub pid: i32,
}

/// The caller, and its groups besides its first one.
///
/// `SO_PEERCRED` gives user, first group and process; `SO_PEERGROUPS` (Linux 4.13) gives the other groups. The kernel makes
/// one record of both at connect(2) and never changes it (`sk_peer_cred`, net/unix/af_unix.c), so they belong to one
/// process. The alternatives do not ensure that: `/proc/PID/status` shows the groups of now, or of another process with the
/// same id, and a look-up by name reads a database of users that a container does not share with the host.
pub(super) fn identify(socket: &impl AsFd) -> io::Result<(Caller, Vec<u32>)> {
    let credentials = getsockopt(socket, PeerCredentials)?;
    let caller = Caller {
        uid: credentials.uid(),
        gid: credentials.gid(),
        pid: credentials.pid(),
    };
    let groups = vscaled_sys::peer_groups(socket).or_else(|error| match error.raw_os_error() {
        // A kernel before 4.13 reports the first group only.
        Some(code) if code == Errno::ENOPROTOOPT as i32 => Ok(Vec::new()),
        _ => Err(error),
    })?;
    Ok((caller, groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that never ends by itself.
    fn connect(pool: &mut Pool, limit: usize) -> Option<(tokio::task::JoinHandle<()>, Peer)> {
        connect_as(0, pool, limit)
    }

    fn connect_as(uid: u32, pool: &mut Pool, limit: usize) -> Option<(tokio::task::JoinHandle<()>, Peer)> {
        make_room(pool, limit).then(|| {
            let (task, calls) = (tokio::spawn(std::future::pending()), Arc::new(()));
            let peer = Peer::of(uid, Right::Change, &calls);
            pool.push((uid, task.abort_handle(), calls));
            (task, peer)
        })
    }

    #[tokio::test]
    async fn the_caller_with_most_connections_loses_one() {
        let mut pool = Pool::new();
        let (mut operator, _) = connect_as(0, &mut pool, 3).unwrap();
        let (first, _) = connect_as(1000, &mut pool, 3).unwrap();
        for _ in 0..100 {
            assert!(connect_as(1000, &mut pool, 3).is_some());
        }
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(pool[0].0, 0);
        assert!(futures::poll!(&mut operator).is_pending());
    }

    #[tokio::test]
    async fn the_oldest_silent_connection_gives_way() {
        let mut pool = Pool::new();
        let (busy_task, busy) = connect(&mut pool, 2).unwrap();
        let call = busy.calls.upgrade().unwrap();
        let (silent_task, silent) = connect(&mut pool, 2).unwrap();
        let (_newest_task, newest) = connect(&mut pool, 2).unwrap();
        assert!(silent_task.await.unwrap_err().is_cancelled());
        assert!(silent.calls.upgrade().is_none());

        let _second_call = newest.calls.upgrade().unwrap();
        assert!(connect(&mut pool, 2).is_none(), "every connection has a call");
        drop(call);
        assert!(connect(&mut pool, 2).is_some());
        assert!(busy_task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_connection_that_ends_makes_room() {
        let mut pool = Pool::new();
        let (task, peer) = connect(&mut pool, 1).unwrap();
        let _call = peer.calls.upgrade().unwrap();
        assert!(connect(&mut pool, 1).is_none());
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(connect(&mut pool, 1).is_some());
    }

    #[tokio::test]
    async fn the_kernel_says_who_called() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (caller, _groups) = identify(&ours).unwrap();
        assert_eq!(caller.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(caller.pid, nix::unistd::getpid().as_raw());
    }
}

#[cfg(test)]
mod peer_tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_names_a_caller_and_its_groups() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (caller, mut groups) = identify(&ours).unwrap();
        assert_eq!(caller.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(caller.gid, nix::unistd::getegid().as_raw());
        assert_eq!(caller.pid, nix::unistd::getpid().as_raw());
        let mut own: Vec<u32> = nix::unistd::getgroups()
            .unwrap()
            .iter()
            .map(|gid| gid.as_raw())
            .collect();
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
    }
}
