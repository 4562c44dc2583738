//! Reports of OOM kills reach every receiver over real gRPC on loopback, unix sockets and TLS, despite misbehaving
//! receivers, failing disks and killed agents.

mod crash;
mod delivery;
mod host_agent;
mod host_disk_full;
mod manners;
pub(crate) mod receiver;
pub(crate) mod sink;
pub(crate) mod station;
mod tls;
