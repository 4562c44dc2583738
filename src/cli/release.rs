//! `vscalectl release`: ends what an operator holds by hand.

use clap::Args;

use super::output::Output;
use super::{Failure, agent::Agent, change, results, which::Which};
use crate::control::proto::ReleaseRequest;

/// Ends an override: the values of the VPA or of the spec come back
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Why, for the history and the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    output: Output,
}

/// Asks, waits until the values are back, and prints what was done.
///
/// # Errors
/// [`Failure`] when the agent does not answer, refuses, or fails.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let (pod, selector, namespace) = arguments.which.parts();
    let request = ReleaseRequest {
        pod,
        selector,
        namespace,
        reason: arguments.reason.clone(),
    };
    let reply = agent.ask(async |client| Ok(client.release(request).await?))?;
    if arguments.which.is_several() {
        return results::show(&reply.results, &arguments.output);
    }
    let change = change::required(reply.change)?;
    arguments
        .output
        .print(&change, |paint| change::render(&change, paint))?;
    change::verdict(&change)
}
