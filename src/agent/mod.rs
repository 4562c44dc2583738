//! The agent: everything wired together.
//!
//! Tasks, what each takes in and where its results go:
//!
//! - the sources ([`crate::sources`]): files, the API server → what each knows, in watch channels;
//! - `feeding`: all sources → one [`NodeView`](crate::sources::NodeView), to the coordinator;
//! - `survey`: the runtime's events, requests to look → who lives on the node, to the coordinator;
//! - `coordinator`: all of the above, operators' requests, writes by others, the clock → passes;
//! - passes ([`crate::actuate::reconcile`]), at most one for each pod → what they did, back to the coordinator;
//! - watches after a shrink ([`crate::actuate::shrink::watch`]): how a pod fares under lower limits, to the coordinator;
//! - `saver`: what must survive a restart → the state file;
//! - the control socket ([`crate::control`]): operators' requests → the coordinator;
//! - `telling`: what was done → Kubernetes Events, where there is an API server;
//! - HTTP: metrics and health.
//!
//! The coordinator owns everything that is known, so nothing is shared and nothing is locked.

mod backend;
mod coordinator;
mod entry;
mod explain;
mod feeding;
mod history;
mod inventory;
mod metrics;
mod overrides;
mod run;
mod saver;
mod shrinking;
mod standing;
mod state;
mod survey;
mod telling;
mod view;
mod watching;

pub use run::{RunError, run};
pub use state::StateError;
