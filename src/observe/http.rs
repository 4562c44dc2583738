//! The HTTP server for Prometheus and probes.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | OpenMetrics text |
//! | `/healthz` | 200, or 503 with the reason when the heartbeat has stalled |
//! | `/readyz` | 200, or 503 with the names of the held latches |
//!
//! The server only reads and authenticates no caller. It listens on loopback unless the configuration says otherwise.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::health::{Heartbeat, Readiness};

/// The content type of OpenMetrics 1.0 text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The state that the server exposes.
#[derive(Debug)]
pub struct Exposed {
    /// The metrics of every component.
    pub registry: Registry,
    pub heartbeat: Heartbeat,
    /// The latches that `/readyz` waits for.
    pub readiness: Readiness,
}

/// Listens. The server answers nothing before [`serve`]. Port 0 takes any free port.
///
/// Errors: the address is in use, or is no address of this machine.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listening = TcpListener::bind(address).await;
    listening.map_err(|error| anyhow!("httpAddress {address}: cannot listen: {error}"))
}

/// Accepts callers until `stop`, and waits for no answer under way: a caller that never finishes its request must not delay the
/// end of the agent.
///
/// Errors: the socket fails for good.
pub async fn serve(listener: TcpListener, exposed: Exposed, stop: CancellationToken) -> io::Result<()> {
    let server = axum::serve(listener, router(exposed)).into_future();
    stop.run_until_cancelled_owned(server).await.unwrap_or(Ok(()))
}

fn router(exposed: Exposed) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Arc::new(exposed))
}

async fn metrics(State(exposed): State<Arc<Exposed>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &exposed.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            let text = format!("cannot encode the metrics: {error}");
            answer(StatusCode::INTERNAL_SERVER_ERROR, &text)
        }
    }
}

async fn healthz(State(exposed): State<Arc<Exposed>>) -> Response {
    match exposed.heartbeat.check() {
        Ok(()) => answer(StatusCode::OK, "ok"),
        Err(stalled) => answer(StatusCode::SERVICE_UNAVAILABLE, &stalled),
    }
}

async fn readyz(State(exposed): State<Arc<Exposed>>) -> Response {
    let waiting = exposed.readiness.waiting_for();
    if waiting.is_empty() {
        return answer(StatusCode::OK, "ready");
    }
    let text = format!("waiting for: {}", waiting.join(", "));
    answer(StatusCode::SERVICE_UNAVAILABLE, &text)
}

fn answer(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}

#[cfg(test)]
mod tests;
