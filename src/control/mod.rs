//! Serves operators' requests at a unix socket.
//!
//! In come calls of `proto/vscaled/control/v1` from root, the agent's own user and the configured groups ([`Access`]); out
//! go the answers of the agent, which implements the generated service [`Control`]. The parts:
//!
//! - [`ControlSocket`] owns the file: private from the first moment, never taken from a living agent, removed at the end.
//! - `connections` accepts and identifies callers and bounds their number; `access` decides their rights.
//! - [`serve`] bounds the size of calls and passes them to the agent. The agent's [`CallGate`] refuses callers without the
//!   right, and bounds the number, the rate and the time of calls. `answer` sends the answers in pieces.
//! - [`ChangeFeed`] holds the changes for watchers.
//! - `convert` checks requests, and `select` finds the pods that a request names.
//! - [`Client`] calls the agent.
//!
//! This module decides nothing about pods and holds no state about them. A stuck caller never blocks the agent.

mod access;
mod answer;
mod client;
mod connections;
mod convert;
mod feed;
mod select;
mod server;
mod socket;

pub use crate::model::ControlError;
pub use crate::proto::control as proto;
pub use access::{Access, Group, Right};
pub use client::{Client, ClientError, Watch};
pub use connections::Caller;
pub(crate) use convert::LONGEST_TTL;
pub use convert::{check_change, resize_values};
pub use feed::ChangeFeed;
pub use proto::control_server::Control;
pub use select::{find_pod, names_container, selector};
pub use server::{CallGate, Changes, LARGEST_ANSWER, Limits, serve};
pub use socket::ControlSocket;

/// The path of the socket by default.
pub const DEFAULT_SOCKET: &str = "/run/vscaled/vscaled.sock";

/// How a problem of an agent begins that says which pods its answer lacks.
pub const LEFT_OUT: &str = "the answer leaves out ";
