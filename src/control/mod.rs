//! The unix socket: operators' requests in, answers out.
//!
//! The server checks who calls (peer credentials) and passes requests on to the agent; it holds no state and decides nothing.

pub mod proto;
