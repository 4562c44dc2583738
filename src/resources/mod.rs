//! The vocabulary: amounts of cpu and memory, what a container requests and may use, QoS classes, and the values the
//! kernel's cgroup files hold.
//!
//! Everything here is plain data and arithmetic. Amounts arrive as Kubernetes quantities ([`quantity`]), become typed
//! units ([`MilliCpu`], [`Bytes`]) at the edge, and leave as [`Setting`]s, one for each cgroup file. Nothing here does
//! I/O, and every conversion states the upstream function it agrees with.

mod kernel;
mod qos;
pub mod quantity;
mod requirements;
mod setting;
mod units;

pub use kernel::{CpuMax, CpuQuota, CpuShares, CpuWeight, DEFAULT_CFS_PERIOD_US, MemoryLimit, PageSize, WeightFormula};
pub use qos::QosClass;
pub use requirements::{NamedRequirements, Requirements, ResourceList};
pub use setting::{ControlFile, ParseSettingError, Setting, Settings};
pub use units::{Bytes, MilliCpu, Resource};
