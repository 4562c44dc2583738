//! Pure: how the agent lowers a memory limit without a kill, and raises it again if the container suffers.
//!
//! Input: readings of a cgroup's memory, the abilities of its kernel, the history of earlier tries, and the time.
//! Output: the next step. Three parts, in the order in which a shrink uses them:
//! - [`ShrinkCheck`]: before the write. Refuses, with the numbers, a limit below what the kernel cannot reclaim plus a spare;
//!   observes for a while a container that once used more than the wanted limit; makes the kernel reclaim in bounded steps.
//! - [`Watch`]: after the write. Reports at once that the container suffers from the lower limit.
//! - [`FailedShrinks`]: remembers which shrinks were undone, and when each may be tried again.
//!
//! `actuate` writes the limit between the first two.

mod check;
mod failed_shrinks;
mod watch;

#[cfg(test)]
mod tests;

pub use crate::model::{MemoryReading, Reclaim, WatchReading};
pub use check::*;
pub use failed_shrinks::*;
pub use watch::*;
