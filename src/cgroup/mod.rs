//! The kernel's cgroup files, and systemd where it owns the tree.
//!
//! In come mount tables, directory trees, process ids and [`Setting`](crate::model::Setting)s to write; out go the
//! layout of the node ([`Hierarchy`], [`Kubepods`]), what is in it ([`Kubepods::scan`], [`Place`]), open cgroups
//! ([`CgroupDir`], [`Cgroup`]), what their files hold, and what became of each write ([`CgroupError`]).
//!
//! Everything here blocks: call it from a thread that may. The root of the tree is always a parameter.
//!
//! What this room must never do:
//! * create or truncate a file, make or remove a cgroup, or move a process;
//! * write to a cgroup other than the one that was opened: an open cgroup is held by its directory's descriptor, so a
//!   path that was removed and made again is a different cgroup and is never written through an old handle;
//! * take a memory limit below what is in use where the kernel would kill for it (v2). The check is part of the only
//!   write; v1 refuses such a limit itself, and is asked only when what is in use could be reclaimed;
//! * call a write done before reading it back.
//!
//! cgroups-rs supplies the names of systemd's properties. Its own file setters are not used: they swallow errors, create
//! missing files and know only one root.

mod alarm;
mod dir;
mod error;
mod file;
mod freeze;
mod hierarchy;
mod kubepods;
mod limits;
mod memory;
mod pair;
mod pid;
mod place;
pub mod systemd;
mod uncarried;
mod usage;
mod watch;
mod write;

pub use dir::{CgroupDir, Identity, State};
pub use error::{CgroupError, Reason};
pub use file::Dir;
pub use freeze::FreezerState;
#[cfg(any(test, fuzzing))]
pub(crate) use hierarchy::fuzz_mounts;
pub use hierarchy::{Hierarchy, LayoutError};
pub use kubepods::{ContainerEntry, FindError, Kubepods, PodEntry, children};
pub use limits::page_size;
pub use pair::Cgroup;
pub use pid::{cgroup_of_pid, signal_in};
pub use place::{ContainerId, ContainerPlace, Place, PodPlace, PodUid};
pub use usage::Usage;
pub use watch::{Notice, Token, Watch};
