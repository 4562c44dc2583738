//! `vscalectl release`: ends what an operator holds by hand.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::Output;
use super::{Failure, agent::Agent, change};

/// Ends an override: the values of the VPA or of the spec come back
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: String,
    #[command(flatten)]
    output: Output,
}

/// Asks, waits until the values are back, and prints what was done.
///
/// # Errors
/// [`Failure`] when the agent does not answer, refuses, or fails.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.ask(async |client| Ok(client.release(arguments.pod.clone()).await?))?;
    let change = change::required(reply.change)?;
    arguments
        .output
        .print(&change, |paint| change::render(&change, paint))?;
    change::verdict(&change)
}
