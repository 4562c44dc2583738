//! Reports of OOM kills reach every receiver: through real gRPC over loopback, unix sockets and TLS, through receivers that
//! misbehave, disks that refuse, and agents that are killed.

mod crash;
mod delivery;
mod host_agent;
mod host_disk_full;
mod manners;
pub(crate) mod receiver;
pub(crate) mod sink;
pub(crate) mod station;
mod tls;
