//! The watcher's time.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::errno::Errno;

use super::attribution::Moment;
use crate::oom::kmsg::monotonic;

/// CLOCK_MONOTONIC, read by way of [`Instant`], which cannot fail.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    base: Duration,
    began: Instant,
}

impl Clock {
    pub(super) fn new() -> Result<Self, Errno> {
        let base = monotonic()?;
        let began = Instant::now();
        Ok(Self { base, began })
    }

    /// How long it has run.
    pub(super) fn elapsed(self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn monotonic(self) -> Duration {
        self.base + self.began.elapsed()
    }

    pub(super) fn now(self) -> Moment {
        Moment {
            monotonic: self.monotonic(),
            wall: Timestamp::now(),
        }
    }

    /// The moment as tokio has it.
    pub(super) fn instant(self, at: Duration) -> tokio::time::Instant {
        (self.began + at.saturating_sub(self.base)).into()
    }
}
