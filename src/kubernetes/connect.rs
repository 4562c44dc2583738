//! The service account of a pod, or a kubeconfig → an [`ApiClient`].
//!
//! kube reads the configuration and renews the tokens of files. This module builds the transport, because kube's builder has no HTTP/2:
//! here the watches of a node share connections, and pings detect a silent API server within seconds. It also reads the configuration
//! and all its files again when the API server refuses the credentials or cannot be reached.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt, RustlsTlsError};
use kube::config::Kubeconfig;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tower::{BoxError, ServiceBuilder};

use super::client::{ApiClient, CALLS_AT_ONCE};
use crate::kubernetes::metrics::ApiMetrics;
use crate::rate_limiter::{KeyedRateLimiter, REPEATED_LINES};

const CONNECT: Duration = Duration::from_secs(10);
/// The interval of HTTP/2 pings and TCP keepalive.
const PING: Duration = Duration::from_secs(10);
/// The longest wait for the answer to a ping.
const PONG: Duration = Duration::from_secs(10);

/// The idle time after which the connection for calls is closed. The API server itself closes it after 90 seconds.
const IDLE: Duration = Duration::from_secs(60);

/// The most connections for watches. A node with few namespaces uses only the first.
const WATCH_CONNECTIONS: usize = 8;

/// The age of credentials before which they are not read again.
const LEAST_AGE: Duration = Duration::from_secs(10);

/// TLS or the credentials cannot be set up.
const NO_CREDENTIALS: &str = "no API server";

/// Reads the configuration and its files, and makes a client of them. Sends nothing.
type Make = dyn Fn() -> Result<kube::Client> + Send + Sync;

/// A connection to the API server, made on demand.
pub(super) struct Connection {
    make: Arc<Make>,
    /// The age before which the client is not made again.
    least_age: Duration,
    client: Arc<Mutex<Option<(kube::Client, Instant)>>>,
    /// Locked while a client is made. Meanwhile the last one stays in use.
    making: Arc<tokio::sync::Mutex<()>>,
    /// The log lines about credentials that cannot be read, which every request without an answer finds again.
    logged: KeyedRateLimiter<()>,
    /// Every watch on the connection that has begun holds a clone. Without one there may be no connection: the watch that makes
    /// the connection holds the lock.
    pub(super) begun: Arc<tokio::sync::Mutex<()>>,
}

impl Connection {
    pub(super) fn new(make: impl Fn() -> Result<kube::Client> + Send + Sync + 'static) -> Self {
        Self {
            make: Arc::new(make),
            least_age: LEAST_AGE,
            client: Arc::default(),
            making: Arc::default(),
            logged: KeyedRateLimiter::new(REPEATED_LINES),
            begun: Arc::default(),
        }
    }

    /// Sends a request. If the API server refuses the credentials or does not answer, the next request has credentials that are
    /// read again. A request with refused credentials is sent a second time with those.
    ///
    /// Errors: the configuration cannot be read, or the API server cannot be reached.
    pub(super) async fn send(&self, request: Request<String>) -> Result<Response<Body>> {
        let (client, made) = self.client(None).await?;
        let answer = send(&client, request.clone()).await;
        let refuses = |answer: &Response<Body>| answer.status() == StatusCode::UNAUTHORIZED;
        if answer.as_ref().is_ok_and(|answer| !refuses(answer)) {
            return answer;
        }
        match self.client(Some(made)).await {
            Ok((renewed, anew)) if anew != made && answer.is_ok() => send(&renewed, request).await,
            Ok(_) => answer,
            Err(error) => {
                if self.logged.try_use((), Instant::now()) {
                    tracing::warn!("the credentials cannot be renewed: {error:#}");
                }
                answer
            }
        }
    }

