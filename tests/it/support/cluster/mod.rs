//! Parts of a real cluster: etcd, kube-apiserver and a kubelet, built by `scripts/kube-parts`.
//!
//! Every part listens on loopback, has its own directory and ends with its value.

mod admin;
mod apiserver;
mod enclosure;
mod kubelet;
mod node;
pub(crate) mod objects;

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

pub(crate) use apiserver::{ApiServer, User};
pub(crate) use enclosure::Enclosure;
pub(crate) use kubelet::{Kubelet, NODE};
pub(crate) use node::Node;

/// The directory of the programs. Without them, reports `test` as skipped and returns `None`.
pub(crate) fn parts(test: &str) -> Option<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kube-parts");
    let found = Command::new(script)
        .arg("--where")
        .stderr(Stdio::null())
        .output()
        .unwrap();
    if found.status.success() {
        return Some(PathBuf::from(String::from_utf8(found.stdout).unwrap().trim()));
    }
    super::skipped(test, "no kube-apiserver here: scripts/kube-parts builds one");
    None
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
