//! Asked over a real socket, as a probe would.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::time::Duration;

use flate2::read::GzDecoder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::text::{OPEN_METRICS, PLAIN};
use super::*;
use crate::kubernetes::metrics::EventMetrics;
use crate::observe::metrics::registry;

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Running {
    async fn start(heartbeat: Heartbeat, starting: Weak<()>) -> Self {
        let mut registry = registry();
        let _metrics = EventMetrics::register(&mut registry);
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let exposed = Exposed::new(registry, heartbeat, starting);
        let serving = serve(listener, exposed, stop.clone()).unwrap();
        Self { address, stop, serving }
    }

    /// Head and body of the answer.
    async fn ask(&self, request: &str) -> (String, String) {
        self.ask_with(request, "").await
    }

    /// Likewise, with more headers.
    async fn ask_with(&self, request: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_owned())
    }

    /// A connection that sends this and nothing more, from an address of the loopback.
    async fn send(&self, from: [u8; 4], text: &[u8]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        stream.write_all(text).await.unwrap();
        stream
    }

    async fn status(&self, request: &str) -> String {
        let (head, _) = self.ask(request).await;
        head.split(' ').nth(1).unwrap().to_owned()
    }
}

fn never() -> Heartbeat {
    Heartbeat::new(Duration::MAX)
}

/// Checks what OpenMetrics asks of a text, as far as it concerns us; returns the names of its families.
fn families(text: &str) -> BTreeSet<&str> {
    assert!(text.ends_with("\n# EOF\n"), "the end is missing");
    let mut families = BTreeSet::new();
    let mut current = "";
    for line in text.trim_end_matches("# EOF\n").lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let (keyword, rest) = comment.split_once(' ').unwrap();
            let (name, _) = rest.split_once(' ').unwrap();
            assert!(matches!(keyword, "HELP" | "TYPE" | "UNIT"), "{line}");
            // The lines of a family stand together.
            assert!(name == current || families.insert(name), "{line}");
            current = name;
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(name.starts_with(current), "{line} in {current}");
            assert!(series.contains('{') == series.ends_with('}'), "{line}");
            value.parse::<f64>().unwrap();
        }
    }
    families
}

#[tokio::test]
async fn a_scrape_is_open_metrics_with_our_names() {
    let running = Running::start(never(), Weak::new()).await;
    let (head, text) = running.ask("GET /metrics").await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains(&format!("content-type: {OPEN_METRICS}")), "{head}");
    let families = families(&text);
    assert!(
        families.contains("vscaled_events") && families.contains("vscaled_build_info"),
        "{families:?}"
    );
    assert!(families.iter().all(|name| name.starts_with("vscaled_")), "{families:?}");
}

#[tokio::test]
async fn health_follows_the_heartbeat() {
    let healthy = Running::start(never(), Weak::new()).await;
    assert_eq!(healthy.status("GET /healthz").await, "200");

    let limit = Duration::from_millis(1);
    let heartbeat = Heartbeat::new(limit);
    let stalled = Running::start(heartbeat.clone(), Weak::new()).await;
    while heartbeat.check().is_ok() {
        sleep(limit).await;
    }
    let (head, text) = stalled.ask("GET /healthz").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert!(text.starts_with("stalled: the last sign of life is"), "{text}");
}

#[tokio::test]
async fn the_agent_is_ready_when_its_start_ends() {
    let starting = Arc::new(());
    let running = Running::start(never(), Arc::downgrade(&starting)).await;
    let (head, text) = running.ask("GET /readyz").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(text, "waiting for: sources and node\n");
    drop(starting);
    assert_eq!(running.status("GET /readyz").await, "200");
}

#[tokio::test]
async fn nothing_else_is_answered() {
    let running = Running::start(never(), Weak::new()).await;
    assert_eq!(running.status("GET /").await, "404");
    assert_eq!(running.status("POST /healthz").await, "405");
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let running = Running::start(never(), Weak::new()).await;
    let error = listen(running.address).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("httpAddress {}: cannot listen: ", running.address)),
        "{error}"
    );
}

#[test]
fn all_addresses_are_ipv4_without_ipv6() {
    let [all, loopback] = ["[::]:9464", "[::1]:9464"].map(|address| address.parse::<SocketAddr>().unwrap());
    let [no_ipv6, taken] =
        [Errno::EAFNOSUPPORT, Errno::EADDRINUSE].map(|errno| io::Error::from_raw_os_error(errno as i32));
    assert_eq!(without_ipv6(all, &no_ipv6), Some(([0, 0, 0, 0], 9464).into()));
    assert_eq!(without_ipv6(loopback, &no_ipv6), None);
    assert_eq!(without_ipv6(all, &taken), None);
}

