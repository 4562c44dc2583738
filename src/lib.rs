//! vscaled: resizes running containers in place on one Kubernetes node.

pub mod cli;
pub mod objects;
pub mod plan;
pub mod resources;
pub mod runtime;
