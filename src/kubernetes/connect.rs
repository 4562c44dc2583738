//! The service account of a pod, or a kubeconfig → an [`ApiClient`].
//!
//! kube reads the configuration and renews the credentials. This module builds the transport, because kube's builder has no HTTP/2:
//! here the watches of a node share connections, and pings detect a silent API server within seconds.

use std::path::{Path, PathBuf};
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

/// The longest duration of a TCP connect.
const CONNECT: Duration = Duration::from_secs(10);
/// The interval of HTTP/2 pings and TCP keepalive.
const PING: Duration = Duration::from_secs(10);
/// The longest wait for the answer to a ping.
const PONG: Duration = Duration::from_secs(10);

/// The idle time after which the connection for calls is closed. The API server itself closes it after 90 seconds.
const IDLE: Duration = Duration::from_secs(60);

/// The most connections for watches. A node with few namespaces uses only the first.
const WATCH_CONNECTIONS: usize = 8;

/// TLS or the credentials cannot be set up.
const NO_CREDENTIALS: &str = "no API server";

impl ApiClient {
    /// Makes a client with the current context of a kubeconfig, or else with the service account of the agent's pod. Sends
    /// nothing yet.
    ///
    /// Errors: the configuration or the credentials cannot be read.
    pub async fn connect(kubeconfig: Option<&Path>, metrics: ApiMetrics) -> Result<Self> {
        let mut config = match kubeconfig {
            None => kube::Config::incluster().map_err(|error| {
                anyhow!(
                    "no API server: this does not run in a pod with a service account ({error}); set kubeconfig to a file"
                )
            })?,
            Some(path) => {
                let unusable = |error| anyhow!("kubeconfig: {}: {error}", path.display());
                let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
                let options = KubeConfigOptions::default();
                let authority_file = authority_file(&kubeconfig);
                let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
                let mut config = config.map_err(unusable)?;
                config.root_cert_file = authority_file;
                config
            }
        };
        let agent = concat!("vscaled/", env!("CARGO_PKG_VERSION"));
        config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
        // Calls have a connection of their own, because watches may use all streams that the server allows on theirs.
        let connector = connector(&config)?;
        let calls = transport(&config, connector.clone(), Some(IDLE))?;
        let watches = (0..WATCH_CONNECTIONS).map(|_| transport(&config, connector.clone(), None));
        Ok(Self::new(calls, watches.collect::<Result<Vec<_>, _>>()?, metrics))
    }
}

/// The file of the certificate authority that the current context names. kube reads it again each minute, as it does in a pod,
/// so that a rotated authority needs no restart.
fn authority_file(kubeconfig: &Kubeconfig) -> Option<PathBuf> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *current)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    let cluster = cluster.cluster.as_ref()?;
    // kube prefers the data where a kubeconfig has both.
    let file = cluster.certificate_authority.as_ref();
    file.filter(|_| cluster.certificate_authority_data.is_none())
        .map(PathBuf::from)
}

fn connector(config: &kube::Config) -> Result<HttpsConnector<HttpConnector>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PING));
    // Without this, the body of a request waits 40 ms for the acknowledgement of its head.
    tcp.set_nodelay(true);
    let tls = config.rustls_client_config().context(NO_CREDENTIALS)?;
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp))
}

/// A client with one connection, made on demand and closed after `idle`. Without HTTP/2, every request under way has
/// a connection of its own.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_an_authority_is_read_again_and_data_is_not() {
        let file = |cluster: &str| {
            let text = format!(
                "current-context: b\n\
                 contexts: [{{name: a, context: {{cluster: a}}}}, {{name: b, context: {{cluster: c}}}}]\n\
                 clusters: [{{name: a, cluster: {{certificate-authority: /other}}}}, {{name: c, cluster: {cluster}}}]\n"
            );
            authority_file(&Kubeconfig::from_yaml(&text).unwrap())
        };
        assert_eq!(file("{certificate-authority: /ca.crt}"), Some("/ca.crt".into()));
        assert_eq!(file("{certificate-authority-data: eA==}"), None);
        let both = "{certificate-authority: /ca.crt, certificate-authority-data: eA==}";
        assert_eq!(file(both), None);
        assert_eq!(file("{server: 'https://127.0.0.1'}"), None);
    }
}
