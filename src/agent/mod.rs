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
//! - `oom`, on a thread of its own: the kernel's log and counters, who lives here, what passes lowered → kills, kept and told;
//! - `saver`: what must survive a restart → the state file;
//! - reporting ([`crate::report`]): kills → the spool, receivers, Events at the API server;
//! - the audit log ([`crate::observe::audit`]): what passes did, who was refused → its file;
//! - the control socket ([`crate::control`]): operators' requests → the coordinator;
//! - `telling`: what was done → Kubernetes Events, where there is an API server;
//! - `applied`: what pods hold besides their specs → an annotation on them, where nothing else at the API server says it;
//! - HTTP: metrics and health.
//!
//! The coordinator owns everything that is known, so nothing is shared and nothing is locked.

mod applied;
mod backend;
mod capacity;
mod coordinator;
mod doctor;
mod entry;
mod explain;
mod feeding;
mod history;
mod inventory;
mod lock;
mod machine;
mod metrics;
mod oom;
mod options;
mod overrides;
mod reporting;
mod restore;
mod run;
mod saver;
mod shrinking;
mod standing;
mod state;
mod survey;
mod telling;
mod view;
mod watching;

pub use lock::LockError;
pub use machine::UnknownGroup;
pub use restore::{Restoration, Restore, RestoreError, restore};
pub use run::{RunError, run};
pub use state::StateError;
