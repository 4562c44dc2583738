//! Where the API server is and who calls it: a service account in a pod, or a kubeconfig → an [`ApiClient`].
//!
//! The transport is put together here rather than by kube's builder, for HTTP/2: a node's watches share connections, and
//! pings notice within seconds that it has gone silent. kube reads the configuration and keeps the credentials fresh.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
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

/// TLS or the credentials cannot be set up.
const NO_CREDENTIALS: &str = "no API server";

/// How the API server is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// As the service account of the pod this runs in.
    InCluster,
    /// As the current context of this kubeconfig says.
    Kubeconfig(PathBuf),
}

impl Access {
    /// A client. Nothing is sent yet.
    ///
    /// Errors: configuration or credentials cannot be read.
    pub async fn connect(&self, counted: ApiMetrics) -> Result<ApiClient> {
        let mut config = self.config().await?;
        let agent = concat!("vscaled/", env!("CARGO_PKG_VERSION"));
        config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
        // Calls have a connection of their own: a server that allows few streams on one may be full of watches.
        let connector = connector(&config)?;
        let calls = transport(&config, connector.clone(), Some(IDLE))?;
        let watches = (0..WATCH_CONNECTIONS).map(|_| transport(&config, connector.clone(), None));
        Ok(ApiClient::new(calls, watches.collect::<Result<Vec<_>, _>>()?, counted))
    }

    async fn config(&self) -> Result<kube::Config> {
        match self {
            Self::InCluster => kube::Config::incluster().map_err(|error| {
                anyhow!(
                    "no API server: this does not run in a pod with a service account ({error}); set kubeconfig to a file"
                )
            }),
            Self::Kubeconfig(path) => {
                let unusable = |error| anyhow!("kubeconfig: {}: {error}", path.display());
                let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
                let options = KubeConfigOptions::default();
                let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
                config.map_err(unusable)
            }
        }
    }
}

fn connector(config: &kube::Config) -> Result<HttpsConnector<HttpConnector>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PING));
    // A request's body leaves after its head: otherwise it would wait for the head to be acknowledged, which takes 40 ms.
    tcp.set_nodelay(true);
    let tls = config.rustls_client_config().context(NO_CREDENTIALS)?;
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
) -> Result<kube::Client> {
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
        .option_layer(config.auth_layer().context(NO_CREDENTIALS)?)
        .layer(config.extra_headers_layer().context(NO_CREDENTIALS)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}
