//! Access to the API server model: HTTP/2 over TLS like a real API server, a kubeconfig, and a link that can break.

use std::path::PathBuf;

use axum::Router;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};

/// The limit of streams for each connection in newer API servers; older ones allow 250.
const STREAMS: u32 = 100;

/// The state of the network between the client and the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// Connections are closed, and new ones are refused.
    Cut,
    /// Connections stay open and carry no data. Connections from before are closed when the link is up again.
    Silent,
}

/// The address, certificates and kubeconfig. Dropping the value removes the files.
#[derive(Debug)]
pub(super) struct Entrance {
    directory: TempDir,
    link: watch::Sender<Link>,
}

impl Entrance {
    /// Serves until the task is aborted.
    pub(super) async fn open(router: Router) -> (Self, JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let behind = listener.local_addr().unwrap();
        let front = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = front.local_addr().unwrap();
        let (link, linked) = watch::channel(Link::Up);
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(crate::support::scratch())
            .unwrap();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let identity = Identity::from_pem(cert.pem(), signing_key.serialize_pem());
        let entrance = Self { directory, link };
        std::fs::write(entrance.authority(), cert.pem()).unwrap();
        let text = format!(
            "apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: 'https://{address}', certificate-authority: '{}'}}}}]
users: [{{name: test, user: {{}}}}]
",
            entrance.authority().display()
        );
        std::fs::write(entrance.kubeconfig(), text).unwrap();
        let server = Server::builder()
            .tls_config(ServerTlsConfig::new().identity(identity))
            .unwrap()
            .max_concurrent_streams(STREAMS)
            .add_routes(Routes::from(router))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        let served = async move {
            tokio::select! {
                served = server => served.unwrap(),
                () = forward(front, behind, linked) => {}
            }
        };
        (entrance, tokio::spawn(served))
    }

    pub(super) fn link(&self, link: Link) {
        self.link.send_replace(link);
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }
}

/// Forwards every connection while the link is up.
async fn forward(front: TcpListener, behind: std::net::SocketAddr, link: watch::Receiver<Link>) {
    loop {
        let (mut outer, _) = front.accept().await.unwrap();
        let mut link = link.clone();
        tokio::spawn(async move {
            if *link.borrow_and_update() == Link::Up {
                let mut inner = TcpStream::connect(behind).await.unwrap();
                outer.set_nodelay(true).unwrap();
                inner.set_nodelay(true).unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut outer, &mut inner) => return,
                    changed = link.changed() => drop(changed),
                }
            }
            // Fails only after the API server has ended.
            drop(link.wait_for(|link| *link != Link::Silent).await);
        });
    }
}
