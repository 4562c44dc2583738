//! The events of containers as one stream, whichever event service the runtime has.
//!
//! containerd has an event service of its own, and CRI has `GetContainerEvents`. The agent tries containerd's own first:
//! containerd broadcasts these events to every subscriber, and they include updates. CRI events of containerd 1.x are one
//! queue, in which a second subscriber takes events away from the kubelet. CRI-O has only CRI's, unless disabled. Where a
//! runtime has neither, the agent lists the containers at an interval and sends the differences.
//!
//! One task reads the runtime's stream and never waits for the consumer: a slow reader would block containerd. When the
//! channel is full, the oldest events are dropped and one [`RuntimeEvent::Resync`] replaces them. So the stream only makes
//! discovery faster; correctness never depends on it.

mod follow;
mod sources;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver};
use tokio_util::task::AbortOnDropHandle;

use self::follow::Follower;
use super::Cri;

pub(super) use sources::NAMESPACE;

/// How many events may wait for the consumer before a resync replaces them.
const BUFFER: usize = 256;

/// A change of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContainerEvent {
    /// The container's process started, in a new cgroup with the runtime's values.
    Started,
    /// The container's process ended. containerd sends this again when the cgroup is gone.
    Stopped,
    Removed,
    /// The agent or another client changed the stored spec (containerd only).
    Updated,
    /// The kernel's OOM killer ended a process in the container (containerd only).
    OutOfMemory,
}

/// An event of the runtime or of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// About one container. Sandboxes have events too, under their own id, and some ids belong to neither.
    Container { id: String, event: ContainerEvent },
    /// Events arrive from here on, and earlier ones may be missing: list everything. Sent at the start, after a lost runtime
    /// is back, and when the consumer was too slow.
    Resync,
    /// The runtime is lost; no event arrives until the next [`Self::Resync`]. Sent once for each loss.
    Lost {
        /// The error of the last attempt.
        why: String,
    },
}

impl RuntimeEvent {
    fn container(id: impl Into<String>, event: ContainerEvent) -> Self {
        Self::Container { id: id.into(), event }
    }
}

/// The events of containers from now on. Dropping it ends the subscription.
#[derive(Debug)]
pub struct EventStream {
    receiver: Receiver<RuntimeEvent>,
    _follower: AbortOnDropHandle<()>,
}

impl EventStream {
    pub(super) fn of(cri: Cri) -> Self {
        let (output, receiver) = broadcast::channel(BUFFER);
        let follower = tokio::spawn(Follower { cri, output }.run());
        Self {
            receiver,
            _follower: AbortOnDropHandle::new(follower),
        }
    }

    /// A stream of the events that a test sends. The stream ends when the test drops the sender.
    #[cfg(test)]
    pub(crate) fn fed_by_hand(buffer: usize) -> (broadcast::Sender<RuntimeEvent>, Self) {
        let (sender, receiver) = broadcast::channel(buffer.max(1));
        let stream = Self {
            receiver,
            _follower: AbortOnDropHandle::new(tokio::spawn(async {})),
        };
        (sender, stream)
    }

    /// The next event. Cancel-safe: an event is either returned or still in the channel. A runtime's stream never ends, so
    /// `None` comes in tests only.
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
        let event = |id: &str| RuntimeEvent::container(id, ContainerEvent::Started);
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
