//! Reports of OOM kills: kept in one log until every destination has acknowledged them.
//!
//! ```text
//! commit(kills, checkpoint) ─► log ─► queue ─► grpc    ─► a recommender
//!                               ▲     queue ─► cluster ─► the API server
//!                               └── acknowledgements ◄──┘
//! ```
//! - [`log`]: the file, its bounds, and what is pending; and the task that owns it, which writes what waits at once, so
//!   that a burst costs few waits for the disk.
//! - [`Reporter`]: starts it all; [`ReporterHandle`] stores kills and knows the state of reporting.
//! - [`Deliver`]: a way to a destination, in a task of its own with a [`ReportQueue`] of its own; a dead one delays nobody.
//! - [`grpc`]: delivery over `proto/vscaled/report/v1`.
//! - [`cluster`]: delivery as Kubernetes Events; [`events`]: which Events a stream of reports comes to. Pure.
//!
//! Nothing here may lose a kill silently, count one twice for the same destination, or wait for a destination while a kill
//! is to be stored.

pub mod cluster;
mod content;
mod destination;
pub mod events;
pub mod grpc;
pub mod log;
pub mod metrics;
mod reporter;
#[cfg(test)]
pub(crate) mod testing;

pub use crate::oom::proto;
pub use content::{Aggregate, Report};
pub use destination::{Destination, Destinations};
pub use log::LogStatus;
pub use reporter::{Deliver, Ended, Link, ReportQueue, Reporter, ReporterHandle};
