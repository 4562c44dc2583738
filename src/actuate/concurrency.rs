//! How much may be done at once, and whether the runtime is worth asking.
//!
//! The kernel and the runtime have concurrency of their own: a runtime that takes its time, or hangs, never keeps another
//! pod's files waiting. A runtime that did not answer is left alone for a moment, so that passes which only found it
//! gone do not each wait for its deadline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Updates a runtime is sent at once: each starts a process of the OCI runtime.
const RUNTIME_LANES: usize = 4;
/// Hooks that run at once: what a container makes of one is its own affair, and none of the node's.
const HOOK_LANES: usize = 4;
/// How long a runtime that did not answer is left alone.
const LEAVE_ALONE: Duration = Duration::from_secs(2);

/// The concurrency of one agent.
#[derive(Debug)]
pub struct Concurrency {
    kernel: Semaphore,
    runtime: Semaphore,
    hooks: Semaphore,
    /// One for each pod that is watched after a shrink.
    watches: Arc<()>,
    away: Mutex<Option<(Instant, String)>>,
}

impl Concurrency {
    /// Concurrency in which at most `workers` pods' files are written at once.
    pub fn new(workers: usize) -> Self {
        Self {
            kernel: Semaphore::new(workers),
            runtime: Semaphore::new(RUNTIME_LANES),
            hooks: Semaphore::new(HOOK_LANES),
            watches: Arc::default(),
            away: Mutex::default(),
        }
    }

    /// Waits for a place among those who write files. `None` never comes: nobody closes the lane.
    pub(super) async fn kernel(&self) -> Option<SemaphorePermit<'_>> {
        self.kernel.acquire().await.ok()
    }

    /// Waits for a place among those who talk to the runtime. `None` never comes: nobody closes the lane.
    pub(super) async fn runtime(&self) -> Option<SemaphorePermit<'_>> {
        self.runtime.acquire().await.ok()
    }

    /// Waits for a place among the hooks that run. `None` never comes: nobody closes the lane.
    pub(super) async fn hooks(&self) -> Option<SemaphorePermit<'_>> {
        self.hooks.acquire().await.ok()
    }

    /// Counts a watch after a shrink, as long as this is held.
    pub(super) fn watch(&self) -> Watching {
        Watching(Arc::clone(&self.watches))
    }

    /// Notes that the runtime did not answer.
    pub(super) fn runtime_is_away(&self, why: String) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now() + LEAVE_ALONE, why));
    }

    /// Why the runtime is not to be asked just now.
    pub(super) fn runtime_away(&self) -> Option<String> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.as_ref()
            .filter(|(until, _)| Instant::now() < *until)
            .map(|(_, why)| why.clone())
    }
}

/// One of the watches after shrinks.
#[derive(Debug)]
pub(super) struct Watching(Arc<()>);

impl Watching {
    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(Arc::strong_count(&self.0) - 1).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_counted_while_they_last() {
        let concurrency = Concurrency::new(1);
        let watches = [concurrency.watch(), concurrency.watch()];
        assert_eq!(watches[0].count(), 2);
        let [first, second] = watches;
        drop(first);
        assert_eq!(second.count(), 1);
    }
}
