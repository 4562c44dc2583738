//! The kernel's cgroup files, and systemd where it owns the tree.
//!
//! In come mount tables, directory trees, process ids and [`Setting`](crate::model::Setting)s to write; out go the
//! layout of the node ([`Hierarchy`], [`Kubepods`]), its pods and containers ([`Kubepods::scan`], [`Place`]), open cgroups
//! ([`CgroupDir`], [`Cgroup`]), the values of their files, and the result of each write ([`CgroupError`]).
//!
//! Every function blocks: call it from a thread that may. The root of the tree is always a parameter.
//!
//! This module never
//! * creates or truncates a file, makes or removes a cgroup, or moves a process;
//! * writes to a cgroup other than the one that it opened: an open cgroup is held by its directory's descriptor, so a path
//!   that was removed and made again is another cgroup, which no old handle reaches;
//! * lowers a memory limit below the memory in use where the kernel would kill for that (v2). The check is part of the only
//!   write; v1 refuses such a limit itself, and the agent writes it only when the kernel could reclaim enough;
//! * reports a write as done before reading the value back.
//!
//! cgroups-rs supplies the names of systemd's properties. The agent does not use its file setters: they swallow errors, create
//! missing files and know only one root.

mod alarm;
mod custom_limits;
mod dir;
mod error;
mod file;
mod freeze;
pub(crate) mod hierarchy;
mod kubepods;
mod memory;
mod pair;
mod pid;
mod place;
pub mod systemd;
mod watch;
mod write;

pub use dir::{CgroupDir, Identity};
pub use error::{CgroupError, Reason};
pub use file::Dir;
pub use freeze::{FreezeFile, FreezerState};
pub use hierarchy::Hierarchy;
pub use kubepods::{Kubepods, PodEntry, children};
pub use memory::{Periods, Usage, page_size};
pub use pair::Cgroup;
pub use pid::{cgroup_of_pid, signal_in};
pub use place::{Place, PodPlace, uid_in_cgroup_name};
pub use watch::Watch;