    /// The client. Makes another if the one that was made at `failed` is still in use and not new.
    async fn client(&self, failed: Option<Instant>) -> Result<(kube::Client, Instant)> {
        let in_use = || {
            let client = self.client.lock().clone();
            client.filter(|(_, made)| failed != Some(*made) || made.elapsed() < self.least_age)
        };
        if let Some(client) = in_use() {
            return Ok(client);
        }
        let making = Arc::clone(&self.making).lock_owned().await;
        if let Some(client) = in_use() {
            return Ok(client);
        }
        let (make, client) = (Arc::clone(&self.make), Arc::clone(&self.client));
        spawn_blocking(move || {
            // Also when the caller gives up: a credential plugin that hangs is not started for every call.
            let _making = making;
            let made = (make()?, Instant::now());
            Ok(client.lock().insert(made).clone())
        })
        .await?
    }
}

#[cfg(test)]
impl Connection {
    /// A connection to a server of a test.
    pub(super) fn to(router: &axum::Router) -> Self {
        let router = router.clone();
        Self::new(move || Ok(kube::Client::new(router.clone(), "default")))
    }
}

#[cfg(test)]
impl ApiClient {
    /// A client of a server of a test.
    pub(crate) fn to(router: &axum::Router) -> Self {
        let metrics = ApiMetrics::register(&mut prometheus_client::registry::Registry::default());
        Self::new(Connection::to(router), [Connection::to(router)], metrics)
    }
}

async fn send(client: &kube::Client, request: Request<String>) -> Result<Response<Body>> {
    let body = |text: String| {
        if text.is_empty() {
            Body::empty()
        } else {
            text.into_bytes().into()
        }
    };
    Ok(client.send(request.map(body)).await?)
}

impl ApiClient {
    /// Makes a client with the current context of a kubeconfig, or else with the service account of the agent's pod. Sends
    /// nothing yet.
    ///
    /// Errors: the configuration or the credentials cannot be read.
    pub async fn connect(kubeconfig: Option<&Path>, metrics: ApiMetrics) -> Result<Self> {
        let connection = |idle| {
            let kubeconfig = kubeconfig.map(Path::to_owned);
            Connection::new(move || transport(&configuration(kubeconfig.as_deref())?, idle))
        };
        // Calls have a connection of their own, because watches may use all streams that the server allows on theirs.
        let calls = connection(Some(IDLE));
        calls.client(None).await?;
        if let Some(setting) = ignored_proxy(kubeconfig, std::env::var_os) {
            // Without its value, which may have a password.
            tracing::warn!("{setting} is ignored: vscaled connects to the API server without a proxy");
        }
        let watches = (0..WATCH_CONNECTIONS).map(|_| connection(None));
        Ok(Self::new(calls, watches, metrics))
    }
}

/// The configuration, as the files have it now.
fn configuration(kubeconfig: Option<&Path>) -> Result<kube::Config> {
    let mut config = match kubeconfig {
        None => kube::Config::incluster().map_err(|error| {
            anyhow!(
                "no API server: this does not run in a pod with a service account ({error}); set kubeconfig to a file"
            )
        })?,
        Some(path) => Kubeconfig::read_from(path)
            .and_then(kube::Config::try_from)
            .map_err(|error| anyhow!("kubeconfig: {}: {error}", path.display()))?,
    };
    let agent = concat!("vscaled/", env!("CARGO_PKG_VERSION"));
    config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
    Ok(config)
}

/// The setting with the proxy that client-go would use. It prefers that of the kubeconfig, and also reads `NO_PROXY`.
fn ignored_proxy(kubeconfig: Option<&Path>, variable: impl Fn(&'static str) -> Option<OsString>) -> Option<String> {
    if let Some(path) = kubeconfig.filter(|path| proxy_of(path).is_some()) {
        return Some(format!("kubeconfig: {}: proxy-url", path.display()));
    }
    let is_set = |&name: &&'static str| variable(name).is_some_and(|value| !value.is_empty());
    let mut names = ["HTTPS_PROXY", "https_proxy"].into_iter();
    names.find(is_set).map(str::to_owned)
}

/// The proxy of the current context's cluster. A file that cannot be read names none: whoever connects with it has the error.
fn proxy_of(kubeconfig: &Path) -> Option<String> {
    let read = Kubeconfig::read_from(kubeconfig).ok()?;
    let mut contexts = read.contexts.into_iter();
    let current = contexts.find(|context| Some(&context.name) == read.current_context.as_ref())?;
    let name = current.context?.cluster;
    let cluster = read.clusters.into_iter().find(|cluster| cluster.name == name)?;
    cluster.cluster?.proxy_url.filter(|proxy| !proxy.is_empty())
}

fn connector(config: &kube::Config) -> Result<HttpsConnector<HttpConnector>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PING));
    // Without this, the body of a request waits 40 ms for the acknowledgement of its head.
    tcp.set_nodelay(true);
    let tls = config.rustls_client_config().context(NO_CREDENTIALS)?;
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(RustlsTlsError::InvalidServerName);
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name.context(NO_CREDENTIALS)?));
    }
    Ok(https.enable_all_versions().wrap_connector(tcp))
}

