//! Parts of a real cluster: etcd, kube-apiserver, a kubelet and containerd, built by `scripts/kube-parts`.
//!
//! Every part listens on loopback, has its own directory and ends with its value.

mod admin;
mod api;
mod apiserver;
mod components;
pub(crate) mod enclosure;
mod kubelet;
mod node;
pub(crate) mod objects;
mod programs;
mod today;

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;

pub(crate) use api::{Api, User};
pub(crate) use apiserver::ApiServer;
pub(crate) use components::Components;
pub(crate) use enclosure::Enclosure;
pub(crate) use kubelet::{Kubelet, NODE, guests_address};
pub(crate) use node::Node;
pub(crate) use programs::{Programs, Release};
pub(crate) use today::{IMAGE, Parts, Today};

/// Whether systemd makes the cgroups of clusters of today, which then run where it is the first process (`scripts/systemd-lab`).
pub(crate) fn has_systemd_driver() -> bool {
    std::env::var("VSCALED_TEST_CGROUP_DRIVER").is_ok_and(|driver| driver == "systemd")
}

/// A free port on loopback. No other test gets it while this one runs.
pub(crate) fn free_port() -> u16 {
    /// Abstract sockets whose names stand for the ports. The names end with the process.
    static GIVEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let name = SocketAddr::from_abstract_name(format!("vscaled-test-port-{port}")).unwrap();
        if let Ok(claim) = UnixListener::bind_addr(&name) {
            GIVEN.lock().unwrap().push(claim);
            return port;
        }
    }
}
