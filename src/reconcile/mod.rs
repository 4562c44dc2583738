//! One pod, one state, one owner: what every pod should have, and the passes that make it so.
//!
//! - [`controller`]: facts, requests and the clock → inputs; effects → passes, files, answers. The only owner of [`pod::Pods`].
//! - [`pod`]: `PodState × PodInput → PodState + Vec<Effect>`, pure; [`desired`], [`resize`], [`shrink`] and [`work`]
//!   are its parts, [`overrides`] checks what operators set.
//! - [`capacity`]: what the node has for its pods.
//! - [`store`]: what survives a restart.
//! - [`history`], [`metrics`], [`worth`], [`annotations`]: what is said of passes and pods.
//! - [`inventory`], [`watching`]: which pods run here, and who writes their files.

pub(crate) mod annotations;
pub(crate) mod capacity;
pub(crate) mod controller;
pub(crate) mod desired;
pub(crate) mod history;
pub(crate) mod inventory;
pub(crate) mod metrics;
pub(crate) mod overrides;
pub(crate) mod pod;
pub(crate) mod resize;
pub(crate) mod shrink;
pub(crate) mod store;
pub(crate) mod watching;
pub(crate) mod work;
pub(crate) mod worth;
