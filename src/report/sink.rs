//! The other end of `vscaled.report.v1`, as simple as it can be: a reference for people who write a receiver.
//!
//! In come agents' streams; each report goes to an [`ReportHandler`], which makes it safe, and is acknowledged then. A report
//! with an id that was seen before is marked so: the handler decides whether that matters to it.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::grpc::PROTOCOL_VERSION;
use super::log::{IdHash, SeenIds};
use super::proto::agent_message::Message;
use super::proto::report_receiver_server::{ReportReceiver, ReportReceiverServer};
use super::proto::{Ack, AgentMessage, Hello, Report};

const REMEMBERED: usize = 100_000;
/// An agent that does not answer for so long is gone.
const PING: Duration = Duration::from_secs(20);

/// Who the reports are for.
pub trait ReportHandler: Send + Sync + 'static {
    fn connected(&self, hello: &Hello);

    /// Makes a report safe; `again` says that its id was seen before. Breaks when nothing more is wanted: the report is
    /// then not acknowledged, and the sink ends.
    fn handle(&self, report: &Report, again: bool) -> ControlFlow<()>;
}

/// The TCP or unix socket that a sink listens at.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// At a socket on this machine.
    Unix(UnixListener),
}

/// Serves until `stop`, or until the handler has had enough.
///
/// Errors: Unusable certificates, and what goes wrong while listening.
pub async fn serve(
    listener: Listener,
    tls: Option<ServerTlsConfig>,
    handler: Arc<dyn ReportHandler>,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let sink = Sink {
        handler,
        seen: Arc::new(Mutex::new(SeenIds::new(REMEMBERED))),
        stop: stop.clone(),
    };
    let mut server = Server::builder().http2_keepalive_interval(Some(PING));
    if let Some(tls) = tls {
        server = server.tls_config(tls)?;
    }
    let router = server.add_service(ReportReceiverServer::new(sink));
    let stopped = stop.cancelled_owned();
    match listener {
        Listener::Tcp(listener) => {
            router
                .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped)
                .await
        }
        Listener::Unix(listener) => {
            router
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
                .await
        }
    }
}

#[derive(Clone)]
struct Sink {
    handler: Arc<dyn ReportHandler>,
    seen: Arc<Mutex<SeenIds>>,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl ReportReceiver for Sink {
    type DeliverStream = BoxStream<'static, Result<Ack, Status>>;

    async fn deliver(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let messages = request.into_inner();
        let acks = stream::unfold(
            (self.clone(), messages.boxed(), false),
            |(sink, mut messages, greeted)| async move {
                let answer = sink.answer(&mut messages, greeted).await?;
                Some((answer, (sink, messages, true)))
            },
        );
        Ok(Response::new(until_error(acks).boxed()))
    }
}

/// A stream that ends after its first error.
fn until_error(acks: impl Stream<Item = Result<Ack, Status>>) -> impl Stream<Item = Result<Ack, Status>> {
    acks.scan(false, |failed, ack| {
        let over = std::mem::replace(failed, ack.is_err());
        std::future::ready((!over).then_some(ack))
    })
}

impl Sink {
    /// The next acknowledgement; `None` once the agent has gone, or the sink is to.
    async fn answer(
        &self,
        messages: &mut BoxStream<'static, Result<AgentMessage, Status>>,
        mut greeted: bool,
    ) -> Option<Result<Ack, Status>> {
        loop {
            // Cancel-safe: a message that was not taken is not acknowledged, and comes again.
            let message = tokio::select! {
                () = self.stop.cancelled() => return None,
                message = messages.next() => message?,
            };
            let message = match message {
                Ok(message) => message.message,
                // The agent has gone without a word.
                Err(_) => return None,
            };
            match (message, greeted) {
                (Some(Message::Hello(hello)), false) => {
                    if hello.version != PROTOCOL_VERSION {
                        let message = format!("this receiver speaks version {PROTOCOL_VERSION} of the protocol");
                        return Some(Err(Status::failed_precondition(message)));
                    }
                    self.handler.connected(&hello);
                    greeted = true;
                }
                (Some(Message::Report(report)), true) => return self.accept(&report),
                (Some(Message::Hello(_) | Message::Report(_)), _) => {
                    return Some(Err(Status::invalid_argument(
                        "the first message must be the only Hello",
                    )));
                }
                // A kind of message that is not known here.
                (None, _) => {}
            }
        }
    }

    fn accept(&self, report: &Report) -> Option<Result<Ack, Status>> {
        if report.id.is_empty() || report.count == 0 {
            return Some(Err(Status::invalid_argument("a report has an id and a count")));
        }
        let id = IdHash::of(&report.id);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let again = !seen.insert(id);
        drop(seen);
        match self.handler.handle(report, again) {
            ControlFlow::Continue(()) => Some(Ok(Ack {
                up_to: report.sequence,
                ids: Vec::new(),
            })),
            ControlFlow::Break(()) => {
                self.stop.cancel();
                None
            }
        }
    }
}

impl Listener {
    /// Listens at `address:port` or `unix:///path`. Port 0 is any that is free.
    ///
    /// Errors: what the kernel says.
    pub async fn bind(address: &str) -> io::Result<Self> {
        match address.strip_prefix("unix://") {
            Some(path) => UnixListener::bind(path).map(Self::Unix),
            None => TcpListener::bind(address).await.map(Self::Tcp),
        }
    }

    /// Where an agent finds it: what follows `http://` or `https://`, or `unix://…`.
    ///
    /// Errors: what the kernel says.
    pub fn address(&self) -> io::Result<String> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?.to_string(),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or_else(|| std::path::Path::new(""));
                format!("unix://{}", path.display())
            }
        })
    }
}
