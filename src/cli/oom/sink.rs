//! `vscalectl oom sink`: receives the reports of agents over `vscaled.report.v1`, prints them, and acknowledges them. It is
//! as simple as a receiver can be: a reference for people who write one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures::{FutureExt, StreamExt};
use serde_json::json;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::cli::agent::block_on;
use crate::cli::output::{Output, Tone, clean, coloured, optional, or_dash};
use crate::cli::{Failure, io};
use crate::model::Bytes;
use crate::oom::ReportedPod;
use crate::report::grpc::PROTOCOL_VERSION;
use crate::report::log::{IdHash, SeenIds};
use crate::report::proto::agent_message::Message;
use crate::report::proto::report_receiver_server::{ReportReceiver, ReportReceiverServer};
use crate::report::proto::{Ack, AgentMessage, Report, Role};

/// The number of ids by which the sink recognizes a repeated report.
const REMEMBERED: usize = 100_000;
/// The sink drops the connection of an agent that does not answer for so long.
const PING: Duration = Duration::from_secs(20);
/// The number of acknowledgements that may wait for the connection.
const ACKS: usize = 64;

/// Receives reports of OOM kills from agents, prints them and acknowledges them, until interrupted.
///
/// A reference for people who write a receiver of vscaled.report.v1 (docs/reporting.md), and a way to see what an agent
/// sends: point its reportGrpcEndpoint here. JSON is one line for each report, YAML one document.
#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Where to listen: an address and a port such as 127.0.0.1:9470, or unix:///path
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// The certificate to show, in PEM; with it the sink speaks TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Only let in agents with a certificate that this authority has signed, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Listens and prints until a signal comes or the reader closes the pipe.
///
/// Errors: a file or the address cannot be used, or listening ends early.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let tls = tls(arguments)?;
    block_on(listen(arguments, tls))?
}

async fn listen(arguments: &Arguments, tls: Option<ServerTlsConfig>) -> Result<(), Failure> {
    let address = &arguments.listen;
    let unusable = |error: std::io::Error| Failure::usage(anyhow!("cannot listen at {address}: {error}"));
    let mut server = Server::builder().http2_keepalive_interval(Some(PING));
    let scheme = if tls.is_some() { "https" } else { "http" };
    if let Some(tls) = tls {
        server = server.tls_config(tls).context("TLS").map_err(Failure::usage)?;
    }
    let (reports, received) = mpsc::channel(ACKS);
    let router = server.add_service(ReportReceiverServer::new(Sink { reports }));
    let socket = address.strip_prefix("unix://");
    let served = if let Some(path) = socket {
        let listener = UnixListener::bind(path).map_err(unusable)?;
        io::complain("vscalectl", &format!("listening at {address}"));
        router
            .serve_with_incoming(UnixListenerStream::new(listener))
            .left_future()
    } else {
        let listener = TcpListener::bind(address).await.map_err(unusable)?;
        let bound = listener.local_addr().map_err(unusable)?;
        io::complain("vscalectl", &format!("listening at {scheme}://{bound}"));
        router
            .serve_with_incoming(TcpListenerStream::new(listener))
            .right_future()
    };
    let ended = tokio::select! {
        served = served => served.context("cannot receive any more").map_err(Failure::from),
        printed = print(received, &arguments.output) => printed,
        signal = tokio::signal::ctrl_c() => signal.context("cannot receive signals").map_err(Failure::from),
    };
    socket.map_or(Ok(()), std::fs::remove_file).map_err(unusable)?;
    ended
}

fn tls(arguments: &Arguments) -> Result<Option<ServerTlsConfig>, Failure> {
    let read = |file: &PathBuf| io::read_bytes(&file.to_string_lossy());
    let (Some(certificate), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) else {
        return Ok(None);
    };
    let identity = Identity::from_pem(read(certificate)?, read(key)?);
    let mut tls = ServerTlsConfig::new().identity(identity);
    if let Some(ca) = &arguments.client_ca {
        tls = tls.client_ca_root(Certificate::from_pem(read(ca)?));
    }
    Ok(Some(tls))
}

/// A report, and the place for its acknowledgement.
type Received = (Report, mpsc::Sender<Result<Ack, Status>>);

