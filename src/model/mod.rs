//! The types that several modules use. Plain data and arithmetic, without I/O.
//!
//! - Amounts: Kubernetes quantities ([`quantity`]) become typed units ([`MilliCpu`], [`Bytes`]), and these become [`Setting`]s,
//!   one for each cgroup file. Every conversion names the upstream function that it agrees with.
//! - Kubernetes: the [`objects`] that decisions need, a container's [`Requirements`], a pod's [`QosClass`].
//! - The node: [`NodeTraits`], the paths of its cgroups ([`CgroupPath`]), their memory ([`MemoryReading`]), the pods that run
//!   there ([`LivePod`], [`BoundPod`]).
//! - Readings: [`at_once()`] takes facts of one moment.
//! - Changes: a decision's [`Reason`], a plan's [`Step`]s, a pass's [`ChangeRecord`], a refused request's [`ControlError`].

mod at_once;
mod cgroup_path;
mod container;
mod control_error;
mod decision;
mod kernel;
mod memory;
mod node;
pub mod objects;
mod pod_amounts;
pub mod quantity;
mod record;
mod requirements;
mod setting;
mod step;
mod total;
mod units;
mod yaml;

pub use at_once::{QUICK, READINGS, at_once};
pub use cgroup_path::{CgroupPath, InvalidPath};
pub(crate) use container::is_hex_digit;
pub use container::{ContainerId, ContainerName};
pub use control_error::{ControlError, OBSERVING};
pub use decision::{Action, Reason};
pub use kernel::*;
pub use memory::{MemoryReading, Reclaim, WatchReading};
pub use node::*;
pub use pod_amounts::PodAmounts;
pub use record::{Cause, ChangeRecord, Evidence, HookEnd, Outcome, Stages, StepRecord, Withheld, micros};
pub use requirements::{NamedRequirements, QosClass, Requirements, ResourceList};
pub use setting::{ControlFile, ParseSettingError, Setting, Settings};
pub use step::*;
pub use total::{Part, init_steps, total};
pub use units::{Bytes, MilliCpu, Resource};
pub use yaml::unreadable;
