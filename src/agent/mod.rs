//! The agent: everything wired together.
//!
//! Tasks, what each takes in and where its results go:
//!
//! - the sources ([`crate::sources`]): files, the API server → what each knows, in watch channels;
//! - `source_merge`: all sources → one [`NodeView`](crate::sources::NodeView), to the controller;
//! - `discovery`: the runtime's events, requests to look → who lives on the node, to the controller;
//! - the controller (`crate::reconcile`): all of the above, operators' requests, writes by others, the clock → passes;
//! - passes ([`crate::actuate::reconcile`]), at most one for each pod → what they did, back to the controller;
//! - watches after a shrink ([`crate::actuate::shrink::watch`]): how a pod fares under lower limits, to the controller;
//! - `oom`, on a thread of its own: the kernel's log and counters, who lives here, what passes lowered → kills, kept and told;
//! - `crate::reconcile::store`: what must survive a restart → the state file;
//! - reporting ([`crate::report`]): kills → the spool, receivers, Events at the API server;
//! - the audit log ([`crate::observe::audit`]): what passes did, who was refused → its file;
//! - the control socket ([`crate::control`]): operators' requests → the controller;
//! - `event_emitter`: what was done → Kubernetes Events, where there is an API server;
//! - `crate::reconcile::annotations`: what pods hold besides their specs → an annotation on them, where nothing else at the API server says it;
//! - HTTP: metrics and health.
//!
//! The controller owns the state of every pod, so nothing of it is shared and nothing is locked.

mod backend;
mod discovery;
mod doctor;
mod event_emitter;
mod explain;
mod lock;
mod machine;
pub(crate) mod oom;
mod reporting;
mod restore;
mod run;
mod source_merge;
mod usage;
mod view;

pub use restore::{Restoration, Restore, restore};
pub use run::run;
