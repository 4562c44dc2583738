//! Has a ledger do one thing at a time, also for those who do not wait for it to the end.
//!
//! A disk that hangs is asked once, however often somebody tries again: what is asked of it waits in threads and queues,
//! and must not grow there for as long as it hangs.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::oom::OomReport;
use crate::oom::ledger::{Ledger, LedgerError};

/// A ledger that nobody asks twice at the same time.
#[derive(Debug)]
pub(super) struct Clerk<L> {
    /// The ledger, unless it is busy.
    idle: Option<L>,
    busy: Option<JoinHandle<(L, Result<(), LedgerError>)>>,
}

impl<L: Ledger> Clerk<L> {
    pub(super) const fn new(ledger: L) -> Self {
        Self {
            idle: Some(ledger),
            busy: None,
        }
    }

    /// Commits, once the commit before has ended. Cancel-safe: a commit that was begun goes on by itself, and what it
    /// comes to is lost, so the next one has to be of everything that is not known to be kept.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub(super) async fn commit(&mut self, reports: &[Arc<OomReport>], checkpoint: &[u8]) -> Result<(), LedgerError> {
        if let Err(error) = self.ended().await {
            tracing::debug!(%error, "a commit that nobody waited for failed");
        }
        let Some(mut ledger) = self.idle.take() else {
            return Err(LedgerError("whoever keeps them ended early".to_owned()));
        };
        let (reports, checkpoint) = (reports.to_vec(), checkpoint.to_vec());
        self.busy = Some(tokio::spawn(async move {
            let kept = ledger.commit(&reports, &checkpoint).await;
            (ledger, kept)
        }));
        self.ended().await
    }

    /// Waits for the commit that is under way, if there is one.
    async fn ended(&mut self) -> Result<(), LedgerError> {
        let Some(busy) = &mut self.busy else { return Ok(()) };
        let ended = busy.await;
        self.busy = None;
        let (ledger, kept) = ended.map_err(|error| LedgerError(error.to_string()))?;
        self.idle = Some(ledger);
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::super::published::tests::report;
    use super::*;

    /// Takes each commit only when it is allowed to.
    #[derive(Clone)]
    struct Hanging {
        allowed: Arc<Semaphore>,
        asked: Arc<Mutex<Vec<usize>>>,
    }

    impl Ledger for Hanging {
        async fn commit(&mut self, reports: &[Arc<OomReport>], _: &[u8]) -> Result<(), LedgerError> {
            self.asked.lock().unwrap().push(reports.len());
            self.allowed.acquire().await.unwrap().forget();
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_ledger_that_hangs_is_asked_once_however_often_it_is_tried_again() {
        let ledger = Hanging {
            allowed: Arc::new(Semaphore::new(0)),
            asked: Arc::default(),
        };
        let mut clerk = Clerk::new(ledger.clone());
        let mut reports = Vec::new();
        for number in 0..5 {
            reports.push(Arc::new(report(&number.to_string())));
            let tried = timeout(Duration::from_millis(5), clerk.commit(&reports, b"")).await;
            assert!(tried.is_err(), "it hangs");
        }
        assert_eq!(*ledger.asked.lock().unwrap(), [1]);
        ledger.allowed.add_permits(2);
        clerk.commit(&reports, b"").await.unwrap();
        assert_eq!(*ledger.asked.lock().unwrap(), [1, 5]);
    }
}
