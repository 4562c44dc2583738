//! Makes one pod's cgroups and runtime hold the decided values, and records every step.
//!
//! [`reconcile`] is the only path of a write, for every cause: a recommendation, an operator, a drift repair or a container
//! that just started. It reads the kernel's files, plans ([`crate::plan`], pure), patches the pod's spec first where the kubelet
//! resizes in place, carries out the steps, updates the runtime's stored specs, verifies by reading back, and undoes everything
//! when a step is refused. [`shrink`] lowers memory limits. This module never decides the targets of a pod, and never remembers
//! the content of a file: each pass reads.

mod concurrency;
mod execute;
mod foreign;
mod handles;
mod hook;
mod job;
mod least_limits;
mod node;
mod pass;
mod patch;
mod runtime_stage;
pub mod shrink;
mod urgent;

pub use concurrency::Concurrency;
pub use foreign::ForeignWriters;
pub use handles::PodHandles;
pub use hook::{HookRun, hook_problems, run_hook};
pub use job::{Job, JobDone, preview};
pub use least_limits::LeastLimits;
pub use node::{KnownFrom, Node, RuntimeLink};
pub use pass::reconcile;
pub use patch::{PodResizer, Saved};
pub use runtime_stage::stored_specs;
pub use urgent::{Growable, Grown, PodBound, grow_memory, raise_pod_level};
