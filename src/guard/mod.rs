//! Grows memory limits before the kernel kills.
//!
//! The kernel kills within a millisecond when a container reaches its limit, long before a recommendation can follow.
//! The guard is a thread of its own. It compares the memory use of the containers that a VPA lets grow, and of pods
//! with several containers or ended ones, with their limits, sleeps while none of them can reach its limit, and grows a limit that
//! would be reached before the next reading. A pod's limit grows only with that of one of its containers. The new limit
//! is a temporary limit: it is at once a least limit ([`crate::actuate::LeastLimits`]) for all passes, and the
//! controller adds it to the desired state, updates the runtime, saves it, and ends it. The kernel kills no process for
//! want of cpu, so the guard only reports a container that is throttled all the time, and an ordinary pass raises its
//! cpu limit.
//!
//! In come watchlists ([`Watchlist`]); out come reports ([`Report`]). [`rate`], [`predict`], [`budgets`] and [`throttle`] are
//! pure. The rest reads and writes files.
//!
//! The guard never grows a limit beyond the VPA's bounds or into memory that other pods may claim, never grows without end,
//! never waits for anything but the kernel, and writes only through the plans and the executor of all passes.

mod account;
mod alarms;
pub mod budgets;
mod growing;
mod limit_files;
mod notifications;
pub mod predict;
pub mod rate;
mod thread;
pub mod throttle;
mod watched;
mod watchlist;

pub use limit_files::{LatestLimit, LatestLimits, LimitFiles, MarkedLimits};
pub use thread::Guard;
pub use watchlist::{Claim, CpuTerms, GuardEvent, Guarded, GuardedPod, Report, Settings, Terms, Watchlist};
