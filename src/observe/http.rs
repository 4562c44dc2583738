//! The HTTP server for Prometheus and probes, on a thread of its own: no caller delays the controller.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | OpenMetrics text, or Prometheus's older text where `Accept` prefers `text/plain`; with gzip where `Accept-Encoding` has it |
//! | `/healthz` | 200, or 503 with the reason when the heartbeat has stalled |
//! | `/readyz` | 200, or 503 until the sources and the node are known |
//!
//! The server only reads and authenticates no caller. It listens on loopback unless the configuration says otherwise. Every
//! caller may be hostile. A connection carries one request. The number of connections, the bytes of each one and the time of
//! each one are bounded, also in the kernel's buffers, which count as the agent's memory.

mod text;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use http::header::{ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::health::Heartbeat;

const CONNECTIONS: usize = 16;
/// The most bytes of a request's headers.
const LARGEST_HEADERS: usize = 8 << 10;
/// The longest time for a request's headers, and then again for the answer to arrive.
const DEADLINE: Duration = Duration::from_secs(5);
/// The kernel's buffers of a connection in bytes. The kernel doubles each number.
const RECEIVE_BUFFER: usize = 16 << 10;
const SEND_BUFFER: usize = 128 << 10;
/// The metrics are encoded at most this often.
const ENCODE_INTERVAL: Duration = Duration::from_secs(1);
/// The content type of health.
const TEXT: &str = "text/plain; charset=utf-8";
/// The pause after a failed accept(2), which mostly lacked file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state that the server exposes.
#[derive(Debug)]
pub struct Exposed {
    registry: Registry,
    heartbeat: Heartbeat,
    /// The controller holds it until the sources and the node are known.
    starting: Weak<()>,
    encoded: Mutex<Option<EncodedMetrics>>,
}

/// The metrics of one moment, in the formats that a caller has asked for.
#[derive(Debug)]
struct EncodedMetrics {
    at: Instant,
    /// By whether in the older format, and whether with gzip. The text that is neither is always there.
    texts: HashMap<(bool, bool), Bytes>,
}

impl EncodedMetrics {
    /// Whether callers still get these. While a caller reads them, they last as long as its connection may, so that callers who
    /// read slowly hold the metrics of two moments at most.
    fn is_fresh(&self) -> bool {
        let age = self.at.elapsed();
        age < ENCODE_INTERVAL || (age < 2 * DEADLINE && !self.texts.values().all(Bytes::is_unique))
    }
}

/// The addresses of IPv4 in place of all addresses, where the kernel has no IPv6.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let has_no_ipv6 = error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32);
    let is_any = address.ip() == Ipv6Addr::UNSPECIFIED;
    (has_no_ipv6 && is_any).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// Listens. The server answers nothing before [`serve`]. Port 0 takes any free port. `[::]` is every address of IPv6 and IPv4, or of IPv6
/// alone where `net.ipv6.bindv6only` is 1: new network namespaces, such as those of pods, begin with 0.
///
/// Errors: the address is in use, or is no address of this machine.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bounded = |listener: TcpListener| {
        // Accepted connections inherit both.
        setsockopt(&listener, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        setsockopt(&listener, sockopt::SndBuf, &SEND_BUFFER)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let bound =
        TcpListener::bind(address).or_else(|error| TcpListener::bind(without_ipv6(address, &error).ok_or(error)?));
    let listening = bound.and_then(bounded);
    listening.map_err(|error| anyhow!("httpAddress {address}: cannot listen: {error}"))
}

/// Starts a thread that accepts callers until `stop`, and waits for no answer under way: a caller that never finishes its
/// request must not delay the end of the agent.
///
/// Errors: no thread or event loop can be made.
pub fn serve(listener: TcpListener, exposed: Exposed, stop: CancellationToken) -> io::Result<JoinHandle<()>> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = {
        let _context = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let exposed = Arc::new(exposed);
    thread::Builder::new().name("http".to_owned()).spawn(move || {
        runtime.block_on(stop.run_until_cancelled(accept(&listener, exposed)));
    })
}

struct Connection {
    task: AbortHandle,
    peer: IpAddr,
    has_request: Arc<AtomicBool>,
}

/// Closes a connection if there are [`CONNECTIONS`]: one of the address with the most of them, there one without a request
/// if there is any, and of these the oldest. So no caller keeps out one with another address.
fn make_room(open: &mut Vec<Connection>) {
    open.retain(|connection| !connection.task.is_finished());
    if open.len() < CONNECTIONS {
        return;
    }
    let of_peer = |peer| open.iter().filter(|other| other.peer == peer).count();
    let order = |at: &usize| {
        let connection = &open[*at];
        (
            Reverse(of_peer(connection.peer)),
            connection.has_request.load(Ordering::Relaxed),
        )
    };
    if let Some(at) = (0..open.len()).min_by_key(order) {
        open.remove(at).task.abort();
    }
}

async fn accept(listener: &tokio::net::TcpListener, exposed: Arc<Exposed>) {
    let mut open = Vec::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a caller of metrics or health was not let in");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        make_room(&mut open);
        let has_request = Arc::new(AtomicBool::new(false));
        let connection = serve_connection(stream, Arc::clone(&exposed), Arc::clone(&has_request));
        open.push(Connection {
            task: tokio::spawn(connection).abort_handle(),
            peer: peer.ip().to_canonical(),
            has_request,
        });
        // The new connection reads its request, and a closed one is gone, before the next one is accepted.
        yield_now().await;
    }
}

