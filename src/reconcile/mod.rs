//! The state of every pod, and the passes that bring each pod to what it should have.
//!
//! - [`controller`]: turns facts, requests and the clock into inputs, and effects into passes, files and answers. Only
//!   the controller owns [`pod::Pods`].
//! - [`pod`]: `PodState × PodInput → PodState + Vec<Effect>`, pure. [`desired`], [`drift`], [`growth`], [`hooks`],
//!   [`no_room`], [`shrink`] and [`work`] are its parts, beside [`crate::resize`]; [`overrides`] checks the values of
//!   operators.
//! - [`capacity`]: the node's room for its pods.
//! - [`store`]: the state that survives a restart.
//! - [`history`], [`metrics`], [`savings`], [`annotations`]: the published facts about passes and pods.
//! - [`inventory`], [`watching`]: which pods run here, and when another process writes their files.

pub(crate) mod annotations;
pub(crate) mod capacity;
pub(crate) mod controller;
pub(crate) mod desired;
pub(crate) mod drift;
pub(crate) mod growth;
pub(crate) mod history;
pub(crate) mod hooks;
pub(crate) mod inventory;
pub(crate) mod metrics;
pub(crate) mod no_room;
pub(crate) mod overrides;
pub(crate) mod pod;
pub(crate) mod savings;
pub(crate) mod shrink;
pub(crate) mod store;
pub(crate) mod watching;
pub(crate) mod work;
