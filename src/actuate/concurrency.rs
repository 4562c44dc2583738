//! Bounds how much the agent does at once, and remembers that the runtime does not answer.
//!
//! Kernel writes and runtime calls have separate bounds: a runtime that is slow or hangs never delays the files of another
//! pod. After a call without an answer the agent calls the runtime again only some time later, so that the passes which find
//! it gone do not each wait for its deadline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// How many updates the agent sends to a runtime at once: the runtime starts a process of the OCI runtime for each.
const RUNTIME_CALLS: usize = 4;
/// How many hooks run at once.
const HOOKS: usize = 4;
/// How long the agent does not call a runtime that did not answer.
const LEAVE_ALONE: Duration = Duration::from_secs(2);

/// The bounds of one agent. The agent never closes these semaphores.
#[derive(Debug)]
pub struct Concurrency {
    /// For passes that read and write cgroup files.
    pub(super) kernel: Semaphore,
    /// For passes that call the runtime.
    pub(super) runtime: Semaphore,
    pub(super) hooks: Semaphore,
    /// Every watch after a shrink holds one more reference.
    pub(super) watches: Arc<()>,
    away: Mutex<Option<(Instant, String)>>,
}

impl Concurrency {
    /// At most `workers` passes write files at once.
    pub fn new(workers: usize) -> Self {
        Self {
            kernel: Semaphore::new(workers),
            runtime: Semaphore::new(RUNTIME_CALLS),
            hooks: Semaphore::new(HOOKS),
            watches: Arc::default(),
            away: Mutex::default(),
        }
    }

    /// Notes that the runtime did not answer.
    pub(super) fn runtime_is_away(&self, why: String) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now() + LEAVE_ALONE, why));
    }

    /// Why the agent does not call the runtime now.
    pub(super) fn runtime_away(&self) -> Option<String> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, why) = away.as_ref()?;
        (Instant::now() < *until).then(|| why.clone())
    }
}
