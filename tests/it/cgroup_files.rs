//! Promise: what vscaled writes into a cgroup is what the kernel then holds, or an error says why not, and no cgroup but
//! the one that was opened is touched.
//!
//! Modules named `kernel_*` need root and a real kernel. They use what the machine has, v1 or v2, so that the same binary
//! tests both: on the host, and in the v2 lab. A test of one version's own behaviour says
//! loudly that it is skipped on the other.

mod kernel_lifetime;
mod kernel_places;
mod kernel_v1;
mod kernel_v2;
mod kernel_watch;
mod kernel_writes;
pub(crate) mod tree;
