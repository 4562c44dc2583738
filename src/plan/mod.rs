//! Pure: what every level of a pod must hold, and the order of the steps that lead there.
//!
//! Input: a pod, the requests and limits decided for its containers, the node's traits
//! ([`NodeTraits`](crate::model::NodeTraits)), and what the kernel and the runtime hold now
//! ([`PodValues`](crate::model::PodValues)). Output: the values of every cgroup ([`hierarchy()`]) and ordered
//! [`Step`](crate::model::Step)s ([`Plan::between`]). Two values differ only if they mean something different to the kernel.

mod burst;
mod hierarchy;
pub mod hook;
mod order;
mod paths;
mod planner;
mod pod_level;
mod quota;
mod reservation;
mod room;
mod scope;
pub mod shrink;
mod targets;

#[cfg(test)]
mod kernel_model;
#[cfg(test)]
mod tests;

pub use burst::bursts;
pub use hierarchy::{Allowance, Hierarchy, hierarchy, in_force, pod_requests};
pub use paths::{container_cgroup_name, pod_cgroup_path};
pub use planner::{Plan, PlanError, spec_step, systemd_keeps};
pub use pod_level::LowPodLevel;
pub use quota::QuotaAccount;
pub use room::{Capacity, NoRoom, NodeRequests, OtherPods, Room, larger, sum};
pub use scope::{Quotas, WriteScope};
pub use targets::{PodTargets, lift_kept, without_cgroup};