/// Answers one request, and waits until the caller has received the answer and closes the connection.
async fn serve_connection(mut stream: TcpStream, exposed: Arc<Exposed>, has_request: Arc<AtomicBool>) {
    // The kernel forgets at once what a caller has not read when the connection ends.
    if let Err(error) = stream.set_zero_linger() {
        tracing::debug!(%error, "a caller of metrics or health was not let in");
        return;
    }
    let respond = service_fn(move |request| {
        has_request.store(true, Ordering::Relaxed);
        ready(Ok::<_, Infallible>(exposed.answer(&request)))
    });
    let closed = async {
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(DEADLINE)
            .max_buf_size(LARGEST_HEADERS)
            .keep_alive(false)
            .serve_connection(TokioIo::new(&mut stream), respond)
            .await?;
        // No caller sends more after its request, so this waits for the end.
        let more = stream.read(&mut [0]).await?;
        anyhow::ensure!(more == 0, "it sent more than one request");
        anyhow::Ok(())
    };
    match timeout(2 * DEADLINE, closed).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a caller of metrics or health got no answer"),
        Err(_elapsed) => tracing::debug!("a caller of metrics or health did not read its answer"),
    }
}

type Answer = Response<Full<Bytes>>;

impl Exposed {
    /// The metrics of every component, the controller's heartbeat, and what it holds until the agent is ready.
    pub fn new(registry: Registry, heartbeat: Heartbeat, starting: Weak<()>) -> Self {
        Self {
            registry,
            heartbeat,
            starting,
            encoded: Mutex::default(),
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Answer {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let health = |checked: Result<&str, String>| match checked {
            Ok(text) => (StatusCode::OK, text.to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
        };
        let (status, text) = match request.uri().path() {
            "/metrics" | "/healthz" | "/readyz" if !is_read => {
                let text = "only GET and HEAD\n".into();
                return answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, text, Some((ALLOW, "GET, HEAD")));
            }
            "/metrics" => {
                // Several lines of a header are one list.
                let header = |name: HeaderName| {
                    let lines = request.headers().get_all(name).iter();
                    let lines: Vec<_> = lines.filter_map(|line| line.to_str().ok()).collect();
                    lines.join(",")
                };
                let plain = text::prefers_plain(&header(ACCEPT));
                let gzip = text::takes_gzip(&header(ACCEPT_ENCODING));
                match self.encoded(plain, gzip) {
                    Ok(text) => {
                        let kind = if plain { text::PLAIN } else { text::OPEN_METRICS };
                        return answer(StatusCode::OK, kind, text, gzip.then_some((CONTENT_ENCODING, "gzip")));
                    }
                    Err(error) => {
                        let text = format!("cannot encode the metrics: {error}");
                        (StatusCode::INTERNAL_SERVER_ERROR, text)
                    }
                }
            }
            "/healthz" => health(self.heartbeat.check().map(|()| "ok")),
            "/readyz" if self.starting.strong_count() == 0 => health(Ok("ready")),
            "/readyz" => health(Err("waiting for: sources and node".to_owned())),
            _ => (StatusCode::NOT_FOUND, "no such path".to_owned()),
        };
        answer(status, TEXT, format!("{text}\n").into(), None)
    }

    /// The metrics of at most [`ENCODE_INTERVAL`] ago, or of those that callers still read.
    fn encoded(&self, plain: bool, gzip: bool) -> Result<Bytes> {
        let mut latest = self.encoded.lock();
        let fresh = latest.take_if(|latest| latest.is_fresh());
        let encoded = latest.insert(match fresh {
            Some(fresh) => fresh,
            None => {
                let mut text = String::new();
                encode(&mut text, &self.registry)?;
                EncodedMetrics {
                    at: Instant::now(),
                    texts: HashMap::from([((false, false), text.into())]),
                }
            }
        });
        if let Some(text) = encoded.texts.get(&(plain, gzip)) {
            return Ok(text.clone());
        }
        let mut text = encoded.texts[&(false, false)].clone();
        if plain {
            text = text::plain(&String::from_utf8_lossy(&text)).into();
        }
        if gzip {
            text = text::gzip(&text)?.into();
        }
        encoded.texts.insert((plain, gzip), text.clone());
        Ok(text)
    }
}

/// An answer of this content type, perhaps with one more header.
fn answer(status: StatusCode, kind: &'static str, text: Bytes, more: Option<(HeaderName, &'static str)>) -> Answer {
    let mut answer = Response::new(Full::new(text));
    *answer.status_mut() = status;
    for (name, value) in [(CONTENT_TYPE, kind)].into_iter().chain(more) {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests;
