//! Shrinks on paper: readings in, steps out.

mod checks;
mod readings;
mod regrets;
mod watches;

use std::time::{Duration, Instant};

use super::{Before, MemoryReading, WatchReading};
use crate::model::Bytes;

const fn mib(mebibytes: u64) -> Bytes {
    Bytes::new(mebibytes << 20)
}

/// A container that holds this much, has cached that much, and once used so much.
fn reading(held: u64, cached: u64, peak: u64) -> MemoryReading {
    MemoryReading {
        usage: mib(held + cached),
        peak: Some(mib(peak)),
        anonymous: mib(held),
        evictable: mib(cached),
        refaults: Bytes::ZERO,
    }
}

impl Before {
    /// A cgroup that uses nothing, read at this moment.
    pub(crate) fn of_test() -> Self {
        Self {
            last: WatchReading {
                memory: MemoryReading::default(),
                kills: 0,
                stalled: None,
            },
            at: Instant::now(),
            most: Bytes::ZERO,
            refaults: Bytes::ZERO,
        }
    }
}

/// A clock that is wound by hand.
#[derive(Debug, Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn after(self, seconds: f64) -> Instant {
        self.0 + Duration::from_secs_f64(seconds)
    }
}
