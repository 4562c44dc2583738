//! What happens to containers, as one stream, whatever the runtime offers.
//!
//! containerd has an event service of its own, and CRI has `GetContainerEvents`. containerd's own comes first where it
//! exists: it is broadcast to every subscriber, whereas CRI events of containerd 1.x are one queue, in which a second
//! subscriber takes the kubelet's events away; it also tells of updates. CRI-O has only CRI's, unless disabled. Where
//! nothing is offered, containers are listed at an interval and the differences sent.
//!
//! One task drains the runtime's stream and never waits for the consumer: a slow reader would block containerd. The oldest
//! events give way where the channel is full, and one [`RuntimeEvent::Resync`] takes their place. So this stream may shorten
//! the wait until the next look at things, and must never be what correctness rests on.

mod follow;
mod sources;

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio_util::task::AbortOnDropHandle;

use self::follow::Follower;
use super::Cri;

pub(super) use sources::NAMESPACE;

/// What happened to one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Happened {
    /// Its process started: a new cgroup with the runtime's values.
    Started,
    /// Its process is gone; with containerd told again when its cgroup is.
    Stopped,
    Removed,
    /// Its stored spec changed, by us or by somebody else (containerd only).
    Updated,
    /// The kernel killed a process in it for memory (containerd only).
    OutOfMemory,
}

/// An event of the runtime, or of the stream itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// About one container. Sandboxes have events too, under their own id, and some ids are of neither.
    Container { id: String, happened: Happened },
    /// From here on events arrive, and some may have been missed before: list everything. Sent at the start, after a
    /// lost runtime is back, and when the consumer was too slow.
    Resync,
    /// The runtime is lost; until the next [`Self::Resync`] nothing is told. Sent once for each loss.
    Lost {
        /// What the last attempt said.
        why: String,
    },
}

impl RuntimeEvent {
    fn container(id: impl Into<String>, happened: Happened) -> Self {
        Self::Container {
            id: id.into(),
            happened,
        }
    }
}

/// The bounds of an [`EventStream`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventOptions {
    /// How many events may wait for the consumer before a resync replaces them.
    pub buffer: usize,
    /// How often containers are listed where the runtime offers no events.
    pub polling_interval: Duration,
}

impl Default for EventOptions {
    fn default() -> Self {
        Self {
            buffer: 256,
            polling_interval: Duration::from_secs(1),
        }
    }
}

/// Feeds an [`EventStream`] by hand: for runtimes made up by tests.
pub type EventSender = Sender<RuntimeEvent>;

/// What happens to containers from now on. Dropping it ends the subscription.
#[derive(Debug)]
pub struct EventStream {
    receiver: Receiver<RuntimeEvent>,
    /// `None` when somebody else feeds the stream.
    _follower: Option<AbortOnDropHandle<()>>,
}

impl EventStream {
    pub(super) fn of(cri: Cri, options: EventOptions) -> Self {
        let (sender, receiver) = broadcast::channel(options.buffer.max(1));
        let follower = tokio::spawn(
            Follower {
                cri,
                polling_interval: options.polling_interval,
                output: sender,
            }
            .run(),
        );
        Self {
            receiver,
            _follower: Some(AbortOnDropHandle::new(follower)),
        }
    }

    /// A stream of whatever is sent into the sender; it ends when the sender is dropped.
    #[cfg(test)]
    pub(crate) fn fed_by_hand(buffer: usize) -> (EventSender, Self) {
        let (sender, receiver) = broadcast::channel(buffer.max(1));
        let stream = Self {
            receiver,
            _follower: None,
        };
        (sender, stream)
    }

    /// The next event. Cancel-safe: an event is either returned or still there. `None` never comes from a runtime,
    /// which is followed for ever.
    pub async fn next(&mut self) -> Option<RuntimeEvent> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(_)) => Some(RuntimeEvent::Resync),
            Err(RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_consumer_gets_one_resync_for_all_it_missed() {
        let (sender, mut stream) = EventStream::fed_by_hand(2);
        let event = |id: &str| RuntimeEvent::container(id, Happened::Started);
        for id in ["a", "b", "c", "d"] {
            sender.send(event(id)).unwrap();
        }
        for expected in [RuntimeEvent::Resync, event("c"), event("d")] {
            assert_eq!(stream.next().await, Some(expected));
        }
        sender.send(event("e")).unwrap();
        assert_eq!(stream.next().await, Some(event("e")));
        drop(sender);
        assert_eq!(stream.next().await, None);
    }
}
