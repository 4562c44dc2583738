//! Asked over a real socket, as a probe would.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::*;
use crate::kubernetes::metrics::EventMetrics;
use crate::observe::metrics::registry;

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<io::Result<()>>,
}

impl Running {
    async fn start(heartbeat: Heartbeat, readiness: Readiness) -> Self {
        let mut registry = registry();
        let _metrics = EventMetrics::register(&mut registry);
        let listener = listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let exposed = Exposed {
            registry,
            heartbeat,
            readiness,
        };
        let serving = tokio::spawn(serve(listener, exposed, stop.clone()));
        Self { address, stop, serving }
    }

    /// Head and body of the answer.
    async fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_owned())
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
async fn a_scrape_is_open_metrics_and_every_name_is_ours() {
    let running = Running::start(never(), Readiness::default()).await;
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
    let healthy = Running::start(never(), Readiness::default()).await;
    assert_eq!(healthy.status("GET /healthz").await, "200");

    let limit = Duration::from_millis(1);
    let heartbeat = Heartbeat::new(limit);
    let stalled = Running::start(heartbeat.clone(), Readiness::default()).await;
    while heartbeat.check().is_ok() {
        tokio::time::sleep(limit).await;
    }
    let (head, text) = stalled.ask("GET /healthz").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert!(text.starts_with("stalled: the last sign of life is"), "{text}");
}

#[tokio::test]
async fn the_agent_is_ready_when_the_last_latch_is_dropped() {
    let mut readiness = Readiness::default();
    let latch = readiness.latch("manifests");
    let running = Running::start(never(), readiness).await;
    let (head, text) = running.ask("GET /readyz").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(text, "waiting for: manifests\n");
    drop(latch);
    assert_eq!(running.status("GET /readyz").await, "200");
}

#[tokio::test]
async fn nothing_else_is_answered() {
    let running = Running::start(never(), Readiness::default()).await;
    assert_eq!(running.status("GET /").await, "404");
    assert_eq!(running.status("POST /healthz").await, "405");
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let running = Running::start(never(), Readiness::default()).await;
    let error = listen(running.address).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("httpAddress {}: cannot listen: ", running.address)),
        "{error}"
    );
}

#[tokio::test]
async fn a_caller_that_never_finishes_does_not_keep_the_server() {
    let running = Running::start(never(), Readiness::default()).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
    assert_eq!(running.status("GET /healthz").await, "200");
    running.stop.cancel();
    running.serving.await.unwrap().unwrap();
}
