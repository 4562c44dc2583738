//! The following task's end of the channel: never waits, remembers what it owes.

use tokio::sync::mpsc::Sender;

use super::RuntimeEvent;

/// Hands events to the consumer.
#[derive(Debug)]
pub(super) struct Outlet {
    sender: Sender<RuntimeEvent>,
    /// An event was dropped, and the resync that stands for it has not been delivered.
    owes_resync: bool,
}

impl Outlet {
    pub(super) const fn new(sender: Sender<RuntimeEvent>) -> Self {
        Self {
            sender,
            owes_resync: false,
        }
    }

    /// Hands on the event if there is room, or drops it and owes a resync. With a resync owed, later events are dropped
    /// too: the consumer will list everything anyway.
    pub(super) fn offer(&mut self, event: RuntimeEvent) {
        if !self.owes_resync && self.sender.try_send(event).is_err() {
            self.owes_resync = true;
        }
    }

    /// Waits until the owed resync is delivered; without one, for ever. Cancel-safe: to be one arm of a select.
    pub(super) async fn settle(&mut self) {
        if !self.owes_resync {
            return std::future::pending().await;
        }
        match self.sender.reserve().await {
            Ok(room) => {
                room.send(RuntimeEvent::Resync);
                self.owes_resync = false;
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
        let mut outlet = Outlet::new(sender);
        for id in ["a", "b", "c", "d"] {
            outlet.offer(event(id));
        }
        assert_eq!(receiver.recv().await, Some(event("a")));
        outlet.offer(event("e"));
        outlet.settle().await;
        assert_eq!(receiver.recv().await, Some(event("b")));
        assert_eq!(receiver.recv().await, Some(RuntimeEvent::Resync));
        outlet.offer(event("f"));
        assert_eq!(receiver.recv().await, Some(event("f")));
    }

    #[tokio::test]
    async fn nothing_owed_is_never_settled() {
        let (sender, _receiver) = mpsc::channel(1);
        let mut outlet = Outlet::new(sender);
        tokio::select! {
            biased;
            () = outlet.settle() => panic!("settled a resync nobody is owed"),
            () = std::future::ready(()) => {}
        }
    }
}
