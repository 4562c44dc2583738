//! A channel that is never waited for: what does not fit is dropped, counted, and told as soon as something fits again.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{Loss, Notice};

/// Nobody receives any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// The sending end.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: mpsc::Sender<Notice>,
    dropped: u64,
}

impl Outbox {
    pub(super) const fn new(sender: mpsc::Sender<Notice>) -> Self {
        Self { sender, dropped: 0 }
    }

    /// Sends a notice, or counts it as dropped.
    pub(super) fn send(&mut self, notice: Notice) {
        // What was dropped before comes before.
        if !matches!(self.flush(), Ok(true)) || self.sender.try_send(notice).is_err() {
            self.dropped += 1;
        }
    }

    /// Tells of what was dropped, if there is room. Returns whether nothing is left to tell.
    pub(super) fn flush(&mut self) -> Result<bool, Closed> {
        if self.sender.is_closed() {
            return Err(Closed);
        }
        if self.dropped == 0 {
            return Ok(true);
        }
        match self
            .sender
            .try_send(Notice::Lost(Loss::Dropped { notices: self.dropped }))
        {
            Ok(()) => {
                self.dropped = 0;
                Ok(true)
            }
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Closed(_)) => Err(Closed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_told_in_its_place() {
        let (sender, mut receiver) = mpsc::channel(2);
        let mut outbox = Outbox::new(sender);
        let overwritten = |records| Notice::Lost(Loss::Overwritten { records });
        for records in 0..5 {
            outbox.send(overwritten(records));
        }
        assert_eq!(outbox.flush(), Ok(false));
        assert_eq!(
            [receiver.try_recv(), receiver.try_recv()],
            [Ok(overwritten(0)), Ok(overwritten(1))]
        );
        outbox.send(overwritten(5));
        let dropped = Notice::Lost(Loss::Dropped { notices: 3 });
        assert_eq!(
            [receiver.try_recv(), receiver.try_recv()],
            [Ok(dropped), Ok(overwritten(5))]
        );
        assert_eq!(outbox.flush(), Ok(true));
        drop(receiver);
        assert_eq!(outbox.flush(), Err(Closed));
    }
}
