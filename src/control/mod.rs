//! The unix socket: operators' requests in, answers out.
//!
//! In come calls of `proto/vscaled/control/v1` over a socket for root, the agent's own user and the configured groups
//! ([`Access`]); out go the agent's answers: it implements [`Control`], the service as it is generated. On the way:
//!
//! - [`ControlSocket`] owns the file: private from the first moment, never taken from a living daemon, removed at the end.
//! - `peer` asks the kernel who called, and `access` says what they may.
//! - `connections` bounds the number of callers. A silent one gives way to a newer one.
//! - [`serve`] bounds calls in size and hands them to the agent; its [`CallGate`] refuses callers without the right, and
//!   bounds calls in number, rate and time.
//! - `select` finds the pods a caller means.
//! - [`Client`] is the other end.
//!
//! Nothing here decides or holds state about pods, and a stuck caller never holds the agent.

mod access;
mod client;
mod connections;
mod convert;
mod error;
mod select;
mod server;
mod socket;

pub use crate::proto::control as proto;
pub use access::{Access, Group, Right};
pub use client::{Client, ClientError, Watch};
pub use connections::Caller;
pub use convert::{check_change, resize_values};
pub use error::ControlError;
pub use proto::control_server::Control;
pub use select::{Selector, find_pod};
pub use server::Changes;
pub use server::{CallGate, Limits, serve};
pub use socket::ControlSocket;

/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/vscaled/vscaled.sock";
