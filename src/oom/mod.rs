//! OOM kills: which processes the kernel killed, why, and in which containers.
//!
//! The kernel tells in two places. Its log has the detail (who, how large, whose limit) but keeps back all but ten reports
//! in five seconds; counters in cgroup files ([`counters`]) miss nothing and say nothing but how many. So the counters are
//! the truth and the log explains it.
//!
//! ```text
//! /dev/kmsg ─► kmsg ─► Record ─► Line ─► Message ─► Kill ─► LogEvent ─┐
//! a pasted log ─► parse_log ─►                                        ├─► join ─► OomKill ─► PendingKill ─► OomReport
//! memory.events, memory.oom_control ─► counters ──────────────────────┘
//! ```
//! From a record to a report a kill has eight types:
//! - [`Record`]: one record of `/dev/kmsg`;
//! - [`Line`]: a whole line, put together from its parts ([`Assembler`]);
//! - `Message`: what the line says;
//! - [`Kill`]: a killed process with what the lines around it explain ([`Parser`]);
//! - [`kmsg::LogEvent`]: the same with the number of its record and its time;
//! - [`join::OomKill`]: a kill with its cgroup, and how well that is known;
//! - `PendingKill`: the same while the rest of its group or the names of its pod are to come;
//! - [`OomReport`]: what is stored and delivered ([`crate::report`]).
//!
//! [`watch`] is the actor that does all of this on a node, and keeps what it told apart from what it did not, over
//! restarts. Everything but that, [`kmsg`] and the reading in [`counters`] is pure. Nothing here may invent a kill, take text
//! of a process for the kernel's, or explain a kill by another one's report: what is not certain stays unknown.

mod assemble;
mod clock;
pub mod counters;
pub mod join;
mod kill;
pub mod kmsg;
mod log;
mod message;
pub mod numbers;
mod parse;
mod record;
mod report;
mod text;
pub mod watch;

pub use crate::proto::report as proto;
pub use assemble::Assembler;
pub use kill::{Invoker, Kill, Level};
pub use log::parse_log;
pub use message::Limit;
pub use message::LimitUsage;
pub use parse::{Event, Parser};
pub use record::{Line, Part, Record};
pub(crate) use report::shared;
pub use report::{
    Candidates, Confidence, Evidence, HitLimit, KillFacts, OomReport, OwnWrite, ReportedContainer, ReportedMemory,
    ReportedPod, Role, Victim,
};

/// Microseconds between lines that belong together. A report comes in one go, but a serial console slows it down.
const TOGETHER_US: u64 = 5_000_000;

/// Whether two lines can belong together. Where a time is unknown, order alone decides.
fn within(earlier: Option<u64>, later: Option<u64>) -> bool {
    match (earlier, later) {
        (Some(earlier), Some(later)) => earlier.abs_diff(later) <= TOGETHER_US,
        (None, _) | (_, None) => true,
    }
}
