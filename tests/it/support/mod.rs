//! What tests start and clean up themselves: an agent, a container runtime with its images, a cgroup tree of their own,
//! pods in it.
//!
//! Everything here works the same on cgroup v1 and v2, needs root, and touches only what it made. A missing program
//! fails the test with the name of what to install; nothing is skipped.

pub(crate) mod agent;
pub(crate) mod amounts;
pub(crate) mod bare;
pub(crate) mod containerd;
pub(crate) mod image;
pub(crate) mod mounts;
pub(crate) mod pods;
pub(crate) mod tree;
