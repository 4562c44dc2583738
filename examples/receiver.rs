//! A receiver of the reports of OOM kills that agents send over `vscaled.report.v1`, as simple as a receiver can be: it prints each
//! report as one line of JSON and acknowledges it. A reference for people who write one (`docs/reporting.md`).
//!
//! `cargo run --example receiver -- --listen 127.0.0.1:9470`, and an agent whose `reportGrpcEndpoint` is `http://127.0.0.1:9470`.

use std::collections::{HashSet, VecDeque};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use futures::{FutureExt as _, StreamExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use vscaled::printable;
use vscaled::report::proto::agent_message::Message;
use vscaled::report::proto::report_receiver_server::{ReportReceiver, ReportReceiverServer};
use vscaled::report::proto::{Ack, AgentMessage, Report};

/// The version of the protocol that this receiver speaks.
const VERSION: u32 = 1;
/// The number of ids by which a repeated report is recognized.
const REMEMBERED: usize = 100_000;
/// The connection of an agent that does not answer for so long ends.
const PING: Duration = Duration::from_secs(20);
/// The number of acknowledgements that may wait for the connection.
const ACKS: usize = 64;

/// Receives reports of OOM kills from agents, prints them as lines of JSON and acknowledges them, until interrupted.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where to listen: an address and a port such as 127.0.0.1:9470, or unix:///path
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// The certificate to show, in PEM; with it the receiver speaks TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Only let in agents with a certificate that this authority has signed, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match listen(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("receiver: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Listens and prints until a signal comes or the reader closes the pipe.
async fn listen(arguments: Arguments) -> Result<()> {
    let mut server = Server::builder().http2_keepalive_interval(Some(PING));
    let tls = tls(&arguments)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    if let Some(tls) = tls {
        server = server.tls_config(tls).context("TLS")?;
    }
    let (reports, received) = mpsc::channel(ACKS);
    let router = server.add_service(ReportReceiverServer::new(Receiver { reports }));
    let address = &arguments.listen;
    let unusable = || format!("cannot listen at {address}");
    let socket = address.strip_prefix("unix://");
    let served = if let Some(path) = socket {
        let listener = UnixListener::bind(path).with_context(unusable)?;
        eprintln!("receiver: listening at {address}");
        let connections = UnixListenerStream::new(listener);
        router.serve_with_incoming(connections).left_future()
    } else {
        let listener = TcpListener::bind(address).await.with_context(unusable)?;
        eprintln!("receiver: listening at {scheme}://{}", listener.local_addr()?);
        let connections = TcpListenerStream::new(listener);
        router.serve_with_incoming(connections).right_future()
    };
    let ended = tokio::select! {
        served = served => served.context("cannot receive any more"),
        printed = print(received) => printed,
        signal = tokio::signal::ctrl_c() => signal.context("cannot receive signals"),
    };
    socket.map_or(Ok(()), std::fs::remove_file)?;
    ended
}

fn tls(arguments: &Arguments) -> Result<Option<ServerTlsConfig>> {
    let read = |file: &PathBuf| std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    let (Some(certificate), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) else {
        return Ok(None);
    };
    let tls = ServerTlsConfig::new().identity(Identity::from_pem(read(certificate)?, read(key)?));
    Ok(Some(match &arguments.client_ca {
        Some(ca) => tls.client_ca_root(Certificate::from_pem(read(ca)?)),
        None => tls,
    }))
}

/// A report, and the place for its acknowledgement.
type Received = (Report, mpsc::Sender<Result<Ack, Status>>);

#[derive(Debug)]
struct Receiver {
    reports: mpsc::Sender<Received>,
}

#[tonic::async_trait]
impl ReportReceiver for Receiver {
    type DeliverStream = ReceiverStream<Result<Ack, Status>>;

    async fn deliver(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let (acks, answers) = mpsc::channel(ACKS);
        let (reports, mut messages) = (self.reports.clone(), request.into_inner());
        tokio::spawn(async move {
            let mut greeted = false;
            while let Some(Ok(AgentMessage { message })) = messages.next().await {
                let refusal = match (message, greeted) {
                    (Some(Message::Hello(hello)), false) if hello.version == VERSION => {
                        eprintln!(
                            "receiver: node {:?} connected, vscaled {:?}",
                            hello.node, hello.agent_version
                        );
                        greeted = true;
                        continue;
                    }
                    (Some(Message::Hello(_)), false) => {
                        Status::failed_precondition(format!("this receiver speaks version {VERSION} of the protocol"))
                    }
                    (Some(Message::Report(report)), true) if report.id.is_empty() || report.count == 0 => {
                        Status::invalid_argument("a report has an id and a count")
                    }
                    (Some(Message::Report(report)), true) => match reports.send((report, acks.clone())).await {
                        Ok(()) => continue,
                        Err(_ended) => return,
                    },
                    (Some(_), _) => Status::invalid_argument("the first message must be the only Hello"),
                    // A newer agent sent a message of an unknown kind.
                    (None, _) => continue,
                };
                drop(acks.send(Err(refusal)).await);
                return;
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// Stores each report, which means here to print it, and acknowledges it. Ends when the reader closes the pipe.
async fn print(mut received: mpsc::Receiver<Received>) -> Result<()> {
    let (mut seen, mut oldest_first) = (HashSet::new(), VecDeque::new());
    while let Some((report, acks)) = received.recv().await {
        let again = !seen.insert(report.id.clone());
        if !again {
            oldest_first.push_back(report.id.clone());
        }
        if oldest_first.len() > REMEMBERED
            && let Some(oldest) = oldest_first.pop_front()
        {
            seen.remove(&oldest);
        }
        // A report with a first time is the count of several kills.
        let what = if report.first_time.is_none() { "kill" } else { "folded" };
        let line = serde_json::json!({"id": report.id, "again": again, what: report}).to_string();
        // A process chooses its name: without this it could write to the terminal.
        let line = printable::json(&line);
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            break;
        }
        let (up_to, ids) = (report.sequence, Vec::new());
        // An agent that has gone, or does not read, sends the report again.
        drop(acks.try_send(Ok(Ack { up_to, ids })));
    }
    Ok(())
}
