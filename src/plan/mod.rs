//! Pure: what every level of a pod must hold, and in which order to get there.
//!
//! In come a pod, the requests and limits decided for its containers, what the node is like ([`NodeTraits`]) and what
//! the kernel and the runtime hold now ([`Observed`]); out come the values of every cgroup ([`hierarchy`]) and ordered
//! [`Step`]s ([`steps`]). No I/O, no clock. Values differ only where they mean something different to the kernel.

mod types;

pub use types::{
    CgroupVersion, Change, CriResources, Driver, KubeletVersion, NodeTraits, PodTree, RuntimeKind, Step, Target, Via,
};
