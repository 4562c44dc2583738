//! How many callers there are, and who gives way when there are too many.
//!
//! In come accepted streams, out go [`Connection`]s for the server. There is a limit; when it is reached, the oldest
//! connection without a call in progress is cut in favour of the new one, so callers that connect and then say nothing
//! cannot keep others out. Connections with calls are never cut for another's sake: calls end by their deadlines.
//! Strangers, who have no right to any call, share a few places in which they only displace each other: they are let in
//! to be told so.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::future::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::access::{Access, Right};
use super::backend::Caller;
use super::peer::identify;

/// How long to wait after the kernel refused to hand out a connection (usually for want of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The open connections, by age.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    access: Access,
    own_uid: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    next: u64,
    open: BTreeMap<u64, Slot>,
}

#[derive(Debug)]
struct Slot {
    stranger: bool,
    calls: usize,
    /// Whether there ever was a call: the peer speaks the protocol, and its last answer may still be on the way.
    called: bool,
    cut: CancellationToken,
}

impl Connections {
    pub(super) fn new(limit: usize, access: Access) -> Arc<Self> {
        Arc::new(Self {
            limit,
            access,
            own_uid: nix::unistd::geteuid().as_raw(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more. `None` if every connection is at work, or none is wanted any more.
    fn register(self: &Arc<Self>, stranger: bool) -> Option<(Registration, CancellationToken)> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        let strangers = state.open.values().filter(|slot| slot.stranger).count();
        let oldest = if stranger && strangers >= self.for_strangers() {
            Some(state.oldest(|slot| slot.stranger)?)
        } else if state.open.len() >= self.limit {
            let unknown = state.oldest(|slot| slot.stranger);
            Some(unknown.or_else(|| state.oldest(|slot| !stranger && slot.calls == 0))?)
        } else {
            None
        };
        if let Some(slot) = oldest.and_then(|oldest| state.open.remove(&oldest)) {
            slot.cut.cancel();
        }
        let id = state.next;
        state.next += 1;
        let cut = CancellationToken::new();
        let slot = Slot {
            stranger,
            calls: 0,
            called: false,
            cut: cut.clone(),
        };
        state.open.insert(id, slot);
        let connections = Arc::clone(self);
        Some((Registration { id, connections }, cut))
    }

    /// How many connections strangers may have together.
    fn for_strangers(&self) -> usize {
        (self.limit / 4).max(1)
    }

    /// From now on there are no new connections, and those that never called are cut: the server's farewell to a peer
    /// that says nothing would wait for an answer. Returns which others have no call in progress.
    pub(super) fn close(&self) -> Vec<u64> {
        let mut state = self.state();
        state.closed = true;
        for slot in state.open.values().filter(|slot| !slot.called) {
            slot.cut.cancel();
        }
        let idle = state.open.iter().filter(|(_, slot)| slot.called && slot.calls == 0);
        idle.map(|(&id, _)| id).collect()
    }

    /// Cuts those of these that still have no call in progress.
    pub(super) fn cut_idle(&self, which: &[u64]) {
        let state = self.state();
        let slots = which.iter().filter_map(|id| state.open.get(id));
        slots.filter(|slot| slot.calls == 0).for_each(|slot| slot.cut.cancel());
    }

    /// Cuts every connection.
    pub(super) fn cut_all(&self) {
        for slot in self.state().open.values() {
            slot.cut.cancel();
        }
    }
}

impl State {
    fn oldest(&self, which: impl Fn(&Slot) -> bool) -> Option<u64> {
        self.open.iter().find(|(_, slot)| which(slot)).map(|(&id, _)| id)
    }
}

/// Accepts connections for as long as it is polled.
pub(super) fn accept(
    listener: UnixListener,
    connections: Arc<Connections>,
) -> impl Stream<Item = io::Result<Connection>> {
    futures::stream::unfold((listener, connections), async |(listener, connections)| {
        loop {
            let accepted = listener.accept().await;
            match accepted.and_then(|(stream, _)| Connection::new(stream, &connections)) {
                Ok(connection) => return Some((Ok(connection), (listener, connections))),
                Err(error) => {
                    tracing::debug!(%error, "a caller was not let in");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// One accepted stream, for as long as it is not cut.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    peer: Peer,
    _registration: Registration,
}

impl Connection {
    fn new(stream: UnixStream, connections: &Arc<Connections>) -> io::Result<Self> {
        let (caller, groups) = identify(&stream)?;
        let right = connections.access.right(connections.own_uid, caller, &groups);
        let (registration, cut) = connections
            .register(right.is_none())
            .ok_or_else(|| io::Error::other("every connection is at work"))?;
        Ok(Self {
            stream,
            cut: Box::pin(cut.cancelled_owned()),
            peer: Peer {
                caller,
                right,
                id: registration.id,
                connections: Arc::clone(connections),
            },
            _registration: registration,
        })
    }

    /// An error once this connection was cut; else the task is woken when it is.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.cut.poll_unpin(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Who is at the other end of a request's connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) caller: Caller,
    pub(super) right: Option<Right>,
    id: u64,
    connections: Arc<Connections>,
}

impl Peer {
    /// Why this peer is turned away from a call that needs a right it does not have.
    pub(super) fn refusal(&self, needs: Right) -> Option<String> {
        let refusal = || self.connections.access.refusal(self.caller, self.right, needs);
        (self.right < Some(needs)).then(refusal)
    }

    /// Keeps the connection from being cut until the call is over. `None` if it was cut already.
    pub(super) fn begin_call(&self) -> Option<Call> {
        let mut state = self.connections.state();
        let slot = state.open.get_mut(&self.id)?;
        slot.calls += 1;
        slot.called = true;
        Some(Call(self.clone()))
    }
}

/// A call in progress.
#[derive(Debug)]
pub(super) struct Call(Peer);

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(slot) = self.0.connections.state().open.get_mut(&self.0.id) {
            slot.calls -= 1;
        }
    }
}

/// A place among the open connections, given up when dropped.
#[derive(Debug)]
struct Registration {
    id: u64,
    connections: Arc<Connections>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.connections.state().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    fn connect(connections: &Arc<Connections>) -> io::Result<(Connection, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Connection::new(ours, connections)?, theirs))
    }

    async fn is_cut(connection: &mut Connection) -> bool {
        let mut byte = [0];
        tokio::select! {
            biased;
            read = connection.read(&mut byte) => read.is_err(),
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn the_oldest_silent_connection_gives_way() {
        let connections = Connections::new(2, Access::default());
        let (mut busy, _a) = connect(&connections).unwrap();
        let call = busy.peer.begin_call().unwrap();
        let (mut silent, _b) = connect(&connections).unwrap();
        let (mut newest, _c) = connect(&connections).unwrap();
        assert!(is_cut(&mut silent).await);
        assert!(!is_cut(&mut busy).await);
        assert!(!is_cut(&mut newest).await);
        assert!(silent.peer.begin_call().is_none());

        let _second_call = newest.peer.begin_call().unwrap();
        assert!(connect(&connections).is_err(), "every connection is at work");
        drop(call);
        assert!(connect(&connections).is_ok());
        assert!(is_cut(&mut busy).await);
    }

    #[tokio::test]
    async fn strangers_displace_each_other_only_and_give_way_to_everybody_else() {
        let connections = Connections::new(8, Access::default());
        let connect = |stranger| connections.register(stranger).unwrap();
        let (entitled, strangers) = (connect(false), [connect(true), connect(true)]);
        let third = connect(true);
        assert!(strangers[0].1.is_cancelled() && !strangers[1].1.is_cancelled());
        let more: Vec<_> = (0..5).map(|_| connect(false)).collect();
        assert!(!third.1.is_cancelled());
        let last = connect(false);
        assert!(strangers[1].1.is_cancelled() && !third.1.is_cancelled());
        let past = connect(false);
        assert!(third.1.is_cancelled() && !entitled.1.is_cancelled());
        assert!(connections.register(true).is_none(), "nobody is cut for a stranger");
        drop((more, last, past));
    }

    #[tokio::test]
    async fn a_connection_that_ends_makes_room() {
        let connections = Connections::new(1, Access::default());
        let (first, _a) = connect(&connections).unwrap();
        let call = first.peer.begin_call().unwrap();
        drop(first);
        drop(call);
        assert!(connect(&connections).is_ok());
    }

    #[tokio::test]
    async fn closing_cuts_silent_connections_now_and_the_others_at_the_end() {
        let connections = Connections::new(4, Access::default());
        let (mut caller, _a) = connect(&connections).unwrap();
        let (mut silent, _b) = connect(&connections).unwrap();
        drop(caller.peer.begin_call());
        connections.close();
        assert!(is_cut(&mut silent).await);
        assert!(!is_cut(&mut caller).await);
        assert!(connect(&connections).is_err());
        connections.cut_all();
        assert!(is_cut(&mut caller).await);
    }

    #[tokio::test]
    async fn the_kernel_says_who_called() {
        let connections = Connections::new(1, Access::default());
        let (connection, _a) = connect(&connections).unwrap();
        assert_eq!(connection.peer.caller.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(connection.peer.caller.pid, nix::unistd::getpid().as_raw());
    }
}
