//! vscaled: resizes running containers in place on one Kubernetes node.

pub mod cgroup;
pub mod cli;
pub mod config;
pub mod control;
pub mod decide;
pub mod objects;
pub mod observe;
pub mod oom;
pub mod plan;
pub mod resources;
pub mod runtime;
pub mod sources;
