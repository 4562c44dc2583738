//! The way in: HTTP/2 through TLS, as real API servers offer it, and a kubeconfig that leads there.

use std::path::PathBuf;

use axum::Router;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};

/// What newer API servers allow on one connection; older ones allow 250.
const STREAMS: u32 = 100;

/// Where to find it. The files are gone when this is.
#[derive(Debug)]
pub(super) struct Entrance {
    directory: TempDir,
}

impl Entrance {
    /// Serves until the task is aborted.
    pub(super) async fn open(router: Router) -> (Self, JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(crate::support::scratch())
            .unwrap();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let identity = Identity::from_pem(cert.pem(), signing_key.serialize_pem());
        let entrance = Self { directory };
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
        (entrance, tokio::spawn(async move { server.await.unwrap() }))
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }
}
