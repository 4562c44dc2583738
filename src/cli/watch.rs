//! `vscalectl watch`: what is done and what the kernel kills, as it happens.

use clap::Args;

use super::output::Output;
use super::{Failure, agent::Agent, change, io, oom};

/// Shows changes as they are made, and kills as they happen, until interrupted; JSON is one line for each, YAML one document
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    output: Output,
}

/// Prints until the reader or the agent goes.
///
/// Errors: when the agent goes.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    agent.call(async |client| {
        let mut changes = client.watch().await?;
        loop {
            let change = changes.next().await?;
            if change.missed > 0 {
                io::warn(&format!(
                    "{} changes were missed, because they were read too slowly: `vscalectl history` shows them",
                    change.missed
                ));
            }
            let line = |paint| match &change.kill {
                Some(kill) => oom::line(kill, paint),
                None => change::line(&change, paint),
            };
            if arguments.output.print_next(&change, line)?.is_break() {
                return Ok(());
            }
        }
    })
}
