//! The way of an OOM kill upstream: kept on disk until every receiver has it.
//!
//! In come [`OomReport`](crate::oom::OomReport)s with the position of whoever watches for kills; out they go to each
//! selected [`Destination`], at least once, under an id that never changes.
//!
//! ```text
//! commit(kills, checkpoint) ─► keeper ─► spool ─► feed ─► grpc    ─► a recommender
//!                                 ▲                feed ─► cluster ─► the API server
//!                                 └── acknowledgements ◄──┘
//! ```
//! - [`spool`]: the file, its bounds, and what of it is pending. Blocking; everything that can be is pure.
//! - `journal`: a file of checksummed frames, for the spool and for whoever else appends.
//! - `keeper`: the task that owns the spool and groups what is waiting, so that a burst costs few waits for the disk.
//! - [`Reporter`]: starts it all; [`ReporterHandle`] takes kills and says how reporting fares.
//! - [`Deliver`]: a way to a destination, in a task of its own with a [`Feed`] of its own; a dead one delays nobody.
//! - [`grpc`]: delivery over `proto/vscaled/report/v1`; [`sink`] is the other end, for people who write one.
//! - [`cluster`]: delivery as Kubernetes Events; [`events`]: which Events a stream of reports comes to. Pure.
//!
//! Nothing here may lose a kill silently, count one twice for the same receiver, or wait for a receiver while a kill
//! wants to be stored.

mod backoff;
pub mod cluster;
mod content;
mod convert;
mod destination;
pub mod events;
mod feed;
mod fold;
pub mod grpc;
pub(crate) mod journal;
mod keeper;
pub mod proto;
mod reporter;
mod seen;
pub mod sink;
pub mod spool;
mod status;
#[cfg(test)]
pub(crate) mod testing;

pub use backoff::Backoff;
pub use content::{Folded, Report};
pub use convert::BadMessage;
pub use destination::{Destination, Destinations};
pub use feed::{Ended, Feed};
pub use reporter::{Deliver, Reporter, ReporterHandle};
pub use status::{DestinationStatus, Link, SpoolStatus, Status};
