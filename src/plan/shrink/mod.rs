//! Pure: how a memory limit comes down without anybody being killed for it, and goes up again if it should not have.
//!
//! In come readings of a cgroup's memory, what its kernel can do, what was learnt from earlier tries, and the time; out
//! comes what to do next. Three parts, in the order in which a shrink meets them:
//! - [`ShrinkCheck`]: before anything is written. Refuses, with the numbers, a limit below what cannot be given back and some
//!   to spare; looks for a while where a container once used more than it is to have; has the kernel reclaim, in bounded
//!   steps, what it can.
//! - [`Watch`]: after the limit was lowered. Says at once when the container suffers from it.
//! - [`Regrets`]: remembers which shrinks were undone, and when each may be tried again.
//!
//! The write in between cannot be reasoned about, only done right: that is the room's that acts.

mod check;
mod reading;
mod regret;
mod sightings;
mod turns;
mod watch;

#[cfg(test)]
mod tests;

pub use check::{CheckStep, NotShrinkable, RECLAIM_STEP, Reclaim, ShrinkCheck, Why, leaves_room, slack};
pub use reading::MemoryReading;
pub use regret::{Holds, Regret, Regrets};
pub use sightings::Sightings;
pub use turns::{Progress, next_turns};
pub(crate) use watch::rate;
pub use watch::{Before, Trouble, WATCH_PERIOD, Watch, WatchReading, WatchStep};
