//! Makes one pod's cgroups and runtime hold what was decided, and says exactly what it did.
//!
//! [`reconcile`] is the only path by which anything is written, whoever asked: a recommendation, an operator, a drift
//! repair or a container that just started. It observes (the kernel's files, then the runtime's stored spec), plans
//! (pure, [`crate::plan`]), patches the pod's spec first where the kubelet resizes in place, runs the steps, verifies by
//! reading back, and undoes everything it did when a step is refused. Limits of memory come down in a way of their own
//! ([`shrink`]). It never decides what a pod should have, and it never remembers what a file held: each pass reads.

mod concurrency;
mod execute;
mod foreign;
mod handles;
mod hook;
mod job;
mod least_limits;
mod node;
mod observe;
mod pass;
mod patch;
mod runtime_stage;
pub mod shrink;
mod urgent;

pub use concurrency::Concurrency;
pub use foreign::{ForeignWriters, Verdict};
pub use handles::PodHandles;
pub use hook::{HookRun, hook_problems, run_hook};
pub use job::{Job, JobDone, preview};
pub use least_limits::LeastLimits;
pub use node::{KnownFrom, Node, RuntimeLink};
pub use pass::reconcile;
pub use patch::{ApiReport, PodResizer, ResizeError, Saved};
pub use runtime_stage::stored_specs;
pub use urgent::{Growable, Grown, PodBound, grow_memory, raise_pod_level};
