//! Promise: after a write by vscaled the cgroup holds the written value, or an error gives the reason. vscaled
//! touches only the cgroup that it opened.
//!
//! Modules named `kernel_*` need root and a real kernel. The same binary tests the machine's cgroup version on the
//! host and in the v2 lab. A test of one version reports that it is skipped on the other.

mod kernel_lifetime;
mod kernel_places;
mod kernel_v1;
mod kernel_v2;
mod kernel_watch;
mod kernel_writes;
pub(crate) mod tree;
