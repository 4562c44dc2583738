//! The follower's end of the channel: never waits for the consumer, and delivers a resync for what it dropped.

use tokio::sync::mpsc::Sender;

use super::RuntimeEvent;

#[derive(Debug)]
pub(super) struct EventOutput {
    sender: Sender<RuntimeEvent>,
    /// An event was dropped, and the resync in its place is not delivered.
    resync_pending: bool,
}

impl EventOutput {
    pub(super) const fn new(sender: Sender<RuntimeEvent>) -> Self {
        Self {
            sender,
            resync_pending: false,
        }
    }

    /// Hands on the event if there is room, or drops it for a resync. With a resync pending, later events are dropped
    /// too: the consumer will list everything anyway.
    pub(super) fn send(&mut self, event: RuntimeEvent) {
        if !self.resync_pending && self.sender.try_send(event).is_err() {
            self.resync_pending = true;
        }
    }

    /// Waits until the pending resync is delivered; without one, for ever. Cancel-safe: the resync stays pending.
    pub(super) async fn deliver_resync(&mut self) {
        if !self.resync_pending {
            return std::future::pending().await;
        }
        match self.sender.reserve().await {
            Ok(room) => {
                room.send(RuntimeEvent::Resync);
                self.resync_pending = false;
            }
            // The consumer is gone, and this task with it in a moment.
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Happened;
    use super::*;
    use tokio::sync::mpsc;

    fn event(id: &str) -> RuntimeEvent {
        RuntimeEvent::container(id, Happened::Started)
    }

    #[tokio::test]
    async fn a_slow_consumer_gets_one_resync_for_all_it_missed() {
        let (sender, mut receiver) = mpsc::channel(2);
        let mut output = EventOutput::new(sender);
        for id in ["a", "b", "c", "d"] {
            output.send(event(id));
        }
        assert_eq!(receiver.recv().await, Some(event("a")));
        output.send(event("e"));
        output.deliver_resync().await;
        assert_eq!(receiver.recv().await, Some(event("b")));
        assert_eq!(receiver.recv().await, Some(RuntimeEvent::Resync));
        output.send(event("f"));
        assert_eq!(receiver.recv().await, Some(event("f")));
    }

    #[tokio::test]
    async fn without_a_pending_resync_nothing_is_delivered() {
        let (sender, _receiver) = mpsc::channel(1);
        let mut output = EventOutput::new(sender);
        tokio::select! {
            biased;
            () = output.deliver_resync() => panic!("delivered a resync that is not pending"),
            () = std::future::ready(()) => {}
        }
    }
}
