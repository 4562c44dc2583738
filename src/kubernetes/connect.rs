//! Where the API server is and who calls it: a service account in a pod, or a kubeconfig → an [`ApiClient`].
//!
//! The transport is put together here rather than by kube's builder, for HTTP/2: a node's watches share connections, and
//! pings notice within seconds that it has gone silent. kube reads the configuration and keeps the credentials fresh.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tower::{BoxError, ServiceBuilder};

use super::client::{ApiClient, CALLS_AT_ONCE};
use crate::kubernetes::metrics::ApiMetrics;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How often the other end is asked whether it is still there.
const PING: Duration = Duration::from_secs(10);
/// How long it may take to say so.
const PONG: Duration = Duration::from_secs(10);

/// How long the connection for calls is kept for the next one; the API server itself closes it after 90 seconds.
const IDLE: Duration = Duration::from_secs(60);

/// Connections that watches may be spread over. All but the first stay unused on a node that has few namespaces.
const WATCH_CONNECTIONS: usize = 8;

/// How the API server is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// As the service account of the pod this runs in.
    InCluster,
    /// As the current context of this kubeconfig says.
    Kubeconfig(PathBuf),
}

/// There is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This is not a pod with a service account.
    #[error("no API server: this does not run in a pod with a service account ({0}); set kubeconfig to a file")]
    NotInCluster(#[source] kube::config::InClusterError),
    /// The kubeconfig cannot be used.
    #[error("kubeconfig: {}: {source}", path.display())]
    Kubeconfig {
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// TLS or the credentials cannot be set up.
    #[error("no API server: {0}")]
    Credentials(#[source] kube::Error),
}

impl Access {
    /// A client. Nothing is sent yet.
    ///
    /// Errors: [`ConnectError`] when configuration or credentials cannot be read.
    pub async fn connect(&self, counted: ApiMetrics) -> Result<ApiClient, ConnectError> {
        let mut config = self.config().await?;
        let agent = concat!("vscaled/", env!("CARGO_PKG_VERSION"));
        config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
        // Calls have a connection of their own: a server that allows few streams on one may be full of watches.
        let connector = connector(&config)?;
        let calls = transport(&config, connector.clone(), Some(IDLE))?;
        let watches = (0..WATCH_CONNECTIONS).map(|_| transport(&config, connector.clone(), None));
        Ok(ApiClient::new(calls, watches.collect::<Result<Vec<_>, _>>()?, counted))
    }

    async fn config(&self) -> Result<kube::Config, ConnectError> {
        match self {
            Self::InCluster => kube::Config::incluster().map_err(ConnectError::NotInCluster),
            Self::Kubeconfig(path) => {
                let error = |source| ConnectError::Kubeconfig {
                    path: path.clone(),
                    source,
                };
                let kubeconfig = Kubeconfig::read_from(path).map_err(error)?;
                kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await
                    .map_err(error)
            }
        }
    }
}

fn connector(config: &kube::Config) -> Result<HttpsConnector<HttpConnector>, ConnectError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PING));
    // A request's body leaves after its head: otherwise it would wait for the head to be acknowledged, which takes 40 ms.
    tcp.set_nodelay(true);
    let tls = config.rustls_client_config().map_err(ConnectError::Credentials)?;
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp))
}

/// One connection, made when it is needed and again when it is lost, and closed when nothing has been begun on it for so
/// long. Where HTTP/2 is not spoken, one for each of what is under way at once.
fn transport(
    config: &kube::Config,
    connector: HttpsConnector<HttpConnector>,
    idle: Option<Duration>,
) -> Result<kube::Client, ConnectError> {
    let http = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(idle)
        .pool_max_idle_per_host(CALLS_AT_ONCE)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PONG)
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(ConnectError::Credentials)?)
        .layer(config.extra_headers_layer().map_err(ConnectError::Credentials)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}
