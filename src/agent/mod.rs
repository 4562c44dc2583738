//! The agent: connects the tasks and runs them.
//!
//! The tasks, with their input and their output:
//!
//! - the sources ([`crate::sources`]): files and the API server → the state of each source, in watch channels;
//! - `source_merge`: all sources → one [`NodeView`](crate::sources::NodeView), to the controller;
//! - `discovery`: the runtime's events and requests of the controller → the pods of the node, to the controller;
//! - the controller (`crate::reconcile`): all of these, operators' requests, writes by others, the clock → passes;
//! - passes ([`crate::actuate::reconcile`]), at most one for each pod at a time → records, to the controller;
//! - watches after a shrink ([`crate::actuate::shrink::watch`]): a pod under lower limits → a verdict, to the controller;
//! - `oom`, on a thread of its own: the kernel's log and counters, the inventory, lowered limits → kills, to the kill log;
//! - `crate::reconcile::store`: the state of every pod → the state file;
//! - reporting ([`crate::report`]): kills → the kill log and receivers; kills and records → Kubernetes Events, where there is an API
//!   server;
//! - the audit log ([`crate::observe::audit`]): changes and refusals → its file;
//! - the control socket ([`crate::control`]): operators' requests → the controller;
//! - `crate::reconcile::annotations`: applied values → an annotation on each pod whose spec does not have them;
//! - HTTP: metrics and health.
//!
//! The controller alone owns the state of every pod, so no lock protects it.

mod after_resize;
mod backend;
mod discovery;
mod doctor;
mod explain;
mod fitting;
mod machine;
pub(crate) mod oom;
mod reporting;
mod restore;
mod run;
mod savings_report;
mod source_merge;
mod start;
mod state_directory;
mod usage;
mod view;

pub use restore::{Restoration, Restore, restore};
pub use run::run;
