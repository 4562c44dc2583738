//! The unix socket: operators' requests in, answers out.
//!
//! In come calls of `proto/vscaled/control/v1` over a socket that only root and the agent's own user may use; out go the
//! agent's answers, through the [`Backend`] it implements. On the way:
//!
//! - [`ControlSocket`] owns the file: private from the first moment, never taken from a living daemon, removed at the end.
//! - `connections` bounds how many callers there are. A silent one gives way to a newer one.
//! - [`serve`] checks who calls (peer credentials), bounds calls in number, size and time, and passes them on.
//! - [`Client`] is the other end.
//!
//! Nothing here decides or holds state about pods, and a stuck caller never holds the agent.

mod backend;
mod client;
mod connections;
mod convert;
pub mod proto;
mod select;
mod server;
mod socket;
mod throttle;
mod watch;

pub use backend::{Backend, Caller, ControlError};
pub use client::{Client, ClientError, Watch};
pub use convert::resize_values;
pub use select::find_pod;
pub use server::{Limits, ServeError, serve};
pub use socket::{BindError, ControlSocket};

/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/vscaled/vscaled.sock";
