//! Connects to the receiver, delivers until the stream ends, waits, and connects again.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint as Target};

use super::PROTOCOL_VERSION;
use super::endpoint::{Endpoint, TlsFiles};
use super::in_words;
use super::session::deliver;
use crate::pace::Backoff;
use crate::report::destination::Destination;
use crate::report::proto::Hello;
use crate::report::reporter::ReportQueue;

/// How long connecting may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// The bytes that a receiver may send before the agent reads them: more than the longest acknowledgement.
const UNREAD: u32 = 512 << 10;
/// The agent pings a connection on which nothing came for so long. Servers in Go cut off a client that pings more often than
/// every five minutes (`keepalive.EnforcementPolicy`). With reports on the way, the agent waits for acknowledgements anyway.
const PING_AFTER: Duration = Duration::from_secs(6 * 60);
/// The receiver must answer a ping within this.
const PING_ANSWER: Duration = Duration::from_secs(20);
/// TCP probes are more frequent: no server minds them.
const PROBE_AFTER: Duration = Duration::from_secs(30);
/// The wait after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The receiver, and how to treat it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcOptions {
    pub endpoint: Endpoint,
    /// Used for `https://` only.
    pub tls: TlsFiles,
    /// The longest wait between attempts to connect.
    pub longest_wait: Duration,
    /// A receiver that acknowledges nothing for so long is stuck.
    pub patience: Duration,
}

/// Delivers to a receiver of `vscaled.report.v1`.
#[derive(Debug)]
pub struct GrpcDelivery {
    options: GrpcOptions,
    hello: Hello,
}

impl GrpcDelivery {
    /// Delivers in the name of this node, which may be empty, in this boot of its kernel.
    pub fn new(options: GrpcOptions, node: String, boot_id: String) -> Self {
        let hello = Hello {
            version: PROTOCOL_VERSION,
            node,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id,
            window: u32::try_from(Destination::Grpc.window()).unwrap_or(u32::MAX),
        };
        Self { options, hello }
    }

    /// Delivers everything in the queue, in order, and retries failures.
    pub async fn run(self, mut queue: ReportQueue) -> Infallible {
        let mut pauses = Backoff::new(FIRST_WAIT, self.options.longest_wait);
        loop {
            let Err(error) = self.once(&mut queue, &mut pauses).await;
            let pause = pauses.next(None);
            queue.waits("reports of OOM kills", format!("{error:#}"), pause);
            tokio::time::sleep(pause).await;
        }
    }

    /// Connects and delivers.
    async fn once(&self, queue: &mut ReportQueue, pauses: &mut Backoff) -> Result<Infallible> {
        let endpoint = self.options.endpoint.to_string();
        // The timeout of connecting does not cover TLS with a peer that sends nothing.
        let channel = match timeout(CONNECT, self.connect()).await {
            Ok(connected) => connected?,
            Err(_) => bail!("cannot connect to {endpoint}: no answer within {CONNECT:?}"),
        };
        tracing::info!(endpoint, "connected to the receiver of OOM kills");
        queue.connected();
        queue.start_over();
        let Err(error) = deliver(queue, channel, self.hello.clone(), self.options.patience, pauses).await;
        Err(anyhow!("{endpoint} {error}"))
    }

    async fn connect(&self) -> Result<Channel> {
        let failed = |error: tonic::transport::Error| {
            anyhow!("cannot connect to {}: {}", self.options.endpoint, in_words(&error))
        };
        let mut target = Target::from_shared(self.options.endpoint.to_string()).map_err(failed)?;
        if self.options.endpoint.is_tls() {
            target = target.tls_config(self.options.tls.read().await?).map_err(failed)?;
        }
        let target = target
            .connect_timeout(CONNECT)
            .initial_stream_window_size(UNREAD)
            .initial_connection_window_size(UNREAD)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(PROBE_AFTER))
            .tcp_keepalive_interval(Some(PROBE_AFTER / 3))
            .tcp_keepalive_retries(Some(3))
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_ANSWER)
            .keep_alive_while_idle(true);
        target.connect().await.map_err(failed)
    }
}
