//! `vscalectl watch`: what is done and what the kernel kills, as it happens.

use std::ops::ControlFlow;

use anyhow::Context;
use clap::Args;

use super::output::{Format, Output, Paint, yaml};
use super::{Failure, agent::Agent, change, io, oom};
use crate::control::proto::Change;

/// Shows changes as they are made, and kills as they happen, until interrupted; JSON is one line for each, YAML one document
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    output: Output,
}

/// Prints until the reader or the agent goes.
///
/// # Errors
/// [`Failure::NoDaemon`] when the agent goes.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let paint = Paint::for_stdout();
    agent.ask(async |client| {
        let mut changes = client.watch().await?;
        loop {
            let change = changes.next().await?;
            if change.missed > 0 {
                io::warn(&format!(
                    "{} changes were missed, because they were read too slowly: `vscalectl history` shows them",
                    change.missed
                ));
            }
            if let ControlFlow::Break(()) = io::print_more(&show(&change, arguments.output.format, paint)?)? {
                return Ok(());
            }
        }
    })
}

fn show(change: &Change, format: Format, paint: Paint) -> Result<String, Failure> {
    Ok(match format {
        Format::Table => match &change.kill {
            Some(kill) => oom::line(kill, paint),
            None => change::line(change, paint),
        },
        Format::Json => {
            serde_json::to_string(change)
                .context("cannot print the change")
                .map_err(Failure::Refused)?
                + "\n"
        }
        Format::Yaml => format!("---\n{}", yaml(change)?),
    })
}