/// A client with one connection, made on demand and closed after `idle`. Without HTTP/2, every request under way has
/// a connection of its own.
fn transport(config: &kube::Config, idle: Option<Duration>) -> Result<kube::Client> {
    let http = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(idle)
        .pool_max_idle_per_host(CALLS_AT_ONCE)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PONG)
        .build::<_, Body>(connector(config)?);
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use axum::Router;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::observe::log::LogFormat;
    use crate::observe::log::tests::logged;

    /// A connection whose credentials the API server accepts from the one with this number on, and how often they were read.
    fn accepted_from(number: usize) -> (Connection, Arc<AtomicUsize>) {
        let read = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&read);
        let connection = Connection::new(move || {
            let number_of_this = count.fetch_add(1, Ordering::SeqCst);
            let code = match number_of_this >= number {
                true => StatusCode::OK,
                false => StatusCode::UNAUTHORIZED,
            };
            Ok(kube::Client::new(Router::new().fallback(async move || code), "default"))
        });
        (connection, read)
    }

    async fn answer(connection: &Connection) -> StatusCode {
        connection.send(Request::default()).await.unwrap().status()
    }

    #[tokio::test]
    async fn refused_credentials_are_read_again_and_the_request_is_repeated() {
        let (mut connection, read) = accepted_from(1);
        assert_eq!(answer(&connection).await, StatusCode::UNAUTHORIZED, "they are new");
        connection.least_age = Duration::ZERO;
        assert_eq!(answer(&connection).await, StatusCode::OK);
        assert_eq!(answer(&connection).await, StatusCode::OK);
        assert_eq!(read.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_request_without_an_answer_is_not_repeated() {
        let (made, sent) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (makes, sends) = (Arc::clone(&made), Arc::clone(&sent));
        let mut connection = Connection::new(move || {
            makes.fetch_add(1, Ordering::SeqCst);
            let sends = Arc::clone(&sends);
            let broken = tower::service_fn(move |_: Request<Body>| {
                sends.fetch_add(1, Ordering::SeqCst);
                async { Err::<Response<Body>, BoxError>("reset".into()) }
            });
            Ok(kube::Client::new(broken, "default"))
        });
        connection.least_age = Duration::ZERO;
        assert!(connection.send(Request::default()).await.is_err());
        assert_eq!(sent.load(Ordering::SeqCst), 1);
        assert_eq!(made.load(Ordering::SeqCst), 2, "the credentials are read again");
    }

    /// The API server refuses the first credentials, and there are no others.
    fn without_others() -> Connection {
        let read = AtomicUsize::new(0);
        let mut connection = Connection::new(move || match read.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let router = Router::new().fallback(async || StatusCode::UNAUTHORIZED);
                Ok(kube::Client::new(router, "default"))
            }
            _ => Err(anyhow!("no such file")),
        });
        connection.least_age = Duration::ZERO;
        connection
    }

    #[tokio::test]
    async fn an_answer_outlives_unreadable_credentials() {
        assert_eq!(answer(&without_others()).await, StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn unreadable_credentials_are_logged_once() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let (runtime, connection) = (builder.enable_all().build().unwrap(), without_others());
        let text = logged(LogFormat::Text, "warn", |_| {
            (0..3).for_each(|_| assert_eq!(runtime.block_on(answer(&connection)), StatusCode::UNAUTHORIZED));
        });
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[tokio::test]
    async fn revoked_credentials_are_not_read_for_every_request() {
        let (connection, read) = accepted_from(usize::MAX);
        for _ in 0..30 {
            assert_eq!(answer(&connection).await, StatusCode::UNAUTHORIZED);
        }
        assert_eq!(read.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn credentials_that_hang_are_read_once() {
        let (read, (release, hangs)) = (Arc::<AtomicUsize>::default(), mpsc::channel::<()>());
        let (count, hangs) = (Arc::clone(&read), Mutex::new(hangs));
        let connection = Connection::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            // An error once the test ends.
            hangs.lock().recv()?;
            Ok(kube::Client::new(Router::new(), "default"))
        });
        for _ in 0..3 {
            let sent = connection.send(Request::default());
            assert!(timeout(Duration::from_millis(20), sent).await.is_err());
            while read.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(read.load(Ordering::SeqCst), 1);
        drop(release);
    }

    #[tokio::test]
    async fn credentials_that_hang_leave_the_last_in_use() {
        let (release, hangs) = mpsc::channel::<()>();
        let (read, hangs) = (AtomicUsize::new(0), Mutex::new(hangs));
        let mut connection = Connection::new(move || {
            if read.fetch_add(1, Ordering::SeqCst) > 0 {
                hangs.lock().recv()?;
            }
            Ok(kube::Client::new(Router::new(), "default"))
        });
        connection.least_age = Duration::ZERO;
        let (_, made) = connection.client(None).await.unwrap();
        let renewal = connection.client(Some(made));
        assert!(timeout(Duration::from_millis(20), renewal).await.is_err());
        let mut last = Box::pin(connection.client(None));
        assert!(futures::poll!(&mut last).is_ready());
        drop(release);
    }

    #[test]
    fn only_the_current_contexts_proxy_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        for (current, proxied) in [("direct", false), ("behind", true)] {
            let text = format!(
                "current-context: {current}\n\
                 contexts: [{{name: direct, context: {{cluster: a, user: u}}}}, {{name: behind, context: {{cluster: b, user: u}}}}]\n\
                 clusters:\n\
                 - {{name: a, cluster: {{server: 'http://127.0.0.1:1'}}}}\n\
                 - {{name: b, cluster: {{server: 'http://127.0.0.1:1', proxy-url: 'http://127.0.0.1:2'}}}}\n\
                 users: [{{name: u, user: {{}}}}]\n"
            );
            std::fs::write(&path, text).unwrap();
            assert_eq!(proxy_of(&path).is_some(), proxied, "{current}");
            assert!(
                configuration(Some(path.as_path())).is_ok(),
                "a proxy keeps no agent from starting"
            );
        }
    }

    #[test]
    fn a_proxy_in_a_variable_is_named() {
        for (set, value, named) in [
            ("HTTPS_PROXY", "http://127.0.0.1:2", Some("HTTPS_PROXY")),
            ("https_proxy", "http://127.0.0.1:2", Some("https_proxy")),
            ("HTTPS_PROXY", "", None),
            ("HTTP_PROXY", "http://127.0.0.1:2", None),
        ] {
            let variable = |name: &str| (name == set).then(|| OsString::from(value));
            assert_eq!(ignored_proxy(None, variable).as_deref(), named, "{set}={value}");
        }
    }

    #[tokio::test]
    async fn the_server_name_of_a_kubeconfig_is_verified() {
        const NAME: &str = "api.example.com";
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
        config.root_cert = Some(Vec::new());
        config.tls_server_name = Some(NAME.to_owned());
        let client = transport(&config, None).unwrap();
        let _sent = tokio::spawn(async move { send(&client, Request::default()).await.map(drop) });
        let mut connection = server.accept().await.unwrap().0;
        // The head of the record that has the ClientHello, and its length.
        let [_, _, _, high, low] = {
            let mut head = [0; 5];
            connection.read_exact(&mut head).await.unwrap();
            head
        };
        let mut hello = vec![0; u16::from_be_bytes([high, low]).into()];
        connection.read_exact(&mut hello).await.unwrap();
        assert!(hello.windows(NAME.len()).any(|part| part == NAME.as_bytes()));
    }
}
