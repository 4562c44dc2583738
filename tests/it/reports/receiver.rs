//! A receiver behind a real server, which can misbehave.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use vscaled::report::proto::agent_message::Message;
use vscaled::report::proto::report_receiver_server::{ReportReceiver, ReportReceiverServer};
use vscaled::report::proto::{Ack, AgentMessage, Hello, Report};

/// The way in which a receiver answers reports.
#[derive(Debug, Clone)]
pub(crate) enum Manner {
    /// Acknowledges each by its sequence.
    BySequence,
    /// Acknowledges each by its id.
    ById,
    /// Never answers.
    Silent,
    /// Acknowledges each twice, together with reports that were never sent.
    TwiceAndStrange,
    /// Acknowledges only reports that were never sent, again and again.
    OnlyStrange,
    /// Acknowledges with a message that is larger than all ids of a window.
    Fat,
    /// Ends the stream with this status after this many reports.
    EndAfter(usize, Result<(), Status>),
}

/// A receiver and its received reports.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) got: Arc<Mutex<Got>>,
    pub(crate) address: String,
    /// Dropping the task ends the whole server with its connections.
    server: AbortOnDropHandle<()>,
    cut: CancellationToken,
}

#[derive(Debug, Default)]
pub(crate) struct Got {
    pub(crate) hellos: Vec<Hello>,
    pub(crate) reports: Vec<Report>,
}

#[derive(Clone)]
struct Service {
    got: Arc<Mutex<Got>>,
    manner: Manner,
    cut: CancellationToken,
}

impl Receiver {
    /// Starts a receiver on a free port of this machine.
    pub(crate) async fn start(manner: Manner) -> Self {
        Self::at("127.0.0.1:0", manner, None).await
    }

    pub(crate) async fn at(address: &str, manner: Manner, tls: Option<ServerTlsConfig>) -> Self {
        let listener = bind(address).await;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (service, got, cut) = Service::new(manner);
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).unwrap();
        }
        let router = server.add_service(ReportReceiverServer::new(service));
        let incoming = TcpListenerStream::new(listener);
        let serving = tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        Self {
            got,
            address,
            server: AbortOnDropHandle::new(serving),
            cut,
        }
    }

    pub(crate) fn at_socket(path: &Path, manner: Manner) -> Self {
        let (service, got, cut) = Service::new(manner);
        let router = Server::builder().add_service(ReportReceiverServer::new(service));
        let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let serving = tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        Self {
            got,
            address: format!("unix://{}", path.display()),
            server: AbortOnDropHandle::new(serving),
            cut,
        }
    }

    /// Ends without a status, and frees the port for another receiver.
    pub(crate) async fn vanish(self) -> (String, Got) {
        self.cut.cancel();
        self.server.abort();
        let address = self.address.split_once("://").unwrap().1.to_owned();
        let got = std::mem::take(&mut *self.got.lock().unwrap());
        (address, got)
    }

    /// The received ids, in order of arrival.
    pub(crate) fn ids(&self) -> Vec<String> {
        let got = self.got.lock().unwrap();
        got.reports.iter().map(|report| report.id.clone()).collect()
    }

    /// Waits for this many reports.
    pub(crate) async fn wait_for(&self, count: usize) {
        eventually(&format!("{count} reports"), || {
            self.got.lock().unwrap().reports.len() >= count
        })
        .await;
    }
}

/// Retries, because a port that was in use a moment ago may still be.
async fn bind(address: &str) -> TcpListener {
    for _ in 0..500 {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    panic!("cannot listen at {address}")
}

/// Waits for a condition that must become true, with a time limit.
pub(crate) async fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "never happened: {what}");
}

impl Service {
    fn new(manner: Manner) -> (Self, Arc<Mutex<Got>>, CancellationToken) {
        let (got, cut) = (Arc::<Mutex<Got>>::default(), CancellationToken::new());
        let service = Self {
            got: Arc::clone(&got),
            manner,
            cut: cut.clone(),
        };
        (service, got, cut)
    }

    fn answers(&self, message: AgentMessage, count: usize) -> Vec<Result<Ack, Status>> {
        let report = match message.message.unwrap() {
            Message::Hello(hello) => {
                self.got.lock().unwrap().hellos.push(hello);
                return Vec::new();
            }
            Message::Report(report) => report,
        };
        let (sequence, id) = (report.sequence, report.id.clone());
        self.got.lock().unwrap().reports.push(report);
        let ack = |up_to: u64, ids: Vec<String>| Ok(Ack { up_to, ids });
        let strange = || ack(sequence + 1_000_000, vec!["never sent".to_owned()]);
        match &self.manner {
            Manner::BySequence => vec![ack(sequence, vec![])],
            Manner::ById => vec![ack(0, vec![id])],
            Manner::Silent => vec![],
            Manner::TwiceAndStrange => vec![ack(sequence, vec![id.clone()]), strange(), ack(sequence, vec![id])],
            Manner::Fat => vec![ack(0, vec!["x".repeat(300 << 10)])],
            Manner::OnlyStrange => (0..2000).map(|_| strange()).collect(),
            Manner::EndAfter(most, end) if count > *most => match end {
                Ok(()) => vec![Err(Status::ok(""))],
                Err(status) => vec![Err(status.clone())],
            },
            Manner::EndAfter(..) => vec![ack(sequence, vec![])],
        }
    }
}

#[tonic::async_trait]
impl ReportReceiver for Service {
    type DeliverStream = BoxStream<'static, Result<Ack, Status>>;

    async fn deliver(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let service = self.clone();
        let cut = self.cut.clone().cancelled_owned();
        let acks = request.into_inner().take_until(cut).enumerate();
        let acks = acks.flat_map(move |(count, message)| match message {
            Ok(message) => stream::iter(service.answers(message, count)),
            Err(_) => stream::iter(Vec::new()),
        });
        // An end without an error ends the stream.
        let acks = acks.take_while(|ack| {
            let ended = matches!(ack, Err(status) if status.code() == tonic::Code::Ok);
            std::future::ready(!ended)
        });
        Ok(Response::new(acks.boxed()))
    }
}

/// The path for a socket in a directory.
pub(crate) fn socket_in(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("receiver.sock")
}
