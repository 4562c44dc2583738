//! `vscalectl oom sink`: receives what agents report, prints it, and acknowledges it.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use clap::Args;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::cli::agent::block_on;
use crate::cli::output::{Output, Paint, Tone, clean, or_dash};
use crate::cli::{Failure, io};
use crate::model::Bytes;
use crate::report::proto::{Hello, Report, Role};
use crate::report::sink::{Listener, ReportHandler, serve};

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

/// Listens and prints until it is interrupted or nobody reads on.
///
/// # Errors
/// [`Failure::Usage`] for files and addresses that cannot be used, [`Failure::Refused`] when listening ends early.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let tls = tls(arguments)?;
    block_on(listen(arguments, tls))?
}

async fn listen(arguments: &Arguments, tls: Option<ServerTlsConfig>) -> Result<(), Failure> {
    let address = &arguments.listen;
    let unusable = |error: std::io::Error| Failure::Usage(anyhow!("cannot listen at {address}: {error}"));
    let listener = Listener::bind(address).await.map_err(unusable)?;
    let bound = listener.address().map_err(unusable)?;
    let scheme = match (&listener, tls.is_some()) {
        (Listener::Unix(_), _) => "",
        (Listener::Tcp(_), true) => "https://",
        (Listener::Tcp(_), false) => "http://",
    };
    eprintln!("vscalectl: listening at {scheme}{bound}");
    let printer = Arc::new(Printer {
        output: arguments.output.clone(),
        failure: Mutex::default(),
    });
    let stop = CancellationToken::new();
    let interrupted = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.cancel();
        }
    });
    let served = serve(listener, tls, Arc::clone(&printer) as Arc<dyn ReportHandler>, stop).await;
    if let Some(path) = bound.strip_prefix("unix://") {
        std::fs::remove_file(path).map_err(unusable)?;
    }
    served.context("cannot receive any more").map_err(Failure::Refused)?;
    let failure = printer.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
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
struct Printer {
    output: Output,
    /// Why it stopped printing, if it was not for the reader's sake.
    failure: Mutex<Option<Failure>>,
}

#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    again: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    kill: Option<&'a Report>,
    /// The count of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    folded: Option<&'a Report>,
}

impl ReportHandler for Printer {
    fn connected(&self, hello: &Hello) {
        eprintln!(
            "vscalectl: node {} connected, vscaled {}",
            or_dash(&hello.node),
            or_dash(&hello.agent_version)
        );
    }

    fn handle(&self, report: &Report, again: bool) -> ControlFlow<()> {
        let is_kill = report.first_time.is_none();
        let shown = Shown {
            id: &report.id,
            again,
            kill: is_kill.then_some(report),
            folded: (!is_kill).then_some(report),
        };
        let printed = self.output.print_next(&shown, |paint| line(report, again, paint));
        printed.unwrap_or_else(|failure| {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            ControlFlow::Break(())
        })
    }
}

/// One report as a line: when, where, whose, why, who.
fn line(report: &Report, again: bool, paint: Paint) -> String {
    let pod = report
        .pod
        .as_ref()
        .map_or(String::new(), |pod| match pod.name.as_str() {
            "" => pod.uid.clone(),
            name => format!("{}/{name}", pod.namespace),
        });
    let container = report.container.as_ref().map_or("", |container| &container.name);
    let limit = report.container_limit.as_ref().or(report.limit.as_ref());
    let limit = limit.and_then(|limit| limit.limit_bytes);
    let limit = limit.map_or_else(String::new, |bytes| format!(" of {}", Bytes::new(bytes)));
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

/// To the millisecond.
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
