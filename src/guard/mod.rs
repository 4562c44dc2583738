//! Grows memory limits before the kernel kills.
//!
//! The kernel kills whoever passes a limit within a millisecond or less, long before a recommendation can know. The guard is
//! a thread of its own that follows memory use against the limits of those containers that a VPA lets grow, sleeps while none of
//! them can reach its limit, and grows a limit as soon as it would be reached before another look. What it grows is an emergency
//! temporary limit: it is a least limit ([`crate::actuate::LeastLimits`]) for all passes at once, and the controller makes it
//! part of what is desired, tells the runtime, writes it down, and ends it. Nobody is killed for want of cpu: a container that is throttled
//! all the time is only reported, and an ordinary pass lends it more.
//!
//! In come watchlists ([`Watchlist`]); out come reports ([`Report`]). The mathematics are pure: [`rate`], [`predict`],
//! [`budgets`], [`throttle`]. The rest reads and writes files.
//!
//! What it must never do: grow a limit beyond what the VPA allows, or into memory that others may claim; grow without end; wait
//! for anything but the kernel; write other than by the plans and the executor of all passes.

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

pub use limit_files::{LentLast, LimitFiles};
pub use thread::Guard;
pub use watchlist::{Claim, CpuTerms, GuardEvent, Guarded, GuardedPod, Report, Settings, Terms, Watchlist};