#[derive(Debug)]
struct Sink {
    reports: mpsc::Sender<Received>,
}

#[tonic::async_trait]
impl ReportReceiver for Sink {
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
                    (Some(Message::Hello(hello)), false) if hello.version == PROTOCOL_VERSION => {
                        let (node, version) = (or_dash(&hello.node), or_dash(&hello.agent_version));
                        io::complain("vscalectl", &format!("node {node} connected, vscaled {version}"));
                        greeted = true;
                        continue;
                    }
                    (Some(Message::Hello(_)), false) => {
                        let message = format!("this receiver speaks version {PROTOCOL_VERSION} of the protocol");
                        Status::failed_precondition(message)
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
async fn print(mut received: mpsc::Receiver<Received>, output: &Output) -> Result<(), Failure> {
    let mut seen = SeenIds::new(REMEMBERED);
    while let Some((report, acks)) = received.recv().await {
        let again = !seen.insert(IdHash::of(&report.id));
        // A report with a first time is the count of several kills.
        let what = if report.first_time.is_none() { "kill" } else { "folded" };
        let shown = json!({"id": report.id, "again": again, what: report});
        if output.print_next(&shown, || line(&report, again))?.is_break() {
            break;
        }
        let (up_to, ids) = (report.sequence, Vec::new());
        // An agent that has gone, or does not read, sends the report again.
        drop(acks.try_send(Ok(Ack { up_to, ids })));
    }
    Ok(())
}

/// One report as a line: time, node, pod, container, limit, and the killed process.
fn line(report: &Report, again: bool) -> String {
    let pod = optional(report.pod.as_ref().map(ReportedPod::full_name));
    let container = report.container.as_ref().map(|container| &container.name);
    let limit = report.container_limit.as_ref().or(report.limit.as_ref());
    let limit = limit.and_then(|limit| limit.limit_bytes);
    let limit = limit.map_or_else(String::new, |bytes| format!(" of {}", Bytes::new(bytes)));
    let what = match &report.first_time {
        None => killed(report),
        first => format!("{} kills since {}, without detail", report.count, time(first)),
    };
    format!(
        "{} {} {} {}: {} limit{limit}: {what}{}",
        time(&report.time),
        or_dash(&report.node),
        coloured(Tone::Title, &pod),
        optional(container),
        report.limit_of(),
        if again { " (again)" } else { "" },
    )
}

/// The time to the millisecond.
fn time(time: &Option<prost_types::Timestamp>) -> String {
    let time = time.and_then(|time| jiff::Timestamp::new(time.seconds, time.nanos).ok());
    optional(time.map(|time| format!("{time:.3}")))
}

fn killed(report: &Report) -> String {
    match &report.victim {
        Some(victim) => {
            let role = match victim.role() {
                Role::Main => ", its main process",
                Role::Child => ", a child process",
                Role::Unspecified => "",
            };
            format!("killed \"{}\" ({}){role}", clean(&victim.comm), victim.pid)
        }
        None => {
            let more = usize::try_from(report.more_candidates).unwrap_or(usize::MAX);
            format!("killed one of {}", report.candidates.len().saturating_add(more).max(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::plain;
    use crate::report::testing::kill_of;

    #[test]
    fn a_kill_is_one_line_that_its_victim_cannot_write_into() {
        let mut kill = kill_of("web", 7);
        kill.victim.as_mut().unwrap().comm = "a\u{1b}[2J\nb".to_owned();
        let text = plain(&line(&Report::from(&kill.into()), true));
        assert_eq!(
            text,
            "2023-11-14T22:13:27.000Z node-1 shop/web app: container limit of 64Mi: killed \"a\\u{1b}[2J\\nb\" (7), a child process (again)"
        );
    }

    #[test]
    fn a_count_says_since_when() {
        let mut folded = crate::report::Report::from(kill_of("web", 7)).into_aggregate();
        folded.count = 12;
        let folded = crate::report::Report::Aggregate(Box::new(folded));
        let text = line(&Report::from(&folded), false);
        assert!(
            text.ends_with("12 kills since 2023-11-14T22:13:27.000Z, without detail"),
            "{text}"
        );
    }
}
