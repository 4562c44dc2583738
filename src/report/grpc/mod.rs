//! Reports to a receiver of `vscaled.report.v1`: out go reports, in come acknowledgements.
//!
//! One connection with one stream at a time. Certificates are read anew for each connection, so replaced files take effect
//! with the next one. A receiver that is away, that hangs, that refuses or that talks nonsense is left alone for a while,
//! longer each time, and says why in one short sentence; its reports stay in the spool.
//!
//! What a receiver sends is not trusted: it can settle what was sent to it on this stream, and nothing else.

mod client;
mod endpoint;
mod session;
mod tls;
mod window;
mod words;

pub use client::{GrpcDelivery, GrpcOptions, Identity};
pub use endpoint::{Endpoint, EndpointError};
pub use tls::TlsFiles;

/// The version of the protocol, in `Hello.version`.
pub const PROTOCOL_VERSION: u32 = 1;
