//! `vscalectl oom sink`: receives the reports of agents over `vscaled.report.v1`, prints them, and acknowledges them. It is
//! as simple as a receiver can be: a reference for people who write one.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures::StreamExt;
use serde::Serialize;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::cli::agent::block_on;
use crate::cli::output::{Output, Paint, Tone, clean, or_dash};
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
pub(super) struct Arguments {
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
    let sink = Arc::new(Sink {
        output: arguments.output.clone(),
        seen: Mutex::new(SeenIds::new(REMEMBERED)),
        failure: Mutex::default(),
        stop: CancellationToken::new(),
    });
    let (stop, stopped) = (sink.stop.clone(), sink.stop.clone().cancelled_owned());
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    let router = server.add_service(ReportReceiverServer::new(Arc::clone(&sink)));
    let served = if let Some(path) = address.strip_prefix("unix://") {
        let incoming = UnixListenerStream::new(UnixListener::bind(path).map_err(unusable)?);
        eprintln!("vscalectl: listening at {address}");
        let served = router.serve_with_incoming_shutdown(incoming, stopped).await;
        std::fs::remove_file(path).map_err(unusable)?;
        served
    } else {
        let listener = TcpListener::bind(address).await.map_err(unusable)?;
        let bound = listener.local_addr().map_err(unusable)?;
        eprintln!("vscalectl: listening at {scheme}://{bound}");
        let incoming = TcpListenerStream::new(listener);
        router.serve_with_incoming_shutdown(incoming, stopped).await
    };
    served.context("cannot receive any more")?;
    let failure = sink.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    failure.map_or(Ok(()), Err)
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

#[derive(Debug)]
struct Sink {
    output: Output,
    seen: Mutex<SeenIds>,
    /// The error that ended printing.
    failure: Mutex<Option<Failure>>,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl ReportReceiver for Arc<Sink> {
    type DeliverStream = ReceiverStream<Result<Ack, Status>>;

    async fn deliver(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let (acks, answers) = mpsc::channel(ACKS);
        let (sink, mut messages) = (Self::clone(self), request.into_inner());
        tokio::spawn(async move {
            let mut greeted = false;
            // Cancel-safe: the agent sends a message again that the sink has not acknowledged.
            while let Some(Some(Ok(message))) = sink.stop.run_until_cancelled(messages.next()).await {
                let Some(answer) = sink.answer(message, &mut greeted) else {
                    continue;
                };
                let ends = answer.is_err();
                if acks.send(answer).await.is_err() || ends {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

impl Sink {
    /// The answer to a message, if it has one.
    fn answer(&self, message: AgentMessage, greeted: &mut bool) -> Option<Result<Ack, Status>> {
        match (message.message, *greeted) {
            (Some(Message::Hello(hello)), false) if hello.version != PROTOCOL_VERSION => {
                let message = format!("this receiver speaks version {PROTOCOL_VERSION} of the protocol");
                Some(Err(Status::failed_precondition(message)))
            }
            (Some(Message::Hello(hello)), false) => {
                let (node, version) = (or_dash(&hello.node), or_dash(&hello.agent_version));
                eprintln!("vscalectl: node {node} connected, vscaled {version}");
                *greeted = true;
                None
            }
            (Some(Message::Report(report)), true) => self.accept(&report),
            (Some(Message::Hello(_) | Message::Report(_)), _) => {
                let message = "the first message must be the only Hello";
                Some(Err(Status::invalid_argument(message)))
            }
            // A newer agent sent a message of an unknown kind.
            (None, _) => None,
        }
    }

    /// Stores a report, which means here to print it, and acknowledges it.
    fn accept(&self, report: &Report) -> Option<Result<Ack, Status>> {
        if report.id.is_empty() || report.count == 0 {
            return Some(Err(Status::invalid_argument("a report has an id and a count")));
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let again = !seen.insert(IdHash::of(&report.id));
        let shown = Shown {
            id: &report.id,
            again,
            report: match report.first_time {
                None => ShownReport::Kill(report),
                Some(_) => ShownReport::Folded(report),
            },
        };
        match self.output.print_next(&shown, |paint| line(report, again, paint)) {
            Ok(ControlFlow::Continue(())) => Some(Ok(Ack {
                up_to: report.sequence,
                ids: Vec::new(),
            })),
            stopped => {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = stopped.err();
                self.stop.cancel();
                None
            }
        }
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    again: bool,
    #[serde(flatten)]
    report: ShownReport<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum ShownReport<'a> {
    Kill(&'a Report),
    /// The count of several kills.
    Folded(&'a Report),
}

/// One report as a line: time, node, pod, container, limit, and the killed process.
fn line(report: &Report, again: bool, paint: Paint) -> String {
    let pod = report.pod.as_ref().map(ReportedPod::full_name).unwrap_or_default();
    let container = report.container.as_ref().map_or("", |container| &container.name);
    let limit = report.container_limit.as_ref().or(report.limit.as_ref());
    let limit = limit.and_then(|limit| limit.limit_bytes);
    let limit = limit
        .map(|bytes| format!(" of {}", Bytes::new(bytes)))
        .unwrap_or_default();
    let level = report.limit_of().as_str_name().trim_start_matches("LEVEL_");
    let what = match &report.first_time {
        None => killed(report),
        Some(first) => format!("{} kills since {}, without detail", report.count, time(first)),
    };
    let again = if again { " (again)" } else { "" };
    format!(
        "{} {} {} {}: {} limit{limit}: {what}{again}",
        report.time.as_ref().map_or_else(|| "-".to_owned(), time),
        or_dash(&report.node),
        paint.text(Tone::Title, &or_dash(&pod)),
        or_dash(container),
        level.to_lowercase(),
    )
}

/// The time to the millisecond.
fn time(time: &prost_types::Timestamp) -> String {
    jiff::Timestamp::new(time.seconds, time.nanos).map_or_else(|_| "-".to_owned(), |time| format!("{time:.3}"))
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
    use crate::report::testing::kill_of;

    #[test]
    fn a_kill_is_one_line_that_its_victim_cannot_write_into() {
        let mut kill = kill_of("web", 7);
        kill.victim.as_mut().unwrap().comm = "a\u{1b}[2J\nb".to_owned();
        let text = line(&Report::from(&kill.into()), true, Paint::PLAIN);
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
        let text = line(&Report::from(&folded), false, Paint::PLAIN);
        assert!(
            text.ends_with("12 kills since 2023-11-14T22:13:27.000Z, without detail"),
            "{text}"
        );
    }
}
