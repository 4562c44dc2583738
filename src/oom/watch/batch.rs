//! The way out for reports. Never waited for: what nobody takes stays here, and goes with what comes next.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::oom::report::OomReport;

/// Reports, and what to keep with them.
#[derive(Debug, Default)]
pub struct Batch {
    /// The reports, oldest first; none where only the checkpoint is news.
    pub reports: Vec<OomReport>,
    /// What a later [`start`](super::start()) goes on from, once these reports are safe.
    pub checkpoint: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct BatchSender {
    sender: mpsc::Sender<Batch>,
    kept: Option<Batch>,
}

/// Nobody takes reports any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

impl BatchSender {
    pub(super) const fn new(sender: mpsc::Sender<Batch>) -> Self {
        Self { sender, kept: None }
    }

    /// Whether something is still here.
    pub(super) const fn is_blocked(&self) -> bool {
        self.kept.is_some()
    }

    pub(super) fn send(&mut self, batch: Batch) -> Result<(), Closed> {
        match &mut self.kept {
            Some(kept) => {
                kept.reports.extend(batch.reports);
                kept.checkpoint = batch.checkpoint;
            }
            None => self.kept = Some(batch),
        }
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<(), Closed> {
        let Some(batch) = self.kept.take() else { return Ok(()) };
        match self.sender.try_send(batch) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(batch)) => {
                self.kept = Some(batch);
                Ok(())
            }
            Err(TrySendError::Closed(_)) => Err(Closed),
        }
    }
}
