//! Makes one pod's cgroups and runtime hold what was decided, and says exactly what it did.
//!
//! [`reconcile`] is the only path by which anything is written, whoever asked: a recommendation, an operator, a drift
//! repair or a container that just started. It observes (the kernel's files, then the runtime's stored spec), plans
//! (pure, [`crate::plan`]), asks the API server first where the kubelet resizes in place, runs the steps, verifies by
//! reading back, and undoes everything it did when a step is refused. Limits of memory come down in a way of their own
//! ([`shrink`]). It never decides what a pod should have, and it never remembers what a file held: each pass reads.

mod concurrency;
mod execute;
mod foreign;
mod handles;
mod in_kernel;
mod job;
mod least_limits;
mod node;
mod observe;
mod pass;
mod runtime_stage;
pub mod shrink;
mod through_api;
mod urgent;

pub use concurrency::Concurrency;
pub use foreign::{ForeignWriters, Verdict};
pub use handles::PodHandles;
pub use in_kernel::make_room;
pub use job::{Job, JobDone, preview, reconcile};
pub use least_limits::LeastLimits;
pub use node::{DriverFrom, FormulaFrom, KubeletFrom, Node, RuntimeLink};
pub use runtime_stage::stored_specs;
pub use through_api::{
    AcceptedResize, ApiReport, PodResizer, PreparedResize, ResizeError, ResizeTerms, Saved, Unreported, planned_resize,
};
pub use urgent::{Growable, Grown, PodBound, grow_memory, raise_pod_level};
