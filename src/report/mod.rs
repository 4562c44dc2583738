//! Reports of OOM kills: kept in one log until every destination has acknowledged them.
//!
//! ```text
//! commit(kills, checkpoint) ─► log ─► queue ─► grpc   ─► a recommender
//!                               ▲     queue ─► outbox ─► the API server
//!                               └── acknowledgements ◄─┘ ▲
//!                                             changes ───┘
//! ```
//! - [`log`]: the file, its bounds, and the pending reports.
//! - [`Reporter`]: starts it all, stores kills, and waits for the disk, once for many of them.
//! - [`ReportQueue`]: the reports of one destination. A task for each takes them, so a dead destination delays no other.
//! - [`grpc`]: delivery over `proto/vscaled/report/v1`.
//! - [`outbox`]: all Kubernetes Events, about kills and changes; [`events`]: their texts and the plan for them. Pure.
//!
//! No part of this loses a kill silently, counts one twice for the same destination, or waits for a destination while a kill
//! is to be stored.

mod content;
mod destination;
pub mod events;
pub mod grpc;
pub mod log;
pub mod metrics;
pub mod outbox;
mod reporter;
#[cfg(test)]
pub(crate) mod testing;

pub use crate::oom::proto;
pub use content::{Aggregate, Report};
pub use destination::{Destination, Destinations};
pub use log::LogStatus;
pub use reporter::{Link, ReportQueue, Reporter};