#[test]
fn callers_of_ipv4_reach_all_addresses() {
    let listener = listen((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
}

#[tokio::test]
async fn an_unfinished_call_does_not_hold_the_server() {
    let running = Running::start(never(), Weak::new()).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
    assert_eq!(running.status("GET /healthz").await, "200");
    running.stop.cancel();
    running.serving.join().unwrap();
}

/// Whether the server has closed a connection. Waits until it has answered another one.
async fn is_closed(running: &Running, stream: &mut TcpStream) -> bool {
    assert_eq!(running.status("GET /healthz").await, "200");
    // Not an error: the connection has neither bytes nor an end.
    !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[tokio::test]
async fn prometheus_gets_the_format_it_prefers() {
    let running = Running::start(never(), Weak::new()).await;
    let several = "Accept: text/html\r\nAccept: text/plain\r\n";
    let (head, text) = running.ask_with("GET /metrics", several).await;
    assert!(head.contains(&format!("content-type: {PLAIN}")), "{head}");
    assert!(text.contains("# TYPE vscaled_events_total counter\n"), "{text}");
    assert!(!text.contains("# EOF"), "{text}");
}

#[tokio::test]
async fn metrics_are_encoded_once_for_many_callers() {
    let exposed = Exposed::new(registry(), never(), Weak::new());
    for (plain, gzip) in [(false, false), (true, false), (false, true), (true, true)] {
        let text = || exposed.encoded(plain, gzip).unwrap();
        let first = text();
        assert_eq!(first.as_ptr(), text().as_ptr(), "the same bytes");
        let later = |time| exposed.encoded.lock().as_mut().unwrap().at -= time;
        later(ENCODE_INTERVAL);
        assert_eq!(first.as_ptr(), text().as_ptr(), "a caller still reads them");
        later(2 * DEADLINE);
        let second = text();
        assert_ne!(first.as_ptr(), second.as_ptr(), "encoded anew");
        drop(second);
        later(ENCODE_INTERVAL);
        assert!(
            !exposed.encoded.lock().as_ref().unwrap().is_fresh(),
            "nobody reads them"
        );
    }
}

#[tokio::test]
async fn metrics_are_compressed_on_request() {
    let running = Running::start(never(), Weak::new()).await;
    let (_, text) = running.ask("GET /metrics").await;
    let request =
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: deflate, gzip\r\nConnection: close\r\n\r\n";
    let mut stream = running.send([127, 0, 0, 1], request).await;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    assert!(
        head.contains("content-encoding: gzip") && head.contains(OPEN_METRICS),
        "{head}"
    );
    let body = &answer[end + 4..];
    let mut read = String::new();
    GzDecoder::new(body).read_to_string(&mut read).unwrap();
    assert!(body.len() < text.len() / 2);
    let names = |text: &str| {
        text.lines()
            .filter(|line| line.starts_with('#'))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&read), names(&text));
}

#[tokio::test]
async fn headers_beyond_8_kib_are_refused() {
    let running = Running::start(never(), Weak::new()).await;
    let headers = format!("X-Fat: {}\r\n", "x".repeat(LARGEST_HEADERS - 200));
    let (head, _) = running.ask_with("GET /healthz", &headers).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");

    let unfinished = format!("GET /healthz HTTP/1.1\r\nX-Fat: {}", "x".repeat(LARGEST_HEADERS));
    let mut stream = running.send([127, 0, 0, 1], unfinished.as_bytes()).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[tokio::test]
async fn a_silent_caller_is_cut_off() {
    let running = Running::start(never(), Weak::new()).await;
    let began = Instant::now();
    for beginning in ["", "GET /metrics HTTP/1.1\r\nHost: "] {
        let mut silent = running.send([127, 0, 0, 1], beginning.as_bytes()).await;
        let mut rest = Vec::new();
        // Either an end or a reset, after at most an answer that names the timeout.
        if silent.read_to_end(&mut rest).await.is_ok() {
            assert!(!String::from_utf8_lossy(&rest).contains(" 200 "), "{rest:?}");
        }
    }
    assert!(began.elapsed() >= DEADLINE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn one_connection_carries_one_request() {
    let running = Running::start(never(), Weak::new()).await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut stream = running.send([127, 0, 0, 1], request).await;
    let mut answers = Vec::new();
    // A reset may follow the answer: the second request is not read.
    if let Err(error) = stream.read_to_end(&mut answers).await {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1, "{answers}");
    assert!(answers.contains("connection: close"), "{answers}");
}

#[tokio::test]
async fn the_busiest_address_loses_a_connection() {
    let running = Running::start(never(), Weak::new()).await;
    let mut other = running.send([127, 0, 0, 9], b"GET /metrics HTTP/1.1\r\n").await;
    let mut flood = Vec::new();
    // An answered connection whose caller does not close it, and idle ones.
    flood.push(
        running
            .send([127, 0, 0, 2], b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            .await,
    );
    let mut status = [0; 12];
    flood[0].read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    for _ in 2..CONNECTIONS {
        flood.push(running.send([127, 0, 0, 2], b"GET").await);
    }
    // The seventeenth: a probe from a third address. Of the flood, the oldest connection without a request ends.
    assert!(is_closed(&running, &mut flood[1]).await);
    let mut youngest = flood.pop().unwrap();
    assert!(!is_closed(&running, &mut youngest).await, "only the oldest gave way");
    flood.push(youngest);
    for _ in 0..3 * CONNECTIONS {
        flood.push(running.send([127, 0, 0, 2], b"GET").await);
    }
    assert!(
        !is_closed(&running, &mut other).await,
        "another address keeps its connection"
    );
    let mut last = flood.pop().unwrap();
    assert!(!is_closed(&running, &mut last).await);
    assert!(is_closed(&running, &mut flood[2]).await);
}

#[tokio::test]
async fn each_path_answers_in_words() {
    let running = Running::start(never(), Weak::new()).await;
    for (request, text) in [
        ("GET /healthz", "ok\n"),
        ("GET /readyz", "ready\n"),
        ("GET /other", "no such path\n"),
        ("POST /metrics", "only GET and HEAD\n"),
        ("HEAD /healthz", ""),
    ] {
        let (head, body) = running.ask(request).await;
        assert_eq!(body, text, "{request}: {head}");
        assert!(
            head.contains("content-type: text/plain; charset=utf-8"),
            "{request}: {head}"
        );
        assert_eq!(
            head.contains("allow: get, head"),
            request.starts_with("POST"),
            "{request}: {head}"
        );
    }
    assert_eq!(running.status("HEAD /readyz").await, "200");
}
