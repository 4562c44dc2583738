//! Finds OOM kills: which processes the kernel killed, why, and in which containers.
//!
//! The kernel reports kills in two places. Its log has the detail (process, size, limit) but holds back all but ten
//! reports in five seconds. The counters in cgroup files ([`counters`]) miss no kill and show only the number.
//! So the counters decide how many kills there were, and the log explains them.
//!
//! ```text
//! /dev/kmsg ─► kmsg ─► Line ─► Kill ─► LogEvent ─┐
//! a pasted log ─► parse_log ─►                  ├─► join ─► OomKill ─► PendingKill ─► OomReport
//! memory.events, memory.oom_control ─► counters ─┘
//! ```
//! From a record to a report a kill has six types:
//! - [`Line`]: a record of `/dev/kmsg`, then a whole line, put together from its parts ([`Assembler`]);
//! - [`Kill`]: a killed process with the report about it ([`Parser`]);
//! - [`kmsg::LogEvent`]: a kill with the number of its record and its time;
//! - [`join::OomKill`]: a kill with its cgroup and the confidence in that;
//! - `PendingKill`: a kill that waits for the rest of its group or for the name of its pod;
//! - [`OomReport`]: the form in which the agent stores and delivers a kill ([`crate::report`]).
//!
//! [`watch`] is the actor that does all of this on a node. It remembers over restarts which kills it has reported.
//! Everything except [`watch`], [`kmsg`] and the reading in [`counters`] is pure. No code here may invent a kill, take
//! text of a process for the kernel's, or explain a kill by the report of another kill: what is not certain stays
//! unknown.

mod assemble;
mod clock;
pub mod counters;
pub mod join;
mod kill;
pub mod kmsg;
mod log;
pub mod numbers;
mod parse;
mod record;
mod report;
mod text;
pub mod watch;

pub use crate::proto::report as proto;
pub use assemble::Assembler;
pub use kill::{Kill, Level, Limit, LimitUsage};
pub use log::{NotUnderstood, parse_log, read_log};
pub use parse::{Event, Parsed, Parser};
pub use record::{Line, Part};
pub use report::{
    Candidates, Confidence, Evidence, HitLimit, KillFacts, OomReport, OwnWrite, ReportedContainer, ReportedMemory,
    ReportedPod, Role, Victim,
};

/// Microseconds between lines that belong together. The kernel prints a report in one go, but a
/// serial console slows it down.
const TOGETHER_US: u64 = 5_000_000;
const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;

/// Whether two lines with these times can belong together. Lines without a time can.
fn within(earlier: Option<u64>, later: Option<u64>) -> bool {
    let both = earlier.zip(later);
    both.is_none_or(|(earlier, later)| earlier.abs_diff(later) <= TOGETHER_US)
}
